"""The metadata group of a node that is alone, also on directories from before proposals had names."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from envelope.limits import MIB
from envelope.types import Incarnation, NodeId, StreamName
from metadata.catalog.catalog import Catalog
from metadata.catalog.commands import Command, ConfirmRemoval, DeleteStream
from metadata.node.catalogue.group import MetadataQuorum
from metadata.node.peers.dialling import Address, PeerIdentity
from metadata.node.storage.disk_port import MetadataDisk
from metadata.node.storage.file_storage import FileStorage
from metadata.node.storage.port import Storage
from metadata.raft.settings import RaftSettings
from tests.support.catalogs import apply, create, register, update

N1: Final = NodeId("n1")
DIRECTORY: Final = "metadata"

_GOLDEN: Final = Path(__file__).parents[1] / "unit" / "metadata" / "golden"
GOLDEN: Final = ("single_voter_entries", "single_voter_snapshot")
"""Written by a version without proposal ids, from the same commands; the second with a snapshot in it."""

_GOLDEN_COMMANDS: Final[tuple[Command, ...]] = (
    register("n1", "0f3a"),
    create("orders", "life-1"),
    create("orders", "life-2", ack="none"),
    create("gone", "life-3"),
    DeleteStream(StreamName("gone")),
    ConfirmRemoval(N1, Incarnation("life-3")),
    *(update("orders", labels={"turn": str(turn)}) for turn in range(12)),
    register("n1", "0f3a"),
    update("orders", labels={"turn": "last"}),
)


def golden_copy(name: str, target: Path) -> Path:
    """Copy one of `GOLDEN`, because opening changes it; the disk to open is returned."""
    return shutil.copytree(_GOLDEN / name, target)


def golden_catalog() -> Catalog:
    """What `GOLDEN` says, also what was refused there."""
    catalog = Catalog()
    for command in _GOLDEN_COMMANDS:
        apply(catalog, command)
    for election in catalog.due_elections():
        apply(catalog, election)
    return catalog


def rows(catalog: Catalog) -> tuple[object, ...]:
    """All that a catalogue holds but the index, which counts what means nothing, too."""
    return catalog.nodes(), catalog.streams(), catalog.removals()


def opened(storage: Storage, snapshot_log_bytes_min: int = MIB) -> MetadataQuorum:
    """The group of one over a storage."""
    voters = {N1: Address("", 0)}
    return MetadataQuorum.voting(
        PeerIdentity("test", N1), voters, storage, RaftSettings(), snapshot_log_bytes_min
    )


@asynccontextmanager
async def running(group: MetadataQuorum) -> AsyncIterator[MetadataQuorum]:
    """Have it run inside; an error of the voter's ends the block."""
    try:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(group.run(None))
            await group.led()
            yield group
            task.cancel()
    finally:
        await group.stop()


@asynccontextmanager
async def alone(disk: MetadataDisk, snapshot_log_bytes_min: int = MIB) -> AsyncIterator[MetadataQuorum]:
    """A group of one with what is on the disk, or a new one; all of its log is applied."""
    async with running(opened(FileStorage.open(disk, DIRECTORY), snapshot_log_bytes_min)) as group:
        await group.read()
        yield group
