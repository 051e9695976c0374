"""Leaders that were not in sync: only if the stream or an operator says so, and never unnoticed."""

import pytest

from envelope.errors import (
    InvalidConfig,
    JetstreamError,
    NotReplica,
    StreamHasLeader,
    UnavailableError,
    UnknownStream,
)
from envelope.types import LeaderEpoch, NodeEpoch, NodeId, StreamName, TimestampUs
from metadata.catalog.commands import ChangeLeader, ReassignReplicas
from metadata.catalog.events import CommandRefused, LeaderChanged, UncleanlyElected
from metadata.catalog.tables import UncleanElection
from metadata.controller.events import Elect, NodeStopping
from tests.support.catalogs import CREATED, apply, catalog_of, create, refusal, register, update
from tests.support.elections import LEASE, ORDERS, A, B, C, Term, elections

D = NodeId("d")


def ordered(term: Term, node: NodeId) -> ChangeLeader:
    command = term.controller.ordered_election(ORDERS, node, term.now)
    assert isinstance(command, ChangeLeader), command
    return command


def refused(term: Term, node: NodeId) -> JetstreamError:
    answer = term.controller.ordered_election(ORDERS, node, term.now)
    assert isinstance(answer, CommandRefused)
    return answer.exception()


# --- by the stream's configuration --------------------------------------------------------------------


def test_an_unclean_election_waits_until_all_of_the_isr_is_dead() -> None:
    term = Term(unclean_election=True)
    term.shrink(A, B)
    assert elections(term.after(LEASE, B, C)) == [B]
    term = Term(unclean_election=True)
    term.shrink(A)
    assert elections(term.after(LEASE - 1, B, C)) == []
    assert term.after(1) == (term.election(B, unclean=True),)


def test_without_the_setting_a_stream_stays_offline_until_it_is_set() -> None:
    term = Term()
    term.shrink(A)
    assert elections(term.after(3 * LEASE, B, C)) == []
    assert term.apply(update(ORDERS, unclean_election=True)) == (term.election(B, unclean=True),)


def test_an_empty_disk_never_leads_by_itself() -> None:
    term = Term(unclean_election=True)
    term.shrink(A)
    assert term.apply(register("a", directory="empty")) == (term.election(B, unclean=True),)
    term = Term(unclean_election=True)
    term.shrink(A)
    term.apply(register("b", directory="empty"))
    assert term.row.blank == (B,)
    assert elections(term.after(LEASE, B, C)) == [C], "b may hold nothing"
    term = Term("ab", unclean_election=True)
    term.shrink(A)
    term.apply(register("b", directory="empty"))
    assert elections(term.after(3 * LEASE, B)) == []
    assert ordered(term, B).unclean, "an operator may say so"


def test_a_disk_counts_again_once_it_was_in_sync_or_is_the_one_that_is() -> None:
    term = Term("ab", unclean_election=True)
    term.shrink(A)
    term.apply(register("b", directory="new"))
    assert list(term.row.blank) == [B]
    term.shrink(A, B)
    assert list(term.row.blank) == []
    term.apply(register("b", directory="newer"))
    assert (term.row.isr_nodes, term.row.blank) == ((A,), (B,))
    term.apply(register("a", directory="other"))
    assert list(term.row.blank) == [B, A]
    term.apply(register("a"))
    assert list(term.row.blank) == [B, A], "it did not know that it is blank"
    term.apply(register("a", restored=[term.row.incarnation]))
    assert list(term.row.blank) == [B], "the directory that is in sync is back"


def test_a_read_replica_never_leads_by_itself() -> None:
    term = Term("ab", read_replicas="d", unclean_election=True)
    assert elections(term.after(3 * LEASE, D)) == []
    assert ordered(term, D).unclean


def test_a_leader_that_is_only_silent_or_stopping_is_not_replaced_uncleanly() -> None:
    term = Term(unclean_election=True)
    term.shrink(A)
    assert term.give(NodeStopping(A, NodeEpoch(1))) + term.silent(B) == ()


# --- by an operator -----------------------------------------------------------------------------------


def test_an_operator_elects_whoever_holds_a_stream_that_is_offline() -> None:
    term = Term()
    term.shrink(A)
    term.after(LEASE, B, C)
    term.apply(ordered(term, C))
    assert (term.row.leader, term.row.isr_nodes, term.row.leader_epoch) == (C, (C,), 2)


def test_nobody_is_elected_beside_a_leader_or_before_one_that_is_in_sync() -> None:
    term = Term()
    assert isinstance(refused(term, B), StreamHasLeader), "a leads"
    term.after(LEASE - 1, B, C)
    assert isinstance(refused(term, C), StreamHasLeader), "its lease has not run out"
    term.after(1, B, C)
    error = refused(term, C)
    assert isinstance(error, StreamHasLeader)
    assert error.detail == {"leader": B}, "it is in sync, and is elected by itself"


def test_a_leader_that_was_not_heard_in_this_term_may_still_be_one() -> None:
    term = Term(heard="bc")
    term.shrink(A)
    assert isinstance(refused(term, B), UnavailableError)
    term.after(LEASE, B, C)
    assert ordered(term, B).leader == B


def test_who_has_no_replica_or_is_not_alive_is_not_elected() -> None:
    term = Term()
    term.shrink(A)
    term.apply(register("x"))
    term.after(LEASE, B)
    assert isinstance(refused(term, NodeId("x")), NotReplica)
    assert isinstance(refused(term, C), UnavailableError), "it is dead"
    unknown = term.controller.ordered_election(StreamName("none"), B, term.now)
    assert isinstance(unknown, CommandRefused)
    assert unknown.error is UnknownStream


# --- what the catalogue keeps of it ----------------------------------------------------------------------


def election(leader: str, at: int | None = None) -> ChangeLeader:
    when = None if at is None else TimestampUs(at)
    life = create("orders").incarnation
    return ChangeLeader(
        ORDERS, life, NodeId(leader), NodeEpoch(1), LeaderEpoch(1), unclean=True, unclean_at=when
    )


def test_a_stream_remembers_its_last_unclean_election() -> None:
    catalog = catalog_of(*(register(node) for node in "abc"), create("orders", nodes="abc"))
    apply(catalog, register("a", directory="gone"))
    apply(catalog, register("b", directory="gone too"))
    changed, told = apply(catalog, election("b", at=CREATED)), catalog.stream(ORDERS)
    assert told is not None
    assert told.last_unclean is None, "an earlier start of b was meant"
    assert refusal(changed) is not None
    again = ChangeLeader(
        ORDERS, told.incarnation, B, NodeEpoch(2), told.leader_epoch, unclean=True, unclean_at=CREATED
    )
    changed, row = apply(catalog, again), catalog.stream(ORDERS)
    assert row is not None
    assert [type(event) for event in changed] == [LeaderChanged, UncleanlyElected]
    assert row.last_unclean == UncleanElection(B, row.leader_epoch, CREATED, (C,))
    assert row.blank == (A,), "the leader's log is what the stream holds now"


def test_who_died_before_it_began_begins_uncleanly_when_it_is_elected_again() -> None:
    term = Term(unclean_election=True)
    first = term.row.leader_epoch
    assert not term.row.is_unclean_from(first)
    term.shrink(A)
    term.after(LEASE, B, C)
    term.apply(term.election(B, unclean=True).command)
    given = term.row.leader_epoch
    assert term.row.is_unclean_from(first)
    [again] = [action for action in term.apply(register("b")) if isinstance(action, Elect)]
    assert (again.command.leader, again.command.unclean) == (B, False), "it is in sync with itself"
    term.apply(again.command)
    assert term.row.leader_epoch > given
    assert term.row.is_unclean_from(first)
    assert not term.row.is_unclean_from(given), "it had begun"
    term.shrink(B, C)
    term.apply(term.election(C).command)
    assert not term.row.is_unclean_from(first), "what nobody wrote to, its followers may not have heard of"


def test_an_elected_read_replica_changes_places_with_the_first_that_was_in_sync() -> None:
    catalog = catalog_of(
        *(register(node) for node in "abde"), create("orders", nodes="ab", read_replicas="de")
    )
    apply(catalog, election("e"))
    catalog.audit()
    row = catalog.stream(ORDERS)
    assert row is not None
    assert (row.replicas, row.read_replicas) == (("e", "b"), ("d", "a"))
    assert (row.leader, row.isr_nodes) == ("e", ("e",))
    assert not catalog.removals(), "everybody keeps its files"


def test_a_read_replica_is_not_elected_while_the_stream_is_being_moved() -> None:
    term = Term("ab", read_replicas="d")
    term.apply(register("x"))
    term.apply(ReassignReplicas(ORDERS, term.row.incarnation, (A, NodeId("x"))))
    assert isinstance(refusal(apply(term.catalog, election("d"))), InvalidConfig)


@pytest.mark.parametrize("node", ["x", "nobody"])
def test_who_holds_nothing_is_refused_by_the_catalogue_too(node: str) -> None:
    catalog = catalog_of(register("n1"), register("x"), create("orders"))
    assert refusal(apply(catalog, election(node))) is not None
