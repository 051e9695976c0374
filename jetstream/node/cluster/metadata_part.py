"""The node's part of the metadata group: opened from its directory, and run beside the node."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from dataclasses import replace
from typing import Final

from envelope.errors import DiskFull, InternalError, InvalidConfig
from envelope.types import NodeId
from jetstream.log.disk.os_disk import OsDisk
from jetstream.node.cluster.member_record import read_record, write_record
from jetstream.node.cluster.place import OldLog
from jetstream.node.runtime.crash import Crash
from jetstream.node.runtime.task_group import task_group
from jetstream.node.settings.peer_settings import PeerSettings
from metadata.catalog.events import Events
from metadata.members import member_name
from metadata.node.catalogue.group import MetadataQuorum
from metadata.node.catalogue.replicated_catalog import last_registration
from metadata.node.members.changing_member import AsObserver, AsVoter
from metadata.node.peers.addresses import PeerAddresses
from metadata.node.storage.file_storage import FileStorage, is_begun
from metadata.node.storage.port import Storage

METADATA_DIRECTORY: Final = "metadata"
"""Where the metadata log is of a node that is, or has been, a voter."""


def stored_log(disk: OsDisk, node_id: NodeId) -> OldLog | None:
    """Return what the metadata log says of the node; None: there is none, or nothing was promised; blocks.

    Raises:
        CorruptDataError: bytes that had been durable are damaged or missing.
        StorageError: the disk refused.
    """
    if not is_begun(disk, METADATA_DIRECTORY):
        return None
    with closing(FileStorage.open(disk, METADATA_DIRECTORY, create=False)) as storage:
        stored = storage.load()
    if stored.is_blank:
        return None
    registered = last_registration(stored.snapshot, stored.entries, node_id)
    return OldLog(None if registered is None else registered.peer_host is not None)


async def open_metadata(
    disk: OsDisk,
    peers: PeerSettings,
    directory: str,
    begin: AsVoter | AsObserver,
    *,
    is_new: bool,
) -> MetadataQuorum:
    """Return the node's part of the metadata group.

    Args:
        disk: the data directory.
        peers: of the node.
        directory: identity of the data directory.
        begin: the part.
        is_new: nothing says that a founder's log must be there.

    Raises:
        Exception: as `MetadataQuorum.open`.
    """
    founders = begin.founders if isinstance(begin, AsVoter) else frozenset()

    def open_storage(name: NodeId) -> Storage:
        """Open what this disk has, and keep under which name, before anything is promised under it."""
        record = read_record(disk)
        create = record.member is None and (is_new or not founders)
        with ExitStack() as unless_kept:
            storage = FileStorage.open(disk, METADATA_DIRECTORY, create=create)
            unless_kept.callback(storage.close)
            if record.member != name:
                began = tuple(sorted(founders)) if name in founders else ()
                write_record(disk, replace(record, member=name, founders=began))
            unless_kept.pop_all()
        return storage

    node_id = peers.identity.node_id
    own = {} if peers.address is None else {node_id: peers.address}
    addresses = PeerAddresses({**own, **peers.voters})
    return await MetadataQuorum.open(
        peers.identity, begin, addresses, member_name(node_id, directory), open_storage
    )


def keep_cluster_id(group: MetadataQuorum, disk: OsDisk) -> None:
    """Keep the id of the cluster in the directory, which belongs to it from then on, once it has one.

    A write of some bytes, once in the life of a directory: the loop waits for it.
    """
    keeper = _ClusterIdKeeper(group, disk)
    group.subscribe(keeper)
    keeper.restored()


class _ClusterIdKeeper:
    """A `CatalogListener`; see `keep_cluster_id`."""

    def __init__(self, group: MetadataQuorum, disk: OsDisk) -> None:
        self._group = group
        self._disk = disk
        self._is_kept = False

    def applied(self, events: Events) -> None:
        """See `CatalogListener.applied`."""
        del events
        self.restored()

    def restored(self) -> None:
        """See `CatalogListener.restored`.

        Raises:
            InvalidConfig: the directory is of another cluster.
        """
        if self._is_kept:
            return
        cluster_id = self._group.catalog.cluster.cluster_id
        if cluster_id is None:
            return
        record = read_record(self._disk)
        if record.cluster_id not in (None, cluster_id):
            raise InvalidConfig(
                f"the directory is of cluster {record.cluster_id}, and this is {cluster_id}", field="data"
            )
        with suppress(DiskFull):  # the next entry tries it again
            if record.cluster_id is None:
                write_record(self._disk, replace(record, cluster_id=cluster_id))
            self._is_kept = True


@asynccontextmanager
async def taking_part(group: MetadataQuorum, peers: PeerSettings, crash: Crash) -> AsyncIterator[None]:
    """Run the node's part of the metadata group inside; its failure stops the node.

    The metadata log is closed at the end.
    """

    async def run() -> None:
        (failure,) = await asyncio.gather(group.run(listening), return_exceptions=True)
        crash.report(failure or InternalError("the metadata log has stopped"))

    try:
        listening = peers.listening()
        tasks: asyncio.TaskGroup
        async with task_group() as tasks:
            running = tasks.create_task(run(), name="metadata")
            try:
                yield
            finally:
                running.cancel()
    finally:
        await group.stop()
