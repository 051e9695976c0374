"""The catalogue as a replicated state machine: repeats, snapshots, and who waits for what."""

import asyncio

import pytest

from envelope.errors import CorruptDataError
from envelope.types import LogIndex, NodeId, Term
from metadata.catalog.commands import Command, encode_command
from metadata.catalog.events import Refused
from metadata.node.replicated_catalog import Applied, ReplicatedCatalog
from metadata.raft.proposals import ProposalId, encode_proposal
from metadata.raft.state import Entry, Snapshot
from tests.support.catalogs import create, register
from tests.support.sockets import run

EMPTY = Snapshot(LogIndex(0), Term(0), b"")
N1 = NodeId("n1")


def proposal_id(number: int) -> ProposalId:
    return ProposalId(number.to_bytes(16, "little"))


def entry(index: int, number: int, command: Command) -> Entry:
    payload = encode_proposal(proposal_id(number), encode_command(command))
    return Entry(LogIndex(index), Term(1), payload)


def noop(index: int) -> Entry:
    return Entry(LogIndex(index), Term(1), b"")


def test_commands_are_applied_and_a_repeat_is_passed_over() -> None:
    state = ReplicatedCatalog(EMPTY)
    state.apply([noop(1), entry(2, 7, register()), entry(3, 8, create()), entry(4, 7, register())])
    assert state.catalog.applied == 4
    node = state.catalog.node(N1)
    assert node is not None
    assert node.node_epoch == 1, "a second registration would be a second start"
    assert state.catalog.count_streams() == 1


def test_who_waits_is_told_what_became_of_it() -> None:
    async def test() -> None:
        state = ReplicatedCatalog(EMPTY)
        first, refused, repeat = (state.outcome(proposal_id(number)) for number in (1, 2, 1))
        assert first is repeat
        state.apply([entry(1, 1, register()), entry(2, 2, create("x", subject="y", replicas=3))])
        assert (await first).index == 1
        assert (await first).events
        events = (await refused).events
        assert events is not None
        assert isinstance(events[0], Refused)
        again = state.outcome(proposal_id(1))
        state.apply([entry(3, 1, register())])
        assert await again == Applied(LogIndex(1), None)

    run(test())


def test_a_snapshot_carries_catalogue_and_repeats() -> None:
    async def test() -> None:
        state = ReplicatedCatalog(EMPTY)
        state.apply([noop(1), entry(2, 7, register()), entry(3, 8, create())])
        snapshot = Snapshot(LogIndex(3), Term(1), state.snapshot())
        other = ReplicatedCatalog(EMPTY)
        waiting = other.outcome(proposal_id(8))
        unknown = other.outcome(proposal_id(9))
        other.restore(snapshot)
        assert await waiting == Applied(LogIndex(3), None)
        assert not unknown.done()
        for restored in (other, ReplicatedCatalog(snapshot)):
            assert restored.snapshot() == state.snapshot()
            restored.apply([entry(4, 7, register())])
            assert restored.catalog.nodes() == state.catalog.nodes()

    run(test())


def test_an_index_is_waited_for() -> None:
    async def test() -> None:
        state = ReplicatedCatalog(EMPTY)
        async with asyncio.TaskGroup() as tasks:
            third = tasks.create_task(state.reached(LogIndex(3)))
            await state.reached(LogIndex(0))
            state.apply([noop(1), noop(2)])
            await asyncio.sleep(0)
            assert not third.done()
            state.apply([noop(3)])
        assert third.done()

    run(test())


def test_a_damaged_snapshot_is_refused() -> None:
    state = ReplicatedCatalog(EMPTY)
    state.apply([entry(1, 7, register())])
    good = state.snapshot()
    for place in range(len(good)):
        damaged = bytearray(good)
        damaged[place] ^= 1
        with pytest.raises(CorruptDataError):
            ReplicatedCatalog(Snapshot(LogIndex(1), Term(1), bytes(damaged)))
    for length in range(len(good)):
        with pytest.raises(CorruptDataError):
            ReplicatedCatalog(Snapshot(LogIndex(1), Term(1), good[:length]))
    with pytest.raises(CorruptDataError, match="holds the catalogue of 1"):
        ReplicatedCatalog(Snapshot(LogIndex(2), Term(1), good))


def test_an_entry_that_nobody_could_have_proposed_is_refused() -> None:
    state = ReplicatedCatalog(EMPTY)
    assert state.can_apply(entry(1, 1, register()).payload)
    for payload in (b"", b"short", encode_proposal(proposal_id(1), b"no command")):
        assert not state.can_apply(payload)
    with pytest.raises(CorruptDataError):
        state.apply([Entry(LogIndex(1), Term(1), b"short")])
    with pytest.raises(CorruptDataError):
        state.apply([Entry(LogIndex(1), Term(1), encode_proposal(proposal_id(1), b"no command"))])
