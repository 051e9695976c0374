"""Commands to any member of the metadata group: each is applied once, whoever leads and whoever dies."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from envelope.errors import DeadlinePassed, NotLeader, RequestError
from envelope.types import NodeId
from metadata.catalog.events import CommandRefused, NodeRegistered, StreamCreated
from metadata.node.catalogue import group as metadata_group
from tests.support.catalogs import create, register
from tests.support.group_members import Member
from tests.support.metadata_members import WAIT_SECONDS
from tests.support.sockets import run, until


@contextlib.asynccontextmanager
async def three(root: Path) -> AsyncIterator[list[Member]]:
    members = [Member(name, root) for name in "abc"]
    voters = {member.node_id: member.address for member in members}
    for member in members:
        member.start(voters)
    try:
        await until(lambda: all(member.group.leader is not None for member in members))
        yield members
    finally:
        for member in members:
            await member.stop()


def leader_of(members: list[Member]) -> Member:
    [leader] = [member for member in members if member.node_id == member.group.leader]
    return leader


def test_any_member_takes_a_command_and_tells_what_became_of_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with three(tmp_path) as members:
            for number, member in enumerate(members, 1):
                applied = await member.group.propose(register())
                assert applied.events is not None
                [event] = applied.events
                assert isinstance(event, NodeRegistered)
                assert event.node.node_epoch == number
            applied = await members[0].group.propose(create())
            assert applied.events is not None
            assert isinstance(applied.events[0], StreamCreated)
            applied = await members[1].group.propose(create(subject="other.>"))
            assert applied.events is not None
            assert isinstance(applied.events[0], CommandRefused)
            catalog = await leader_of(members).group.read()
            await until(lambda: all(m.group.catalog.applied == catalog.applied for m in members))
            assert all(member.group.catalog.streams() == catalog.streams() for member in members)

    run(test())


def test_a_read_is_for_the_leader(tmp_path: Path) -> None:
    async def test() -> None:
        async with three(tmp_path) as members:
            leader = leader_of(members)
            follower = next(member for member in members if member is not leader)
            with pytest.raises(NotLeader) as caught:
                await follower.group.read()
            assert caught.value.detail == {"leader": leader.node_id}

    run(test())


def test_every_command_is_applied_once_while_leaders_come_and_go(tmp_path: Path) -> None:
    async def test() -> None:
        async with three(tmp_path) as members:
            voters = {member.node_id: member.address for member in members}
            count = 0

            async def register_often(member: Member, until_stopped: asyncio.Event) -> None:
                nonlocal count
                while not until_stopped.is_set():
                    await member.group.propose(register(), WAIT_SECONDS)
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
                await until(lambda: all(m.group.leader for m in members))
            catalog = await leader_of(members).group.read()
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
                await members[0].group.propose(register(), deadline_seconds=0.2)

    run(test())


def test_a_command_that_fits_no_entry_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_group, "ENTRY_BYTES_MAX", 20)

    async def test() -> None:
        async with three(tmp_path) as members:
            with pytest.raises(RequestError, match="exceeds 20"):
                await members[0].group.propose(register())

    run(test())
