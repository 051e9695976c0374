"""When a voter is the controller, and when a lease may be granted."""

from typing import Final

from envelope.types import LogIndex, MonotonicNs, NodeEpoch, NodeId, Term
from metadata.catalog.commands import ChangeLeader, NameCluster
from metadata.controller.controller_term import (
    Action,
    Answered,
    ConfirmLeadership,
    ControllerTerm,
    Decide,
    Event,
    Leads,
    NodeReport,
    NodeReported,
    Replaced,
    SendToNode,
)
from metadata.controller.events import ChangeVoters, RowsChanged, Tick
from metadata.controller.settings import ControllerSettings
from metadata.raft.configuration import Configuration, QuorumState
from metadata.raft.events import ChangeMembers
from metadata.raft.messages.node_messages import (
    LeaseAsked,
    LeaseGranted,
    LeaseRefused,
    NodeUnheardReport,
    StopAnnounced,
)
from tests.support.catalogs import apply, catalog_of, create, register

SETTINGS: Final = ControllerSettings()
LEASE: Final = SETTINGS.lease_ns
APPLIED: Final = LogIndex(4)
"""By the catalogue: three nodes and a stream."""
START: Final = 1_000_000_000_000
A, B, C = (NodeId(name) for name in "abc")
CLUSTER_ID: Final = "0123456789abcdef" * 2


class Voter:
    """A voter, a, with one stream on a, b and c that a leads; told events by the test."""

    def __init__(self) -> None:
        self.now = MonotonicNs(START)
        self.catalog = catalog_of(
            *(register(node) for node in "abc"), create("orders", nodes="abc", min_insync_replicas=1)
        )
        self.controller_term = ControllerTerm(self.catalog, A, SETTINGS, CLUSTER_ID)

    def does(self, *events: Event) -> list[Action]:
        return [action for event in events for action in self.controller_term.handle(event, self.now)]

    def begin(self, term: int = 1) -> None:
        """Lead, and have it confirmed."""
        (ask,) = self.does(Leads(Term(term)))
        assert isinstance(ask, ConfirmLeadership)
        assert self.does(Answered(ask.number, leads=True)) == []


def asks(node: NodeId, at: int = START, node_epoch: int = 1) -> NodeReport:
    return LeaseAsked(node, A, NodeEpoch(node_epoch), MonotonicNs(at))


def granted(node: NodeId, at: int = START) -> SendToNode:
    return SendToNode(
        LeaseGranted(
            source=A,
            target=node,
            node_epoch=NodeEpoch(1),
            asked_at=MonotonicNs(at),
            lease_ns=LEASE,
            index=APPLIED,
        )
    )


def test_there_is_a_controller_once_a_majority_has_confirmed_the_term() -> None:
    voter = Voter()
    (ask,) = voter.does(Leads(Term(1)))
    assert isinstance(ask, ConfirmLeadership)
    assert voter.does(Leads(Term(1)), Tick()) == [], "it is asked once"
    assert voter.controller_term.controller is None
    voter.does(Answered(ask.number, leads=True))
    assert voter.controller_term.controller is not None


def test_a_question_that_is_not_answered_is_asked_again_with_the_next_tick() -> None:
    voter = Voter()
    (first,) = voter.does(Leads(Term(1)))
    assert isinstance(first, ConfirmLeadership)
    assert voter.does(Answered(first.number, leads=False)) == []
    (second,) = voter.does(Tick())
    assert isinstance(second, ConfirmLeadership)
    assert second.number != first.number


def test_the_answer_to_a_question_of_an_earlier_term_begins_nothing() -> None:
    voter = Voter()
    (first,) = voter.does(Leads(Term(1)))
    voter.does(Leads(None), Leads(Term(3)))
    assert isinstance(first, ConfirmLeadership)
    voter.does(Answered(first.number, leads=True))
    assert voter.controller_term.controller is None


def test_a_lease_waits_for_a_question_that_was_asked_later() -> None:
    voter = Voter()
    voter.begin()
    (ask,) = voter.does(NodeReported(asks(B)))
    assert isinstance(ask, ConfirmLeadership)
    assert voter.does(Answered(ask.number, leads=True)) == [granted(B)]


def test_a_node_that_asks_while_others_wait_waits_for_the_next_question() -> None:
    voter = Voter()
    voter.begin()
    (first,) = voter.does(NodeReported(asks(B)))
    assert isinstance(first, ConfirmLeadership)
    assert voter.does(NodeReported(asks(C)), NodeReported(asks(A))) == []
    told, second = voter.does(Answered(first.number, leads=True))
    assert told == granted(B)
    assert isinstance(second, ConfirmLeadership)
    assert voter.does(Answered(second.number, leads=True)) == [granted(C), granted(A)]


def test_nothing_is_granted_if_nobody_confirms_or_the_term_is_over() -> None:
    voter = Voter()
    voter.begin()
    (ask,) = voter.does(NodeReported(asks(B)))
    assert isinstance(ask, ConfirmLeadership)
    assert voter.does(Answered(ask.number, leads=False)) == []
    (later,) = voter.does(NodeReported(asks(B)))
    assert isinstance(later, ConfirmLeadership)
    voter.does(Leads(None))
    assert voter.does(Answered(later.number, leads=True)) == []


def test_an_earlier_start_of_a_node_is_refused_at_once() -> None:
    voter = Voter()
    apply(voter.catalog, register("b"))
    voter.begin()
    assert voter.does(NodeReported(asks(B))) == [SendToNode(LeaseRefused(A, B, NodeEpoch(2)))]


def test_what_nodes_say_before_there_is_a_controller_waits_for_it_in_the_same_term() -> None:
    voter = Voter()
    voter.does(NodeReported(asks(C)))
    (ask,) = voter.does(Leads(Term(1)))
    assert voter.does(NodeReported(asks(B))) == []
    assert isinstance(ask, ConfirmLeadership)
    (question,) = voter.does(Answered(ask.number, leads=True))
    assert isinstance(question, ConfirmLeadership)
    assert voter.does(Answered(question.number, leads=True)) == [granted(B)]


def test_reports_and_announcements_lead_to_elections() -> None:
    for said in (NodeUnheardReport(B, A, A), StopAnnounced(A, A, NodeEpoch(1))):
        voter = Voter()
        voter.begin()
        voter.does(NodeReported(asks(B)))
        (decided,) = voter.does(NodeReported(said))
        assert isinstance(decided, Decide)
        assert isinstance(decided.command, ChangeLeader)
        assert decided.command.leader == B


def test_an_earlier_controller_says_nothing_any_more() -> None:
    for over in (Leads(None), Leads(Term(2)), Replaced()):
        voter = Voter()
        voter.begin()
        voter.does(NodeReported(asks(B)))
        voter.does(over)
        voter.now = MonotonicNs(START + 2 * LEASE)
        asked = voter.does(Tick(), RowsChanged(()))
        assert all(isinstance(action, ConfirmLeadership) for action in asked), asked
        assert voter.controller_term.controller is None


def quorum() -> QuorumState:
    """The three voters of settings, as a knows them."""
    heard_at = dict.fromkeys((B, C), MonotonicNs(START))
    return QuorumState(A, Configuration((A, B, C)), is_changing=False, is_first=True, heard_at=heard_at)


def test_a_cluster_gets_an_id_and_its_log_names_its_voters() -> None:
    voter = Voter()
    voter.begin()
    expected = [Decide(NameCluster(CLUSTER_ID)), ChangeVoters(ChangeMembers((A, B, C)))]
    assert voter.does(Tick(quorum())) == expected
    assert voter.does(Tick(quorum())) == [], "both are under way"
    voter.now = MonotonicNs(START + SETTINGS.retry_interval_ns)
    assert voter.does(Tick(quorum())) == expected, "both may be lost"


def test_a_cluster_keeps_the_id_that_another_has_given_it() -> None:
    voter = Voter()
    apply(voter.catalog, NameCluster("f" * 32))
    voter.begin()
    assert voter.does(Tick(quorum())) == [ChangeVoters(ChangeMembers((A, B, C)))]


def test_members_are_left_alone_before_the_term_is_confirmed_and_where_they_are_not_said() -> None:
    voter = Voter()
    voter.does(Leads(Term(1)))
    assert voter.does(Tick(quorum())) == []
    voter = Voter()
    voter.begin()
    assert voter.does(Tick()) == []
