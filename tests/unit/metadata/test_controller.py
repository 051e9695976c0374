"""Who gets a lease, and which elections are proposed when."""

from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envelope.types import LeaderEpoch, MonotonicNs, NodeEpoch, NodeId, StreamName
from metadata.catalog.commands import DeleteStream
from metadata.controller.events import (
    Action,
    Elect,
    GrantLease,
    NodeHeard,
    NodeStopping,
    NodeUnheard,
    RefuseLease,
    RowsChanged,
    Tick,
)
from metadata.controller.machine import Controller
from tests.support.catalogs import apply, create, register
from tests.support.elections import LEASE, ORDERS, SETTINGS, A, B, C, Term, elections

RETRY: Final = SETTINGS.retry_interval_ns


# --- leases -------------------------------------------------------------------------------------------


def test_a_node_that_is_heard_gets_a_lease() -> None:
    term = Term(heard="")
    assert term.hear(A) == (GrantLease(A, NodeEpoch(1), LEASE),)
    assert term.hear(A) == (GrantLease(A, NodeEpoch(1), LEASE),)


def test_an_earlier_start_of_a_node_gets_no_lease_and_keeps_nobody_alive() -> None:
    term = Term()
    term.apply(register("a"))
    assert term.give(NodeHeard(A, NodeEpoch(1))) == (RefuseLease(A, NodeEpoch(2)),)


@pytest.mark.parametrize(("node", "node_epoch"), [("a", 2), ("x", 1)])
def test_a_start_that_is_not_registered_here_yet_is_not_answered(node: str, node_epoch: int) -> None:
    assert Term().give(NodeHeard(NodeId(node), NodeEpoch(node_epoch))) == ()


# --- a dead leader ------------------------------------------------------------------------------------


def test_a_leader_whose_lease_has_run_out_is_replaced_by_the_next_replica() -> None:
    term = Term()
    assert elections(term.after(LEASE - 1, B, C)) == []
    assert term.after(1) == (term.election(B),)


def test_an_isr_of_two_elects_the_other_when_the_leader_is_dead() -> None:
    term = Term("ab")
    assert elections(term.after(LEASE, B)) == [B]


def test_nobody_is_dead_before_the_term_is_a_lease_old() -> None:
    term = Term(heard="b")
    assert elections(term.after(LEASE - 1, B)) == []
    assert elections(term.after(1, B)) == [B]


def test_who_was_not_heard_in_this_term_is_not_elected() -> None:
    term = Term(heard="c")
    assert elections(term.after(LEASE, C)) == [C]


def test_who_was_heard_again_keeps_its_streams() -> None:
    term = Term()
    assert elections(term.after(3 * LEASE, A, B, C)) == []


def test_only_the_isr_is_elected_from() -> None:
    term = Term()
    term.shrink(A)
    assert elections(term.after(3 * LEASE, B, C)) == []
    assert elections(term.hear(A)) == [], "it leads still, under the same epoch"


def test_another_directory_than_the_one_that_was_in_sync_is_not_elected() -> None:
    term = Term("ab")
    term.shrink(A)
    term.apply(register("a", directory="empty"))
    assert elections(term.after(3 * LEASE, A, B)) == []
    back = register("a", restored=[term.row.incarnation])
    assert term.apply(back) == (term.election(A),)


def test_a_stream_without_a_leader_gets_one_when_a_member_of_its_isr_is_heard() -> None:
    catalog = Term("ab")
    catalog.apply(register("a"))
    later = Controller(catalog.catalog, catalog.now)
    assert elections(later.handle(Tick(), catalog.now)) == []
    assert elections(later.handle(NodeHeard(B, NodeEpoch(1)), catalog.now)) == [B]


def test_a_node_that_starts_anew_leads_again_at_once() -> None:
    term = Term("ab")
    term.shrink(A)
    assert term.apply(register("a")) == (term.election(A),)


def test_a_new_leader_that_is_dead_already_is_replaced() -> None:
    term = Term()
    (election,) = (action for action in term.after(LEASE, B, C) if isinstance(action, Elect))
    term.after(LEASE, C)
    assert elections(term.apply(election.command)) == [C]


def test_an_election_without_an_outcome_is_proposed_again_later() -> None:
    term = Term()
    assert elections(term.after(LEASE, B, C)) == [B]
    assert elections(term.after(RETRY - 1, B, C)) == []
    assert elections(term.after(1, B, C)) == [B]


def test_an_election_that_took_place_is_over() -> None:
    term = Term()
    (election,) = (action for action in term.after(LEASE, B, C) if isinstance(action, Elect))
    assert term.apply(election.command) == ()
    assert elections(term.after(3 * LEASE, B, C)) == []
    assert str(term.controller) == "controller dead=a open=0"


def test_a_deleted_stream_is_nobodys_concern() -> None:
    term = Term("ab")
    term.apply(register("a"))
    term.silent(B)
    assert term.apply(DeleteStream(ORDERS)) == ()
    assert elections(term.after(2 * LEASE, B)) == []


# --- a silent leader ----------------------------------------------------------------------------------


def test_a_majority_of_the_others_that_do_not_hear_the_leader_replaces_it() -> None:
    term = Term()
    assert term.silent(B) == ()
    assert term.silent(C) == (term.election(B),)


def test_an_isr_of_two_needs_one_report() -> None:
    term = Term("ab")
    assert term.silent(B) == (term.election(B),)


def test_who_is_not_alive_is_no_part_of_the_majority() -> None:
    term = Term(heard="ab")
    assert term.silent(B) == (term.election(B),)
    assert Term(heard="ac").silent(B) == ()


@pytest.mark.parametrize(("reporter", "epoch"), [(A, 1), (NodeId("x"), 1), (B, 0), (B, 2)])
def test_a_report_that_does_not_count_changes_nothing(reporter: NodeId, epoch: int) -> None:
    assert Term("ab").silent(reporter, epoch) == ()


def test_who_left_the_isr_has_no_say() -> None:
    term = Term()
    term.shrink(A, B)
    assert term.silent(C) == ()
    assert elections(term.silent(B)) == [B]


def test_reports_are_about_one_reign_and_grow_old() -> None:
    term = Term()
    term.silent(B)
    assert elections(term.after(SETTINGS.report_valid_ns, A, B, C)) == []
    assert term.silent(C) == ()
    assert elections(term.silent(B)) == [B]


def test_a_reporter_is_elected_only_if_it_may_lead() -> None:
    term = Term()
    term.give(NodeStopping(B, NodeEpoch(1)))
    term.silent(B)
    assert elections(term.silent(C)) == [C]


def test_asymmetric_report_livelock() -> None:
    """D19: two nodes that cannot reach each other, but are both heard, do not take turns."""
    term = Term("ab")
    (first,) = term.silent(B)
    assert isinstance(first, Elect)
    term.apply(first.command)
    assert term.row.leader == B
    turns = [turn for _ in range(5) for turn in elections(term.silent(A) + term.after(LEASE, A, B))]
    assert turns == []
    assert elections(term.after(LEASE, A)) == [A], "but a dead leader is replaced by whoever is left"


# --- a node that another does not hear ----------------------------------------------------------------


def unheard(term: Term, node: NodeId, reporter: NodeId) -> list[tuple[str, NodeId]]:
    actions = term.give(NodeUnheard(node, reporter))
    return [(action.command.stream, action.command.leader) for action in actions if isinstance(action, Elect)]


def test_a_node_is_reported_for_every_stream_that_it_leads_and_the_reporter_is_in_sync_with() -> None:
    term = Term()
    term.apply(create("all", nodes="abc", min_insync_replicas=1))
    term.apply(create("two", nodes="ac", min_insync_replicas=1))
    term.apply(create("others", nodes="bca", min_insync_replicas=1))
    assert unheard(term, A, B) == []
    assert unheard(term, A, C) == [("all", B), ("orders", B), ("two", C)]
    assert unheard(term, A, C) == [], "they are being elected"


def test_a_report_of_a_node_is_about_what_it_leads_now() -> None:
    term = Term()
    term.apply(create("gone", nodes="ab", min_insync_replicas=1))
    term.apply(create("kept", nodes="cb", min_insync_replicas=1))
    term.apply(DeleteStream(StreamName("gone")))
    term.apply(term.election(B).command)
    assert unheard(term, A, B) == unheard(term, A, C) == []
    assert unheard(term, B, A) == []
    assert unheard(term, B, C) == [("orders", A)]
    term.apply(register("c"))
    assert unheard(term, C, B) == [], "its reigns have ended"


def test_only_who_was_heard_within_a_lease_as_its_present_start_is_alive() -> None:
    term = Term(heard="ab")
    assert term.controller.alive(term.now) == frozenset((A, B))
    term.after(LEASE - 1, A)
    assert term.controller.alive(term.now) == frozenset((A, B))
    term.after(1, A)
    assert term.controller.alive(term.now) == frozenset((A,))
    term.apply(register("c"))
    assert term.controller.alive(term.now) == frozenset((A, C))


def test_an_election_under_way_is_not_proposed_again_when_its_cause_goes_and_comes() -> None:
    term = Term("ab")
    assert elections(term.after(LEASE, B)) == [B]
    assert term.hear(A) == (GrantLease(A, NodeEpoch(1), LEASE),)
    assert term.silent(B) == ()
    assert elections(term.after(RETRY, A, B)) == [B]


# --- a stopping node ----------------------------------------------------------------------------------


def test_a_stopping_node_hands_its_streams_over() -> None:
    term = Term()
    assert term.give(NodeStopping(A, NodeEpoch(1))) == (term.election(B),)


def test_a_stopping_node_is_not_elected_until_it_has_started_anew() -> None:
    term = Term("ab")
    term.give(NodeStopping(B, NodeEpoch(1)))
    assert term.give(NodeStopping(A, NodeEpoch(1))) == ()
    assert elections(term.apply(register("b"))) == [B]


def test_an_earlier_start_does_not_stop_the_present_one() -> None:
    term = Term()
    term.apply(register("b"))
    term.give(NodeStopping(B, NodeEpoch(1)))
    assert elections(term.after(LEASE, B, C)) == [B]


# --- any events ---------------------------------------------------------------------------------------

_nodes = st.sampled_from((A, B, C))
_steps = st.one_of(
    st.tuples(st.just("hear"), _nodes),
    st.tuples(st.just("silent"), _nodes),
    st.tuples(st.just("unheard"), _nodes),
    st.tuples(st.just("stop"), _nodes),
    st.tuples(st.just("restart"), _nodes),
    st.tuples(st.just("pass"), st.integers(1, 2 * LEASE)),
    st.tuples(st.just("apply"), st.just(A)),
)


@given(st.lists(_steps, max_size=60))
@settings(deadline=None)
def test_whatever_happens_the_catalogue_takes_what_is_proposed(steps: list[tuple[str, NodeId | int]]) -> None:
    """J1, J3: every election is acceptable when it is proposed, to a node that was heard within a lease."""
    term = Term()
    heard: dict[NodeId, int] = dict.fromkeys((A, B, C), term.now)
    asked: dict[LeaderEpoch, int] = {}
    proposed: list[Elect] = []
    for kind, value in steps:
        actions: tuple[Action, ...] = ()
        if isinstance(value, int):
            term.now = MonotonicNs(term.now + value)
            actions = term.give(Tick())
        elif kind == "hear":
            heard[value] = term.now
            actions = term.hear(value)
        elif kind in ("silent", "unheard"):
            report = NodeUnheard(term.row.leader or A, value)
            actions = term.silent(value) if kind == "silent" else term.give(report)
        elif kind == "stop":
            actions = term.give(NodeStopping(value, term.node_epoch(value)))
        elif kind == "restart":
            heard[value] = term.now
            actions = term.apply(register(value))
        elif proposed:
            actions = term.give(RowsChanged(apply(term.catalog, proposed.pop().command)))
        for action in actions:
            if isinstance(action, Elect):
                command = action.command
                assert command.leader in term.row.isr_nodes
                assert command.leader != term.row.leader
                assert command.node_epoch == term.node_epoch(command.leader)
                assert command.expected_leader_epoch == term.row.leader_epoch
                assert term.now < heard[command.leader] + LEASE
                assert term.now >= asked.get(command.expected_leader_epoch, 0)
                asked[command.expected_leader_epoch] = term.now + RETRY
                proposed.append(action)
