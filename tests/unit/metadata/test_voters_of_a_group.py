"""The decider of voters beside the Raft machines whose members it changes: its changes are taken, and end."""

from dataclasses import replace
from typing import Final

from envelope.types import NodeId
from metadata.catalog.catalog import Catalog
from metadata.controller.alive_nodes import AliveNodes
from metadata.controller.settings import ControllerSettings
from metadata.controller.voters import VoterChanges
from metadata.members import member_name, node_of
from metadata.raft.configuration import Configuration
from metadata.raft.events import ProposalRefused, RefusalReason
from tests.support.catalogs import apply, refusal, register
from tests.support.raft_cluster import A, B, C, D, RaftCluster, Voter

SETTINGS: Final = ControllerSettings()
RETRY: Final = SETTINGS.retry_interval_ns
SILENT: Final = SETTINGS.voter_replace_after_ns


class Group:
    """A Raft group that A leads; nodes that register run a machine that knows of no voters."""

    def __init__(self, *founders: NodeId) -> None:
        self.cluster = RaftCluster.led_by_a(*founders)
        self.catalog = Catalog()
        self.alive_nodes = AliveNodes(self.catalog, self.cluster.clock.now, SETTINGS.lease_ns)
        self.changes = VoterChanges(self.catalog, self.alive_nodes, SETTINGS)
        for founder in founders:
            self.register(founder)

    def register(self, node: NodeId) -> None:
        start = replace(register(node), peer_host="h", peer_port=1)
        assert refusal(apply(self.catalog, start)) is None

    def join(self, node: NodeId) -> NodeId:
        """Start a node; return the member that it is."""
        self.register(node)
        member = member_name(node, f"disk-of-{node}")
        self.cluster.voters[member] = Voter(member, (), clock=self.cluster.clock)
        return member

    def go_on(self, duration_ns: int = RETRY) -> None:
        """Let time pass, then make the change that is due."""
        self.cluster.let_pass(duration_ns)
        now = self.cluster.clock.now
        for node in self.catalog.nodes():
            if not any(node_of(member) == node.node_id for member in self.cluster.cut):
                self.alive_nodes.leases.renew(node.node_id, node.node_epoch, now)
        quorum = self.cluster[A].raft.quorum
        assert quorum is not None, "A leads"
        change = self.changes.next_change(quorum, now)
        if change is not None:
            self.cluster.give(A, change)
            self.cluster.run()

    @property
    def configuration(self) -> Configuration:
        return self.cluster[A].raft.configuration


def test_a_group_of_one_names_its_voter_and_becomes_three() -> None:
    group = Group(A)
    b, c = group.join(B), group.join(C)
    group.go_on()
    quorum = group.cluster[A].raft.quorum
    assert quorum is not None
    assert (quorum.is_first, quorum.configuration) == (False, Configuration((A,)))
    group.go_on()
    assert group.configuration == Configuration((A,), learners=(b, c))
    group.go_on()
    assert group.configuration == Configuration((A, b, c))
    before = group.cluster[A].raft.last_index
    group.go_on()
    assert group.cluster[A].raft.last_index == before, "there is nothing more to do"


def test_a_learner_that_lacks_the_log_becomes_a_voter_once_it_has_it() -> None:
    group = Group(A)
    b, c = group.join(B), group.join(C)
    group.go_on()
    group.go_on()
    group.cluster.cut.add(c)
    group.cluster.propose(A, b"x")
    group.cluster.run()
    group.alive_nodes.leases.renew(C, group.alive_nodes.registered_epoch(C), group.cluster.clock.now)
    group.go_on()
    assert group.cluster[A].news[-1] == ProposalRefused(RefusalReason.BEHIND, A)
    group.cluster.cut.clear()
    group.go_on()
    assert group.configuration == Configuration((A, b, c))


def test_a_dead_founder_is_exchanged_for_a_node_and_the_group_goes_on() -> None:
    group = Group(A, B, C)
    d = group.join(D)
    group.go_on()
    group.cluster.cut.add(B)
    group.go_on()
    assert group.configuration == Configuration((A, B, C))
    group.go_on(SILENT)
    assert group.configuration == Configuration((A, B, C), learners=(d,))
    group.go_on()
    assert group.configuration == Configuration((A, C, d))
    group.cluster.cut.add(C)
    group.cluster.propose(A, b"after")
    group.cluster.run()
    raft = group.cluster[A].raft
    assert raft.commit == raft.last_index, "A and D are a majority"
