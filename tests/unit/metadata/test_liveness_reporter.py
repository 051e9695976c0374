"""What a node says to the metadata leader, and when."""

from typing import Final

from envelope.types import LogIndex, MonotonicNs, NodeEpoch, NodeId, Term
from metadata.controller.liveness_reporter import ASKS_PER_LEASE, REPEAT_NS, LivenessReporter
from metadata.controller.settings import ControllerSettings
from metadata.lease import Lease
from metadata.raft.messages.node_messages import (
    LeaseAsked,
    LeaseGranted,
    NodeMessage,
    NodeUnheardReport,
    StopAnnounced,
)

SETTINGS: Final = ControllerSettings()
LEASE: Final = SETTINGS.lease_ns
START: Final = 1_000_000_000_000
A, B, C = (NodeId(name) for name in "abc")


class Node:
    """Node a, of start 1, that hears of the metadata leader what the test says."""

    def __init__(self) -> None:
        self.now = MonotonicNs(START)
        self.lease = Lease()
        self.presence = LivenessReporter(A, self.lease, SETTINGS)
        self.leader: NodeId | None = B
        self.term = Term(1)
        self.presence.begin(NodeEpoch(1))

    def says(self, after: int = 0) -> list[NodeMessage]:
        self.now = MonotonicNs(self.now + after)
        return list(self.presence.due_messages(self.leader, self.term, self.now))

    def asked(self) -> LeaseAsked:
        assert self.leader is not None
        return LeaseAsked(A, self.leader, NodeEpoch(1), self.now)

    def grant(self) -> None:
        self.presence.granted(
            LeaseGranted(
                source=B,
                target=A,
                node_epoch=NodeEpoch(1),
                asked_at=self.now,
                lease_ns=LEASE,
                index=LogIndex(0),
            ),
            self.now,
        )


def test_a_lease_is_asked_for_until_it_is_granted_and_then_several_times_in_it() -> None:
    node = Node()
    assert node.says() == [node.asked()]
    assert node.says(REPEAT_NS - 1) == []
    assert node.says(1) == [node.asked()]
    node.grant()
    assert node.says(LEASE // ASKS_PER_LEASE - 1) == []
    assert node.says(1) == [node.asked()]


def test_nothing_is_said_before_there_is_a_leader_and_a_registration() -> None:
    node = Node()
    node.leader = None
    assert node.says() == []
    unregistered = LivenessReporter(A, Lease(), SETTINGS)
    assert unregistered.due_messages(B, Term(1), node.now) == ()


def test_a_new_metadata_leader_or_term_is_told_at_once() -> None:
    node = Node()
    node.says()
    node.grant()
    node.leader = C
    assert node.says(1) == [node.asked()]
    node.term = Term(2)
    assert node.says(1) == [node.asked()]


def test_who_is_not_heard_is_reported_at_once_and_again_until_it_is() -> None:
    node = Node()
    node.says()
    node.grant()
    node.presence.unheard(C)
    assert node.says(1) == [node.asked(), NodeUnheardReport(A, B, C)]
    node.grant()
    assert node.says(REPEAT_NS) == [node.asked(), NodeUnheardReport(A, B, C)]
    node.presence.heard(C)
    assert node.says(REPEAT_NS) == [node.asked()]


def test_who_stops_says_so_before_it_asks_for_a_lease() -> None:
    node = Node()
    node.says()
    node.presence.stop()
    assert node.says(1) == [StopAnnounced(A, B, NodeEpoch(1)), node.asked()]
    assert node.says(REPEAT_NS) == [StopAnnounced(A, B, NodeEpoch(1)), node.asked()]
