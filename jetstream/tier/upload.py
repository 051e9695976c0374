"""Upload of segments and manifests to the object store; all of it blocks.

An object counts as stored once all of it was read back and has the hash that was computed from the local
file. A failure before leaves an object that no manifest names; `collect` deletes it.
"""

import hashlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from envelope.errors import CorruptDataError, StorageError, TierUnavailable
from envelope.types import Buffer, FilePosition, LeaderEpoch
from jetstream.log.disk.port import File
from jetstream.log.segments.scan import scan_segment
from jetstream.log.segments.segment import Segment
from jetstream.tier.manifest import TieredSegment, TierManifest, encode_manifest, name_of
from jetstream.tier.object_names import SegmentName, parsed_name
from jetstream.tier.object_store import CHUNK_BYTES, ObjectStore

NO_HASH: Final = hashlib.sha256().hexdigest()


@dataclass(slots=True)
class Hashed:
    """Passes chunks through, and has their hash and length behind the last one."""

    chunks: Iterator[Buffer]
    sha256: str = NO_HASH
    size: int = 0

    def __iter__(self) -> Iterator[Buffer]:
        digest = hashlib.sha256()
        for chunk in self.chunks:
            digest.update(chunk)
            self.size += len(chunk)
            yield chunk
        self.sha256 = digest.hexdigest()

    def drained(self) -> "Hashed":
        """Return it behind the last chunk."""
        for _ in self:
            pass
        return self


def upload_segment(
    store: ObjectStore, directory: str, segment: Segment, leader_epoch: LeaderEpoch
) -> TieredSegment:
    """Copy a sealed segment as it is to ``directory`` of the store, and read it back.

    Raises:
        TierUnavailable: the store refused, or returns other bytes than were written.
        CorruptDataError: the local file is damaged.
        StorageError: the disk refused, or reads differently each time.
        UnavailableError: the segment is gone.
    """
    with segment.leased() as file:
        scan = scan_segment(file, segment.base)
        if not scan.intact or not scan.sealed or scan.next != segment.next:
            raise CorruptDataError(f"segment {segment.base} is not whole: it is not uploaded")
        first = Hashed(_file_chunks(file)).drained()
        name = SegmentName(segment.base, segment.next, leader_epoch, first.sha256)
        path = f"{directory}/{name}"
        if not is_there(store, path, first.sha256, first.size):
            written = Hashed(_file_chunks(file))
            store.put(path, written)
            if written.sha256 != first.sha256:
                raise StorageError(f"the disk reads differently each time: {segment.path}")
            verify(store, path, first.sha256, first.size)
    return TieredSegment(
        base=segment.base,
        next=segment.next,
        size=first.size,
        sha256=first.sha256,
        max_timestamp=segment.max_timestamp,
        last_epoch=segment.last_epoch,
        last_txid=scan.index.last_txid,
        path=path,
    )


def is_there(store: ObjectStore, path: str, sha256: str, size: int) -> bool:
    """Return whether an earlier attempt has stored the very object, durably; raises `TierUnavailable`.

    It is never written again then: a manifest may name it, even if this leader does not know that one.
    """
    if store.size_of(path) != size:
        return False
    if Hashed(store.chunks(path)).drained().sha256 != sha256:
        return False
    store.settle(path)  # the attempt may have ended before that
    return True


def upload_manifest(store: ObjectStore, directory: str, manifest: TierManifest) -> str:
    """Write a manifest, read it back, and return the object's path; raises `TierUnavailable`."""
    content = encode_manifest(manifest)
    name = name_of(manifest, content)
    path = f"{directory}/{name}"
    if not is_there(store, path, name.sha256, len(content)):
        store.put(path, [content])
        verify(store, path, name.sha256, len(content))
    return path


def verify(store: ObjectStore, path: str, sha256: str, size: int) -> None:
    """Read an object back.

    Raises:
        TierUnavailable: it is missing, or has other bytes than were written.
    """
    found = Hashed(store.chunks(path)).drained()
    if (found.sha256, found.size) != (sha256, size):
        raise TierUnavailable(f"the object store gives back other bytes of {path} than were written")


def collect(directory: str, kept: Collection[str], leader_epoch: LeaderEpoch, store: ObjectStore) -> int:
    """Delete the objects of this stream's life that are not ``kept``, of reigns up to ``leader_epoch``.

    Objects of a later leader stay, and so do objects that are none of ours.

    Returns:
        The number of deleted objects.

    Raises:
        TierUnavailable: the store refused; some may be gone.
    """
    deleted = 0
    for path in sorted(store.sizes(directory)):
        name = parsed_name(path)
        if path not in kept and name is not None and name.epoch <= leader_epoch:
            store.delete(path)
            deleted += 1
    return deleted


def _file_chunks(file: File) -> Iterator[Buffer]:
    position, size = 0, file.size()
    while position < size:
        chunk = file.read(FilePosition(position), CHUNK_BYTES)
        if not chunk:
            raise StorageError("a segment file ends before its end")
        yield chunk
        position += len(chunk)
