"""A metadata group of one: what a node without peers keeps its catalogue in."""

import asyncio
import json
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from envelope.errors import (
    CorruptDataError,
    DeadlinePassed,
    DiskFull,
    FeatureLevelTooLow,
    FsyncFailed,
    NodesTooOld,
    StreamExists,
    UnknownStream,
    UnsupportedFeatureLevel,
)
from envelope.types import LogIndex, NodeEpoch, NodeId, StreamName, Term
from jetstream.log.disk.os_disk import OsDisk
from metadata.catalog import snapshot
from metadata.catalog.catalog import Catalog
from metadata.catalog.commands import (
    DeleteStream,
    NodeLevel,
    RegisterNode,
    SetDefaultReplicas,
    SetFeatureLevel,
    encode_command,
)
from metadata.catalog.events import NodeRegistered, StreamCreated, StreamFound
from metadata.features import LATEST_LEVEL
from metadata.node.catalogue.group import MetadataQuorum
from metadata.node.members.changing_member import AsVoter
from metadata.node.peers.addresses import PeerAddresses
from metadata.node.peers.dialling import PeerIdentity
from metadata.node.storage.disk_port import MetadataDisk
from metadata.node.storage.file_storage import FileStorage
from metadata.node.storage.port import Storage, Stored
from metadata.node.voter import voter_disk
from metadata.raft.state import Entry, HardState, Snapshot
from tests.support.catalogs import create, register, update
from tests.support.faulty_storage import FaultyStorage
from tests.support.memory_disk import MemoryDisk
from tests.support.metadata_members import WAIT_SECONDS
from tests.support.single_voters import (
    DIRECTORY,
    GOLDEN,
    N1,
    alone,
    golden_catalog,
    golden_copy,
    opened,
    rows,
    running,
)
from tests.support.sockets import run, until


def stored(disk: MetadataDisk) -> Stored:
    storage = FileStorage.open(disk, DIRECTORY)
    try:
        return storage.load()
    finally:
        storage.close()


async def opened_in(disk: MetadataDisk, *, create: bool) -> MetadataQuorum:
    begin = AsVoter(N1, frozenset((N1,)))
    storage = partial(FileStorage.open, disk, DIRECTORY, create=create)
    return await MetadataQuorum.open(
        PeerIdentity("test", N1), begin, PeerAddresses({}), N1, lambda _: storage()
    )


@pytest.mark.parametrize("kind", ["memory", "os"])
def test_what_was_proposed_is_applied_now_and_after_a_restart(kind: str, tmp_path: Path) -> None:
    disk: MetadataDisk = MemoryDisk() if kind == "memory" else OsDisk(tmp_path)

    async def test() -> None:
        async with alone(disk) as group:
            assert group.leader == N1
            assert isinstance((await group.propose(register())).answer(), NodeRegistered)
            assert isinstance((await group.propose(create("orders"))).answer(), StreamCreated)
            assert isinstance((await group.propose(create("orders"))).answer(), StreamFound)
            refused = await group.propose(create("orders", ack="none"))
            with pytest.raises(StreamExists):
                refused.answer()
            before = rows(group.catalog)
        async with alone(disk) as group:
            assert rows(group.catalog) == before

    run(test())


class GatedStorage(FaultyStorage):
    """A storage whose appends wait at a gate, as before a slow disk."""

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage)
        self.gate = threading.Event()
        self.gate.set()
        self.appends = 0

    def append(self, entries: Sequence[Entry], hard_state: HardState | None = None) -> None:
        assert self.gate.wait(WAIT_SECONDS)
        self.appends += 1
        super().append(entries, hard_state)


def test_commands_that_gather_behind_one_write_cost_one_more() -> None:
    async def test() -> None:
        storage = GatedStorage(FileStorage.open(MemoryDisk(), DIRECTORY))
        async with running(opened(storage)) as group:
            await group.propose(register())
            before = storage.appends
            storage.gate.clear()
            created = [group.propose(create(f"s{number}", f"l{number}")) for number in range(100)]
            async with asyncio.TaskGroup() as tasks:
                proposals = [tasks.create_task(proposal) for proposal in created]
                await asyncio.sleep(0)
                storage.gate.set()
            assert all(isinstance(proposal.result().answer(), StreamCreated) for proposal in proposals)
            assert storage.appends - before <= 2
            assert group.catalog.count_streams() == 100

    run(test())


def test_every_start_is_a_new_term_with_its_own_vote() -> None:
    disk = MemoryDisk()

    async def start() -> None:
        async with alone(disk):
            pass

    for term in (1, 2, 3):
        run(start())
        assert stored(disk).hard_state == HardState(Term(term), N1)
        assert stored(disk).entries[-1].term == term


def test_a_long_log_becomes_a_snapshot_and_the_catalogue_stays_the_same() -> None:
    disk = MemoryDisk()

    async def test() -> None:
        async with alone(disk, snapshot_log_bytes_min=4096) as group:
            await group.propose(register())
            await group.propose(create("orders"))
            for turn in range(200):
                await group.propose(update("orders", labels={"turn": str(turn)}))
            before = rows(group.catalog)
        assert stored(disk).snapshot.index > 100
        assert len(stored(disk).entries) < 50
        async with alone(disk) as group:
            assert rows(group.catalog) == before
            stream = group.catalog.stream(StreamName("orders"))
            assert stream is not None
            assert stream.config.labels == {"turn": "199"}

    run(test())


def test_a_log_does_not_grow_over_many_short_runs() -> None:
    disk = MemoryDisk()

    async def start() -> None:
        async with alone(disk, snapshot_log_bytes_min=2048) as group:
            await group.propose(register())

    for _ in range(60):
        run(start())
    assert len(stored(disk).entries) < 25


def test_a_full_disk_delays_a_proposal_and_takes_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(voter_disk, "FULL_DISK_RETRY_SECONDS", 0.01)
    disk = MemoryDisk()

    async def test() -> None:
        async with alone(disk) as group:
            await group.propose(register())
            disk.capacity_bytes = 0
            with pytest.raises(DeadlinePassed):
                await group.propose(create("orders"), deadline_seconds=0.05)
            assert group.catalog.stream(StreamName("orders")) is None
            with pytest.raises(DiskFull):
                await group.propose(create("others"))
            disk.capacity_bytes = None
            await until(lambda: group.catalog.stream(StreamName("orders")) is not None)
            assert isinstance((await group.propose(create("orders"))).answer(), StreamFound)
        async with alone(disk) as group:
            assert group.catalog.count_streams() == 1

    run(test())


def test_a_failing_disk_ends_the_group_with_its_error() -> None:
    async def test() -> None:
        storage = FaultyStorage(FileStorage.open(MemoryDisk(), DIRECTORY))
        group = opened(storage)

        async def fail() -> None:
            await group.propose(register())
            storage.broken = True
            await group.propose(create("orders"), deadline_seconds=0.1)

        ended = await asyncio.gather(group.run(None), fail(), return_exceptions=True)
        assert [type(outcome) for outcome in ended] == [FsyncFailed, DeadlinePassed]

    run(test())


def test_a_group_that_never_ran_can_be_closed() -> None:
    disk = MemoryDisk()

    async def test() -> None:
        for create_it in (True, False):
            group = await opened_in(disk, create=create_it)
            await group.stop()
            await group.stop()

    run(test())
    assert stored(disk).entries == ()


def test_a_log_that_no_catalogue_wrote_ends_the_group() -> None:
    disk = MemoryDisk()
    storage = FileStorage.open(disk, DIRECTORY)
    storage.append([Entry(LogIndex(1), Term(1), b"make tea")], HardState(Term(1), N1))
    storage.close()

    async def test() -> None:
        group = opened(FileStorage.open(disk, DIRECTORY))
        with pytest.raises(CorruptDataError, match="no id"):
            await group.run(None)

    run(test())


def test_what_older_nodes_could_not_read_is_refused_and_is_in_no_log() -> None:
    disk = MemoryDisk()

    async def test() -> None:
        async with alone(disk) as group:
            await group.propose(register("n1", feature_level=None))
            before = group.catalog.applied
            with pytest.raises(
                FeatureLevelTooLow, match="a default number of replicas for new streams needs"
            ):
                await group.propose(SetDefaultReplicas(3))
            with pytest.raises(NodesTooOld, match="node n1 has not said what it can"):
                await group.propose(SetFeatureLevel(LATEST_LEVEL, ()))
            await group.catch_up()
            assert group.catalog.applied == before + 1, "that wait is an entry, and nothing else"

    run(test())


def test_a_voter_stops_at_a_level_that_it_cannot_and_again_at_every_start() -> None:
    disk = MemoryDisk()
    said = (NodeLevel(NodeId("n1"), NodeEpoch(1), LATEST_LEVEL + 1),)

    async def raise_the_level(group: MetadataQuorum) -> None:
        await group.propose(register("n1"))
        await group.propose(SetFeatureLevel(LATEST_LEVEL + 1, said), deadline_seconds=None)

    async def test() -> None:
        words = f"can feature level {LATEST_LEVEL}, and the cluster is at {LATEST_LEVEL + 1}"
        async with asyncio.TaskGroup() as tasks:
            group = opened(FileStorage.open(disk, DIRECTORY))
            proposing = tasks.create_task(raise_the_level(group))
            with pytest.raises(UnsupportedFeatureLevel, match=words):
                await group.run(None)
            proposing.cancel()
        for _ in range(2):
            with pytest.raises(UnsupportedFeatureLevel, match=words):
                await opened(FileStorage.open(disk, DIRECTORY)).run(None)

    run(test())


@pytest.mark.parametrize("entries", [(), (register(),)])
def test_a_snapshot_of_another_index_is_refused_and_the_files_are_closed(
    entries: tuple[RegisterNode, ...], tmp_path: Path
) -> None:
    disk = OsDisk(tmp_path)
    storage = FileStorage.open(disk, DIRECTORY)
    storage.append((), HardState(Term(1), N1))
    storage.compact(Snapshot(LogIndex(7), Term(1), snapshot.encode(Catalog())))
    storage.append([Entry(LogIndex(8), Term(1), encode_command(entry)) for entry in entries])
    storage.close()

    async def open_it() -> None:
        with pytest.raises(CorruptDataError, match="snapshot 7 holds the catalogue of 0"):
            await opened_in(disk, create=False)

    def open_files() -> list[str]:
        links = [file for file in Path("/proc/self/fd").iterdir() if file.is_symlink()]
        return [str(file.readlink()) for file in links if str(file.readlink()).startswith(f"{tmp_path}/")]

    before = open_files()
    run(open_it())
    assert open_files() == before


def test_a_log_that_must_be_there_is_not_begun_anew() -> None:
    async def test() -> None:
        with pytest.raises(CorruptDataError, match="missing"):
            await opened_in(MemoryDisk(), create=False)

    run(test())


# --- directories from before proposals had names ------------------------------------------------------


@pytest.mark.parametrize("name", GOLDEN)
def test_a_directory_from_before_proposals_had_names_goes_on(name: str, tmp_path: Path) -> None:
    disk = OsDisk(golden_copy(name, tmp_path / "disk"))
    expected = golden_catalog()
    assert expected.count_streams() == 1

    async def test() -> None:
        async with alone(disk) as group:
            assert rows(group.catalog) == rows(expected)
            group.catalog.audit()
            with pytest.raises(UnknownStream):
                (await group.propose(DeleteStream(StreamName("gone")))).answer()
            await group.propose(update("orders", labels={"turn": "now"}))
            before = rows(group.catalog)
        async with alone(disk, snapshot_log_bytes_min=1) as group:
            assert rows(group.catalog) == before
            await group.propose(register("n1", "0f3a", feature_level=None))
            after = rows(group.catalog)
        assert stored(disk).snapshot.payload[:4] == b"JSRM", "old and new entries went into one snapshot"
        async with alone(disk) as group:
            assert rows(group.catalog) == after
            assert group.catalog.applied > expected.applied

    run(test())


def test_the_golden_directories_are_of_the_old_kind(tmp_path: Path) -> None:
    """Or the test above would show nothing."""
    for name in GOLDEN:
        found = stored(OsDisk(golden_copy(name, tmp_path / name)))
        assert all(json.loads(entry.payload) for entry in found.entries)
        assert found.snapshot.payload[:4] == (b"JSCS" if name.endswith("snapshot") else b"")
