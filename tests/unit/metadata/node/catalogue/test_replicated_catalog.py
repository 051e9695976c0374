"""The catalogue as a replicated state machine: repeats, snapshots, and who waits for what."""

import asyncio
from dataclasses import replace

import pytest

from envelope.errors import CorruptDataError, DeadlinePassed, UnknownNode
from envelope.types import LogIndex, NodeEpoch, NodeId, Term
from metadata.catalog import snapshot as catalog_snapshot
from metadata.catalog.catalog import Catalog
from metadata.catalog.commands import (
    Command,
    NodeLevel,
    SetDefaultReplicas,
    SetFeatureLevel,
    encode_command,
)
from metadata.catalog.events import CommandRefused, Events, NodeRegistered
from metadata.features import LATEST_LEVEL
from metadata.node.catalogue.replicated_catalog import Applied, ReplicatedCatalog, last_registration
from metadata.raft.configuration import Configuration, encode_configuration
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


def test_a_change_of_members_is_no_command_and_none_is_proposed_under_its_name() -> None:
    state = ReplicatedCatalog(EMPTY)
    changing = Entry(LogIndex(1), Term(1), encode_configuration(Configuration((N1,))))
    state.apply([changing, entry(2, 7, register())])
    assert (state.catalog.applied, state.catalog.node(N1) is not None) == (2, True)
    assert not state.can_apply(changing.payload)
    assert state.can_apply(entry(3, 1, create()).payload)
    assert not state.can_apply(entry(3, 0, create()).payload)


def test_a_leader_takes_nothing_from_others_that_nodes_of_the_level_cannot_read() -> None:
    state = ReplicatedCatalog(EMPTY)
    growing, founding = entry(2, 8, SetDefaultReplicas(3)).payload, entry(1, 7, register())
    raising = entry(2, 9, SetFeatureLevel(LATEST_LEVEL, (NodeLevel(N1, NodeEpoch(1), LATEST_LEVEL),))).payload
    assert state.can_apply(founding.payload), "the first node brings its level"
    assert not state.can_apply(raising), "that node may be too old"
    state.apply([entry(1, 7, register(feature_level=None))])
    assert not state.can_apply(founding.payload)
    assert not state.can_apply(growing)
    assert state.can_apply(raising)
    state.apply([Entry(LogIndex(2), Term(1), raising)])
    assert state.can_apply(growing)
    assert not state.can_apply(encode_proposal(proposal_id(1), b'{"kind":"make_tea"}'))


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
        assert isinstance(events[0], CommandRefused)
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


class Heard:
    """A listener that notes what it hears, and what the catalogue says at that moment."""

    def __init__(self, state: ReplicatedCatalog) -> None:
        self.notes: list[object] = []
        self._state = state
        state.subscribe(self)

    def applied(self, events: Events) -> None:
        self.notes.append((self._state.catalog.applied, [type(event) for event in events]))

    def restored(self) -> None:
        self.notes.append((self._state.catalog.applied, "restored"))


def test_a_listener_hears_of_every_entry_that_said_something_and_before_the_proposer() -> None:
    async def test() -> None:
        state = ReplicatedCatalog(EMPTY)
        heard = Heard(state)
        proposer = state.outcome(proposal_id(2))
        proposer.add_done_callback(lambda _: heard.notes.append("proposer"))
        late = create("x", subject="y", replicas=3)
        state.apply([noop(1), entry(2, 1, register()), entry(3, 2, late), entry(4, 1, register())])
        await asyncio.sleep(0)
        assert heard.notes == [(2, [NodeRegistered]), (3, [CommandRefused]), "proposer"]

    run(test())


def test_a_catalogue_in_hand_goes_on_with_what_a_snapshot_brought() -> None:
    state = ReplicatedCatalog(EMPTY)
    in_hand = state.catalog
    heard = Heard(state)
    other = ReplicatedCatalog(EMPTY)
    other.apply([entry(1, 7, register()), entry(2, 8, create())])
    state.restore(Snapshot(LogIndex(2), Term(1), other.snapshot()))
    assert state.catalog is in_hand
    assert in_hand.streams() == other.catalog.streams()
    assert heard.notes == [(2, "restored")]
    state.apply([entry(3, 9, register())])
    assert in_hand.applied == 3
    assert other.catalog.applied == 2


def test_an_answer_is_the_first_event_or_raises() -> None:
    catalog = Catalog()
    events = catalog.apply(LogIndex(1), register())
    assert Applied(LogIndex(1), events).answer() is events[0]
    refused = catalog.apply(LogIndex(2), create("x", nodes=("n9",)))
    with pytest.raises(UnknownNode):
        Applied(LogIndex(2), refused).answer()
    with pytest.raises(DeadlinePassed, match="entry 3"):
        Applied(LogIndex(3), None).answer()


def test_entries_and_snapshots_from_before_proposals_had_names_go_on() -> None:
    old = Catalog()
    old.apply(LogIndex(1), register())
    state = ReplicatedCatalog(Snapshot(LogIndex(1), Term(1), catalog_snapshot.encode(old)))
    state.apply([Entry(LogIndex(2), Term(1), encode_command(create())), entry(3, 7, register())])
    assert state.catalog.count_streams() == 1
    assert not state.can_apply(encode_command(create())), "nobody proposes so any more"
    node = state.catalog.node(N1)
    assert node is not None
    assert node.node_epoch == 2


@pytest.mark.parametrize("name", [b"{" * 16, b'{"api_prefix":"j', b'{"' + bytes(14)])
def test_a_name_that_begins_as_json_does_is_a_name_all_the_same(name: bytes) -> None:
    state = ReplicatedCatalog(EMPTY)
    payload = encode_proposal(ProposalId(name), encode_command(register()))
    state.apply([Entry(LogIndex(1), Term(1), payload), Entry(LogIndex(2), Term(1), payload)])
    node = state.catalog.node(N1)
    assert node is not None
    assert node.node_epoch == 1, "the second is a repeat, known by its name"


def test_what_a_node_last_said_of_itself_is_found_in_entries_or_snapshot() -> None:
    at_rack = [replace(register(), rack=rack) for rack in "abc"]
    state = ReplicatedCatalog(EMPTY)
    state.apply([entry(1, 1, at_rack[0])])
    snapshot = Snapshot(LogIndex(1), Term(1), state.snapshot())
    other = entry(4, 4, register("n2", "another"))
    for command in (create("register_node"), register("n2", "another")):
        found = last_registration(snapshot, [entry(2, 2, command)], N1)
        assert found == state.catalog.node(N1)
    assert last_registration(EMPTY, [other], N1) is None
    assert (
        last_registration(snapshot, [entry(2, 2, at_rack[1]), entry(3, 3, at_rack[2]), other], N1)
        == at_rack[2]
    )


def test_a_node_whose_name_is_that_of_a_command_is_no_registration() -> None:
    named = Configuration((N1, NodeId("register_node")))
    changing = Entry(LogIndex(1), Term(1), encode_configuration(named))
    assert last_registration(EMPTY, [changing], N1) is None


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
