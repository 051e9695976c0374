"""The node's part of the metadata group: opened from its directory, and run beside the node."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from envelope.errors import InternalError, InvalidConfig
from jetstream.log.disk.os_disk import OsDisk
from jetstream.node.cluster.discovery import METADATA_DIRECTORY
from jetstream.node.runtime.crash import Crash
from jetstream.node.runtime.task_group import task_group
from jetstream.node.settings.peer_settings import PeerSettings
from metadata.node.catalogue.group import MetadataQuorum


async def open_metadata(disk: OsDisk, peers: PeerSettings, *, is_new: bool) -> MetadataQuorum:
    """Return the node's part of the metadata group; a data node keeps nothing of it on disk.

    Raises:
        InvalidConfig: the node had a vote, or was alone, when it wrote this directory, and is not now, or the
            other way round.
        Exception: as `MetadataQuorum.open`.
    """
    if peers.is_voter:
        return await MetadataQuorum.open(
            disk, METADATA_DIRECTORY, peers.identity, peers.voters, create=is_new
        )
    if disk.exists(METADATA_DIRECTORY):
        raise InvalidConfig(
            f"node {peers.identity.node_id} was a voter, or alone, and is none of peers.voters now: what its "
            "directory holds of the metadata log may be needed there"
        )
    return MetadataQuorum.observing(peers.identity, peers.voters)


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
