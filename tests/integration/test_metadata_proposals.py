"""Commands to any member of the metadata group: each is applied once, whoever leads and whoever dies."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from envelope.errors import DeadlinePassed, NotLeader, RequestError
from envelope.types import NodeId
from jetstream.log.os_disk import OsDisk
from metadata.catalog.events import NodeRegistered, Refused, StreamCreated
from metadata.node import metadata_group
from metadata.node.file_storage import FileStorage
from metadata.node.metadata_group import MetadataGroup
from metadata.node.peers import Address, PeerIdentity
from tests.support.catalogs import create, register
from tests.support.metadata_members import FAST, WAIT_SECONDS, listening
from tests.support.sockets import run, until


class Running:
    """One member with its catalogue."""

    def __init__(self, name: str, root: Path) -> None:
        self.node_id = NodeId(name)
        self._root = root / name
        found = listening(Address("127.0.0.1", 0))
        self.address = Address(*found.getsockname())
        found.close()
        self.group: MetadataGroup | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def metadata(self) -> MetadataGroup:
        assert self.group is not None, f"{self.node_id} does not run"
        return self.group

    def start(self, voters: dict[NodeId, Address]) -> None:
        storage = FileStorage.open(OsDisk(self._root), "metadata")
        self.group = MetadataGroup.voting(PeerIdentity("test", self.node_id), voters, storage, FAST)
        self._task = asyncio.create_task(self.group.member.run(listening(self.address)))

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._task = self.group = None


@contextlib.asynccontextmanager
async def three(root: Path) -> AsyncIterator[list[Running]]:
    members = [Running(name, root) for name in "abc"]
    voters = {member.node_id: member.address for member in members}
    for member in members:
        member.start(voters)
    try:
        await until(lambda: all(member.metadata.leader is not None for member in members))
        yield members
    finally:
        for member in members:
            await member.stop()


def leader_of(members: list[Running]) -> Running:
    [leader] = [member for member in members if member.node_id == member.metadata.leader]
    return leader


def test_any_member_takes_a_command_and_tells_what_became_of_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with three(tmp_path) as members:
            for number, member in enumerate(members, 1):
                applied = await member.metadata.propose(register())
                assert applied.events is not None
                [event] = applied.events
                assert isinstance(event, NodeRegistered)
                assert event.node.node_epoch == number
            applied = await members[0].metadata.propose(create())
            assert applied.events is not None
            assert isinstance(applied.events[0], StreamCreated)
            applied = await members[1].metadata.propose(create(subject="other.>"))
            assert applied.events is not None
            assert isinstance(applied.events[0], Refused)
            catalog = await leader_of(members).metadata.read()
            await until(lambda: all(m.metadata.catalog.applied == catalog.applied for m in members))
            assert all(member.metadata.catalog.streams() == catalog.streams() for member in members)

    run(test())


def test_a_read_is_for_the_leader(tmp_path: Path) -> None:
    async def test() -> None:
        async with three(tmp_path) as members:
            leader = leader_of(members)
            follower = next(member for member in members if member is not leader)
            with pytest.raises(NotLeader) as caught:
                await follower.metadata.read()
            assert caught.value.detail == {"leader": leader.node_id}

    run(test())


def test_every_command_is_applied_once_while_leaders_come_and_go(tmp_path: Path) -> None:
    async def test() -> None:
        async with three(tmp_path) as members:
            voters = {member.node_id: member.address for member in members}
            count = 0

            async def register_often(member: Running, until_stopped: asyncio.Event) -> None:
                nonlocal count
                while not until_stopped.is_set():
                    await member.metadata.propose(register(), WAIT_SECONDS)
                    count += 1

            for _ in range(3):
                leader = leader_of(members)
                stop = asyncio.Event()
                others = [member for member in members if member is not leader]
                before = count
                async with asyncio.TaskGroup() as tasks:
                    for member in others:
                        tasks.create_task(register_often(member, stop))
                    await until(lambda before=before: count > before + 5)  # type: ignore[misc] # a loop's own value
                    await leader.stop()
                    await until(lambda before=count: count > before + 5)  # type: ignore[misc] # as above
                    stop.set()
                leader.start(voters)
                await until(lambda: all(m.metadata.leader for m in members))
            catalog = await leader_of(members).metadata.read()
            node = catalog.node(NodeId("n1"))
            assert node is not None
            assert node.node_epoch == count, "each registration is one more start"

    run(test())


def test_without_a_majority_the_outcome_is_unknown_in_time(tmp_path: Path) -> None:
    async def test() -> None:
        async with three(tmp_path) as members:
            for member in members[1:]:
                await member.stop()
            with pytest.raises(DeadlinePassed):
                await members[0].metadata.propose(register(), deadline_seconds=0.2)

    run(test())


def test_a_command_that_fits_no_entry_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_group, "ENTRY_BYTES_MAX", 20)

    async def test() -> None:
        async with three(tmp_path) as members:
            with pytest.raises(RequestError, match="exceeds 20"):
                await members[0].metadata.propose(register())

    run(test())
