"""Observers of a metadata group over real connections: they keep up, propose, and need the token."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from envelope.errors import CorruptDataError, NotLeader
from envelope.types import LogIndex, NodeId, StreamName, Term
from metadata.catalog.events import NodeRegistered
from metadata.features import LATEST_LEVEL
from metadata.node.peers.dialling import Address
from metadata.raft.messages.observer_messages import CommittedEntries, Observe, VoterStatus
from metadata.raft.messages.voter_messages import Heartbeat
from metadata.raft.messages.wire import MessageReader, Sent, encode
from tests.support.catalogs import create, register
from tests.support.group_members import TOKEN, Member
from tests.support.metadata_members import WAIT_SECONDS
from tests.support.sockets import run, until

O1, O2 = NodeId("o1"), NodeId("o2")


class Scene:
    """Voters a, b, c, which run, and observers o1, o2, which do not yet."""

    def __init__(self, root: Path) -> None:
        self.voters = [Member(name, root) for name in "abc"]
        self.observers = [Member(name, root) for name in (O1, O2)]
        self.addresses = {member.node_id: member.address for member in self.voters}

    def voter(self, node_id: NodeId | None) -> Member:
        return next(member for member in self.voters if member.node_id == node_id)

    async def observer(self, number: int = 0) -> Member:
        """Start an observer; returns when it knows who leads."""
        member = self.observers[number]
        member.start(self.addresses)
        async with asyncio.timeout(WAIT_SECONDS):
            await member.group.led()
        return member

    async def until_equal(self, member: Member) -> None:
        """Wait until a member has applied as much as the leader."""
        await until(
            lambda: (
                member.group.catalog.applied
                == max(voter.group.catalog.applied for voter in self.voters if voter.found)
            )
        )


@contextlib.asynccontextmanager
async def scene(root: Path, snapshot_bytes: int = 1 << 30) -> AsyncIterator[Scene]:
    found = Scene(root)
    for member in found.voters:
        member.start(found.addresses, snapshot_bytes=snapshot_bytes)
    try:
        await until(lambda: all(member.group.leader is not None for member in found.voters))
        yield found
    finally:
        for member in (*found.voters, *found.observers):
            await member.stop()


def test_an_observer_has_the_catalogue_and_has_commands_applied(tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path) as found:
            await found.voters[0].group.propose(register("n1"))
            observer = await found.observer()
            answer = (await observer.group.propose(register("n2"), WAIT_SECONDS)).answer()
            assert isinstance(answer, NodeRegistered), "events, and not only that it was applied"
            assert [node.node_id for node in observer.group.catalog.nodes()] == ["n1", "n2"]
            assert observer.group.voters == {"a", "b", "c"}
            assert not observer.group.is_voter
            assert observer.group.leader == found.voters[0].group.leader
            assert observer.group.term == found.voters[0].group.term
            assert observer.group.problem is None
            with pytest.raises(NotLeader, match="leads the metadata log"):
                await observer.group.read()

    run(test())


def test_one_that_is_far_behind_is_given_the_state_and_then_what_follows(tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path, snapshot_bytes=2_000) as found:
            for number in range(40):
                await found.voters[0].group.propose(register(f"n{number}"))
            observer = await found.observer()
            await found.until_equal(observer)
            assert len(observer.group.catalog.nodes()) == 40
            for number in range(40):
                await observer.group.propose(register(f"m{number}"))
            assert len(observer.group.catalog.nodes()) == 80
            assert observer.group.catalog.nodes() == found.voters[0].group.catalog.nodes()

    run(test())


def test_observers_go_on_with_other_voters_when_the_leader_ends(tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path) as found:
            observers = [await found.observer(number) for number in (0, 1)]
            for number in range(3):
                leader = found.voter(observers[0].group.leader)
                await leader.stop()
                applied = await observers[0].group.propose(register(f"n{number}"), WAIT_SECONDS)
                applied.answer()
                await found.until_equal(observers[1])
                assert observers[1].group.leader != leader.node_id
                leader.start(found.addresses)
                await found.until_equal(leader)
            assert [node.node_id for node in observers[1].group.catalog.nodes()] == ["n0", "n1", "n2"]

    run(test())


def test_without_a_majority_an_observer_says_so_and_goes_on_when_there_is_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with scene(tmp_path) as found:
            observer = await found.observer()
            for member in found.voters[:2]:
                await member.stop()
            await until(lambda: observer.group.problem == "the voters of the metadata log have no leader")
            await found.voters[2].stop()
            await until(lambda: observer.group.problem == "no voter of the metadata log answers: a, b, c")
            assert "waiting for a voter of the metadata log voters=a,b,c" in caplog.text
            for member in found.voters:
                member.start(found.addresses)
            await until(lambda: observer.group.problem is None)
            (await observer.group.propose(register("n1"), WAIT_SECONDS)).answer()

    run(test())


def test_voters_that_have_another_log_stop_an_observer_and_give_it_to_the_next_start(tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path / "first") as first:
            observer = await first.observer()
            await observer.group.propose(register("n1"), WAIT_SECONDS)
            applied = observer.group.catalog.applied
            others = Scene(tmp_path / "second")
            for old, new in zip(first.voters, others.voters, strict=True):
                await old.stop()
                new.address = old.address
            for new in others.voters:
                new.start(first.addresses)
            try:
                for _ in range(3):  # restarts, so that its terms are other ones
                    await until(lambda: any(m.group.leader for m in others.voters))
                    leader = next(m.group.leader for m in others.voters if m.group.leader)
                    await others.voter(leader).stop()
                    others.voter(leader).start(first.addresses)
                for number in range(applied + 3):
                    await others.voters[0].group.propose(create(f"s{number}"), WAIT_SECONDS)
                assert observer.task is not None
                await asyncio.wait([observer.task], timeout=WAIT_SECONDS)
                with pytest.raises(CorruptDataError, match="that is another log"):
                    observer.task.result()
                await observer.stop()
                again = await first.observer()
                await until(lambda: again.group.catalog.applied == others.voters[0].group.catalog.applied)
                assert again.group.catalog.stream(StreamName("n1")) is None
                assert again.group.catalog.nodes() == others.voters[0].group.catalog.nodes()
            finally:
                for member in others.voters:
                    await member.stop()

    run(test())


# --- who is let in, and what may be said ----------------------------------------------------------------

GREETING: dict[str, Any] = {
    "protocol": 1,
    "cluster": "test",
    "source": O1,
    "target": "a",
    "token": TOKEN,
    "purpose": "observer",
    "feature_level": LATEST_LEVEL,
}


@contextlib.asynccontextmanager
async def dialled(
    at: Address, **change: object
) -> AsyncIterator[tuple[dict[str, Any], asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection that has greeted, and what it was answered."""
    reader, writer = await asyncio.open_connection(at.host, at.port)
    try:
        writer.write(json.dumps(GREETING | change).encode() + b"\n")
        async with asyncio.timeout(WAIT_SECONDS):
            yield json.loads(await reader.readline()), reader, writer
    finally:
        writer.transport.abort()


GREETED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"token": "wrong"}, {"error": "the token is not right"}),
    ({"token": None}, {"error": "the token is not right"}),
    ({"cluster": "other"}, {"error": "this is cluster test, not other"}),
    ({"source": "b"}, {}),
    (
        {"purpose": "metadata"},
        {"error": "o1 is no other voter of this cluster, as far as is known here", "later": True},
    ),
]


def test_an_observer_is_let_in_with_the_token_and_as_nothing_else(tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path) as found:
            for change, answer in GREETED:
                async with dialled(found.addresses[NodeId("a")], **change) as (got, _, _):
                    assert got == answer, change

    run(test())


def test_nobody_observes_an_observer(tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path) as found:
            observer = await found.observer()
            async with dialled(observer.address, source="o2", target=O1) as (got, _, _):
                assert got == {"error": "o1 has no vote, so o2 cannot observe it", "later": True}

    run(test())


class Heard:
    """What a voter says on one connection, by kind: how often it says who leads is a matter of time."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self.answers: list[Sent] = []
        self.statuses: list[VoterStatus] = []
        self._reader = reader
        self._messages = MessageReader(NodeId("a"), O1)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            while not condition():
                data = await self._reader.read(1 << 16)
                assert data, "the voter has closed the connection"
                for message in self._messages.feed(data):
                    if isinstance(message, VoterStatus):
                        self.statuses.append(message)
                    else:
                        self.answers.append(message)


def test_a_question_is_answered_once_and_again_when_there_is_more(tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path) as found:
            a = found.voters[0].group
            await a.propose(register("n1"))
            async with dialled(found.voters[0].address) as (_, reader, writer):
                heard = Heard(reader)
                writer.write(encode(Observe(O1, NodeId("a"), LogIndex(0))))
                await heard.until(lambda: bool(heard.answers and heard.statuses))
                assert heard.statuses[0] == VoterStatus(NodeId("a"), O1, a.term, a.leader or NodeId(""))
                [first] = heard.answers
                assert isinstance(first, CommittedEntries)
                assert first.entries[0].index == 1
                last = first.entries[-1]
                assert last.index == a.catalog.applied
                await a.propose(register("n2"))
                told = len(heard.statuses)
                await heard.until(lambda: len(heard.statuses) >= told + 3)
                assert heard.answers == [first], "one question, one answer"
                writer.write(encode(Observe(O1, NodeId("a"), last.index)))
                await heard.until(lambda: len(heard.answers) == 2)
                second = heard.answers[1]
                assert isinstance(second, CommittedEntries)
                assert (second.previous_index, second.previous_term) == (last.index, last.term)
                writer.write(encode(Observe(O1, NodeId("a"), second.entries[-1].index)))
                await a.propose(register("n3"))
                await heard.until(lambda: len(heard.answers) == 3)

    run(test())


def test_an_observer_that_speaks_like_a_voter_is_cut_off(tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path) as found:
            term = found.voters[0].group.term
            async with dialled(found.voters[0].address) as (_, reader, writer):
                writer.write(encode(Heartbeat(O1, NodeId("a"), Term(term + 100), LogIndex(0), 1)))
                async with asyncio.timeout(WAIT_SECONDS):
                    with contextlib.suppress(ConnectionError):
                        while await reader.read(1 << 16):
                            pass
            assert found.voters[0].group.term == term

    run(test())


def test_an_observer_that_does_not_read_is_owed_one_answer_and_holds_up_nobody(tmp_path: Path) -> None:
    async def test() -> None:
        async with scene(tmp_path) as found:
            group = found.voters[0].group
            async with dialled(found.voters[0].address) as (_, _, writer):
                writer.transport.pause_reading()  # type: ignore[attr-defined]  # asyncio's stub leaves it out
                writer.write(encode(Observe(O1, NodeId("a"), LogIndex(0))))
                for number in range(300):
                    await group.propose(register(f"n{number % 7}"))
                observers = group.member.part._observers  # type: ignore[attr-defined]  # how much is kept of it
                unsent = observers._outlets._writers[O1].transport.get_write_buffer_size()
                assert unsent < 100_000
                assert len(observers._questions) <= 1

    run(test())
