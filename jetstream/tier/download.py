"""From the object store to a local file that is read like any other segment."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

from envelope.errors import CorruptDataError, JetstreamError, OutOfResources, TierUnavailable
from envelope.types import FilePosition
from jetstream.log.disk.port import Disk, make_directories
from jetstream.log.reader import LogReader
from jetstream.log.segments.scan import scan_segment
from jetstream.log.segments.segment import Segment
from jetstream.log.state.epochs import EpochHistory
from jetstream.tier.manifest import TieredSegment, TierManifest, decode_manifest
from jetstream.tier.object_store import ObjectStore
from jetstream.tier.upload import Hashed

MANIFEST_BYTES_MAX: Final = 1 << 30


def download_segment(
    store: ObjectStore,
    disk: Disk,
    directory: str,
    tiered: TieredSegment,
    progressed: Callable[[], None] = lambda: None,
    root: Path | None = None,
) -> LogReader:
    """Download a segment into an empty ``directory`` of a disk, and return a log of it alone; blocks.

    Nothing is synced: the next start removes the rest of a crash. A copy is checked by its SHA-256. From a
    local folder on the same file system nothing is copied, the file gets another name. In any case every
    batch is checked by its CRC32C, and that none is missing.

    Args:
        store: source.
        disk: target.
        directory: of that disk, for this segment alone.
        tiered: the segment.
        progressed: called with every chunk.
        root: of the disk in the file system; None: nowhere.

    Raises:
        TierUnavailable: the store does not give it, or not its bytes; nothing is left in ``directory``.
        DiskFull, StorageError: the disk refused.
    """
    if disk.exists(directory):  # left by a download that could not be removed
        disk.remove_tree(directory)
    make_directories(disk, directory)
    try:
        segment = Segment(disk, directory, tiered.base)
        if root is None or not store.link(tiered.path, root / segment.path):
            _copy(store, disk, segment, tiered, progressed)
        with segment.leased() as file:
            scan = scan_segment(file, segment.base)
            segment.describe_scan(scan, file.size())
    except JetstreamError:
        with contextlib.suppress(OutOfResources):
            disk.remove_tree(directory)
        raise
    is_whole = scan.intact and scan.sealed and (scan.next, segment.size) == (tiered.next, tiered.size)
    if not is_whole:
        disk.remove_tree(directory)
        raise _unavailable(tiered, "its bytes are no segment")
    log = LogReader(directory, (segment,))
    log.log_start_offset, log.log_end_offset = tiered.base, tiered.next
    log.epochs = EpochHistory()
    return log


def _copy(
    store: ObjectStore, disk: Disk, segment: Segment, tiered: TieredSegment, progressed: Callable[[], None]
) -> None:
    file = disk.create(segment.path)
    try:
        received = Hashed(store.chunks(tiered.path))
        position = 0
        for chunk in received:
            position += file.write([chunk], FilePosition(position))
            progressed()
            if received.size > tiered.size:
                break
    except TierUnavailable as error:
        raise _unavailable(tiered, error.description) from error
    finally:
        file.close()
    if (received.sha256, received.size) != (tiered.sha256, tiered.size):
        raise _unavailable(tiered, f"{tiered.path} has other bytes than were uploaded")


def download_manifest(store: ObjectStore, path: str) -> TierManifest:
    """Return the manifest in an object; blocks.

    Raises:
        TierUnavailable: the store does not give it, or not its bytes.
    """
    try:
        return read_manifest(store, path)
    except CorruptDataError as error:
        raise TierUnavailable(f"the list of what is in the object store: {error.description}") from error


def read_manifest(store: ObjectStore, path: str) -> TierManifest:
    """Return the manifest in an object; blocks.

    Raises:
        TierUnavailable: the store does not give it.
        CorruptDataError: its bytes are not those that were written.
    """
    content = bytearray()
    for chunk in store.chunks(path):
        content += chunk
        if len(content) > MANIFEST_BYTES_MAX:
            raise CorruptDataError(f"{path} is larger than {MANIFEST_BYTES_MAX} bytes")
    return decode_manifest(path, bytes(content))


def _unavailable(tiered: TieredSegment, why: str) -> TierUnavailable:
    return TierUnavailable(
        f"offsets {tiered.base} to {tiered.next} are in the object store alone: {why}",
        base=tiered.base,
        next=tiered.next,
    )
