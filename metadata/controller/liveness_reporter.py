"""A node's messages to the metadata leader, about itself and others: their contents and times.

Every message is repeated until it has had its effect, and sent at once to a new metadata leader, which knows
nothing.
"""

from typing import Final

from envelope.types import MonotonicNs, NodeEpoch, NodeId, Term
from metadata.controller.lease_client import LeaseClient
from metadata.controller.settings import ControllerSettings
from metadata.lease import Lease
from metadata.raft.messages.node_messages import (
    LeaseAsked,
    LeaseGranted,
    LeaseRefused,
    NodeMessage,
    NodeUnheardReport,
    StopAnnounced,
)

_MS: Final = 1_000_000
ASKS_PER_LEASE: Final = 6
"""So often is a lease asked for within one: it outlives several lost messages, and a change of leaders."""
REPEAT_NS: Final = 100 * _MS
"""How often a lease is asked for until it is granted, and how often what ends reigns is repeated."""


class LivenessReporter:
    """The messages of one start of a node; times are of its own clock."""

    def __init__(self, node_id: NodeId, lease: Lease, settings: ControllerSettings) -> None:
        """Report only nodes that are not heard, until `begin`.

        Args:
            node_id: this node.
            lease: its lease, which only this prolongs.
            settings: the same on all nodes.
        """
        self._node_id = node_id
        self._ask_interval_ns = settings.lease_ns // ASKS_PER_LEASE
        self._lease_client = LeaseClient(lease)
        self._unheard: set[NodeId] = set()
        self._is_stopping = False
        self._reported_to: tuple[NodeId | None, Term] | None = None
        self.due_at = MonotonicNs(0)
        """When the next message is due, if nothing happens before."""

    @property
    def unheard_nodes(self) -> frozenset[NodeId]:
        """Return the nodes that are not heard here."""
        return frozenset(self._unheard)

    def begin(self, node_epoch: NodeEpoch) -> None:
        """Ask for a lease from now on, as the start of the node that is registered so."""
        self._lease_client.begin(node_epoch)
        self.due_at = MonotonicNs(0)

    def unheard(self, node: NodeId) -> None:
        """Report that ``node`` is not heard here, until it is `heard`."""
        if node not in self._unheard:
            self._unheard.add(node)
            self.due_at = MonotonicNs(0)

    def heard(self, node: NodeId) -> None:
        """Stop the report that ``node`` is not heard here."""
        self._unheard.discard(node)

    def stop(self) -> None:
        """Report from now on that this node is about to stop."""
        self._is_stopping = True
        self.due_at = MonotonicNs(0)

    def ask(self) -> None:
        """Ask for a lease at once: the grant carries the index at which everything up to now is applied."""
        self.due_at = MonotonicNs(0)

    def due_messages(self, leader: NodeId | None, term: Term, now: MonotonicNs) -> tuple[NodeMessage, ...]:
        """Return the messages due now to ``leader``, which leads the metadata log in ``term``."""
        if now < self.due_at and (leader, term) == self._reported_to:
            return ()
        self._reported_to = (leader, term)
        self.due_at = MonotonicNs(now + REPEAT_NS)
        if leader is None:
            return ()
        messages: list[NodeMessage] = []
        node_epoch = self._lease_client.node_epoch
        if node_epoch is not None:
            if self._is_stopping:
                # Before the lease: else a new metadata leader might elect this node on hearing of it.
                messages.append(StopAnnounced(self._node_id, leader, node_epoch))
            messages.append(LeaseAsked(self._node_id, leader, node_epoch, now))
        messages.extend(NodeUnheardReport(self._node_id, leader, node) for node in sorted(self._unheard))
        return tuple(messages)

    def granted(self, grant: LeaseGranted, now: MonotonicNs) -> bool:
        """Prolong the lease; return whether it had lapsed, or was never there, and is valid again."""
        if not self._unheard and not self._is_stopping:
            self.due_at = MonotonicNs(grant.asked_at + self._ask_interval_ns)
        return self._lease_client.granted(grant, now)

    def is_over(self, refusal: LeaseRefused) -> bool:
        """Return whether a newer start of the node has registered, so that this process is to stop."""
        return self._lease_client.is_over(refusal)
