"""A backup becomes the data directory of the first node of a new cluster, without any node; blocks.

Until all of it is durable the directory has no identity, and so no node begins on it. The file ``restoring``
says that what is there is ours to be begun anew.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envelope.errors import DirectoryInUse, StorageError
from envelope.types import NodeEpoch, NodeId, Term, TimestampUs
from jetstream.log.disk.identity import IDENTITY_FILE, LOCK_FILE, new_identity, put_identity
from jetstream.log.disk.os_disk import OsDisk
from jetstream.log.disk.port import Disk, make_directories
from jetstream.node.cluster.metadata_part import METADATA_DIRECTORY
from jetstream.node.disk.stream_files import STREAMS_DIRECTORY, stream_path
from jetstream.node.restore.restored_catalog import FIRST_INDEX, restored_catalog
from jetstream.node.restore.restored_log import (
    RestoredSegment,
    restored_segments,
    write_segment,
    write_state_of,
)
from jetstream.node.runtime.version import VERSION
from jetstream.tier.backups.backup_store import BackupStore
from jetstream.tier.backups.manifest import BackupManifest
from metadata.catalog.catalog import Catalog
from metadata.catalog.snapshot import encode
from metadata.catalog.tables import RegisteredNode
from metadata.node.storage.file_storage import FileStorage
from metadata.raft.state import HardState, Snapshot

MARKER_FILE: Final = "restoring"
_HARMLESS: Final = frozenset((LOCK_FILE, "lost+found"))
_TERM: Final = Term(1)
_WRITERS: Final = 4
"""Segments that are written at once."""
_NOWHERE: Final = ("127.0.0.1", 1)
"""Where the node is, until it registers at its first start."""


@dataclass(frozen=True, slots=True)
class RestoredNode:
    """A data directory that a node can begin on.

    Attributes:
        node_id: whose it is: the default of a node on this directory, unless one was chosen.
        streams: in it, the system's own too.
        size: bytes of their segments.
    """

    node_id: NodeId
    streams: int
    size: int


def restore_node(
    store: BackupStore,
    manifest: BackupManifest,
    directory: Path,
    node_id: str | None = None,
    progressed: Callable[[int], None] = lambda _size: None,
) -> RestoredNode:
    """Restore a backup into an empty directory, which is made if it is missing; all is durable on return.

    Each object is proven by its hash. After an error or a crash no node takes the directory, and the next
    restore into it begins anew.

    Args:
        store: where the backup is.
        manifest: of the backup.
        directory: of the node, absolute or not.
        node_id: of the node; None: what a node derives from the directory's identity.
        progressed: called with the bytes of each segment, on another thread.

    Raises:
        DirectoryInUse: it is not empty, or a process uses it; nothing was changed.
        DamagedBackup: an object is missing, or has other bytes than were written.
        TierUnavailable: the store refused.
        DiskFull, StorageError: the disk refused.
    """
    store.check(manifest)
    with closing(OsDisk(directory)) as disk:
        _check_empty(disk, directory)
        try:
            lock = disk.lock(LOCK_FILE)
        except StorageError as error:
            raise DirectoryInUse(f"{directory} is in use: {error.description}") from error
        with closing(lock):
            _check_empty(disk, directory)
            identity = new_identity()
            owner = NodeId(node_id or f"node-{identity[:8]}")
            catalog = restored_catalog(
                manifest, _registered(owner, identity), TimestampUs(time.time_ns() // 1000)
            )
            _begin(disk)
            size = _write_streams(disk, store, manifest, progressed)
            _write_metadata(disk, catalog)
            put_identity(disk, identity)  # from now on it is a node's
            disk.unlink(MARKER_FILE)
            disk.sync_dir("")
    return RestoredNode(owner, len(manifest.streams), size)


def _check_empty(disk: Disk, directory: Path) -> None:
    names = [name for name in disk.listdir("") if name not in _HARMLESS]
    if IDENTITY_FILE in names or (names and MARKER_FILE not in names):
        raise DirectoryInUse(f"{directory} is not empty: it holds {names[0]!r}")


def _begin(disk: Disk) -> None:
    """Mark the directory as one that is being restored, and remove what an earlier attempt has left."""
    if not disk.exists(MARKER_FILE):
        disk.create(MARKER_FILE).close()
        disk.sync_dir("")
    for name in (STREAMS_DIRECTORY, METADATA_DIRECTORY):
        disk.remove_tree(name)
    disk.sync_dir("")


def _write_streams(
    disk: Disk, store: BackupStore, manifest: BackupManifest, progressed: Callable[[int], None]
) -> int:
    """Write all logs, and return the bytes of their segments."""
    make_directories(disk, STREAMS_DIRECTORY)
    plans = [
        (stream, stream_path(stream.name, stream.incarnation), restored_segments(stream))
        for stream in manifest.streams
    ]
    for _, path, _ in plans:
        disk.mkdir(path)
    disk.sync_dir(STREAMS_DIRECTORY)

    def written(work: tuple[str, RestoredSegment]) -> int:
        size = write_segment(disk, *work, store)
        progressed(size)
        return size

    threads = ThreadPoolExecutor(_WRITERS, "jetstream-restore")
    try:
        size = sum(threads.map(written, ((path, each) for _, path, found in plans for each in found)))
    finally:
        threads.shutdown(cancel_futures=True)
    for stream, path, segments in plans:
        write_state_of(disk, path, stream, segments[-1])
    return size


def _registered(node_id: NodeId, identity: str) -> RegisteredNode:
    host, port = _NOWHERE
    return RegisteredNode(
        node_id=node_id,
        node_epoch=NodeEpoch(1),
        directory=identity,
        host=host,
        port=port,
        http_port=None,
        version=VERSION,
    )


def _write_metadata(disk: Disk, catalog: Catalog) -> None:
    storage = FileStorage.open(disk, METADATA_DIRECTORY)
    with closing(storage):
        storage.append((), HardState(_TERM, None))
        storage.compact(Snapshot(FIRST_INDEX, _TERM, encode(catalog)))
