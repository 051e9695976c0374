"""A node as a member of the cluster: keeps its lease, says whom it does not hear, and says when it stops.

Everything is said to the metadata leader, and again: nothing is answered for but by what happens. A new
metadata leader knows nothing and is told at once. What an answer is worth is decided elsewhere
(`metadata.controller.tenure`); here are timers and messages.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from envelope.errors import Fenced
from envelope.types import MonotonicNs, NodeEpoch, NodeId
from metadata.catalog.events import Events
from metadata.controller.settings import ControllerSettings
from metadata.controller.tenure import Tenure, streams_to_hand_over
from metadata.lease import Lease, unlimited
from metadata.node.bell import Bell
from metadata.node.metadata_group import MetadataGroup
from metadata.node.wake_up import now
from metadata.raft.node_messages import (
    LeaseAsked,
    LeaseGranted,
    LeaseRefused,
    NodeMessage,
    NodeUnheard,
    StopAnnounced,
)

_log = logging.getLogger(__name__)

_MS: Final = 1_000_000
ASKS_PER_LEASE: Final = 6
"""So often is a lease asked for within one: it outlives several lost messages, and a change of leaders."""
REPEAT_NS: Final = 100 * _MS
"""How often a lease is asked for until it is granted, and how often what ends reigns is repeated."""
_HAND_OVER_LOOK_SECONDS: Final = 0.01
"""How often a node that stops looks at all streams while they change."""

_DEFAULT_SETTINGS: Final = ControllerSettings()


class Membership:
    """See the module; one on every node, made on the event loop it runs on.

    Attributes:
        lease: this node's, for all its leaders; without limit if the group has no other voter.
        on_resumed: called on the loop when a lease that had lapsed, or was never there, is valid again.
    """

    def __init__(
        self, group: MetadataGroup, node_id: NodeId, settings: ControllerSettings = _DEFAULT_SETTINGS
    ) -> None:
        """Listen to ``group``; `run` speaks, and `begin` lets it speak of leases.

        Args:
            group: this node's; made, and not stopped before this.
            node_id: this node.
            settings: the same on all nodes.
        """
        self.lease: Lease = unlimited() if group.member.is_alone else Lease()
        self.on_resumed: Callable[[], None] = lambda: None
        self._group = group
        self._node_id = node_id
        self._ask_interval_ns = settings.lease_ns // ASKS_PER_LEASE
        self._tenure = Tenure(self.lease)
        self._answers: list[LeaseGranted | LeaseRefused] = []
        self._unheard: set[NodeId] = set()
        self._is_stopping = False
        self._bell = Bell()
        self._say_at = MonotonicNs(0)
        self._changed = asyncio.Event()
        group.subscribe(self)
        group.member.attend(self._told)

    def begin(self, node_epoch: NodeEpoch) -> None:
        """Ask for a lease from now on, as the start of the node that is registered so."""
        self._tenure.begin(node_epoch)
        self._say_soon()

    def unheard(self, node: NodeId) -> None:
        """Report that this node does not hear ``node``, now and again, until it is `heard`."""
        if node not in self._unheard:
            self._unheard.add(node)
            self._say_soon()

    def heard(self, node: NodeId) -> None:
        """Report no more that this node does not hear ``node``."""
        self._unheard.discard(node)

    async def stop(self, deadline_seconds: float) -> bool:
        """Have others lead the streams that are led here; this node is elected for none any more.

        `run`, the group, and the steward if it is here, are to go on until this returns. It returns as soon
        as nothing is led here that another could lead, or at the deadline.

        Returns:
            Whether it was not the deadline.
        """
        self._is_stopping = True
        self._say_soon()
        try:
            async with asyncio.timeout(deadline_seconds):
                while streams_to_hand_over(self._group.catalog, self._node_id):
                    self._changed.clear()
                    await self._changed.wait()
                    await asyncio.sleep(_HAND_OVER_LOOK_SECONDS)  # each look costs as much as all streams
        except TimeoutError:
            left = streams_to_hand_over(self._group.catalog, self._node_id)
            _log.warning("stops as the leader of streams=%d after %s s", len(left), deadline_seconds)
            return False
        return True

    async def run(self) -> None:
        """Speak until cancelled.

        Raises:
            Fenced: a newer start of this node has registered; this process is to stop.
        """
        said_to = None
        while True:
            self._take_in()
            led = (self._group.leader, self._group.member.voter.term)
            if now() >= self._say_at or led != said_to:
                self._say()
                said_to = led
                self._say_at = MonotonicNs(now() + REPEAT_NS)
            await self._bell.heard(self._say_at, self._group.next_leader())

    # --- the CatalogListener ----------------------------------------------------------------------

    def applied(self, events: Events) -> None:
        """See `CatalogListener.applied`."""
        self._changed.set()

    def restored(self) -> None:
        """See `CatalogListener.restored`."""
        self._changed.set()

    # --- what is said and heard -------------------------------------------------------------------

    def _say_soon(self) -> None:
        self._say_at = MonotonicNs(0)
        self._bell.ring()

    def _say(self) -> None:
        leader, node_epoch, tell = self._group.leader, self._tenure.node_epoch, self._group.member.tell
        if leader is None:
            return
        if node_epoch is not None:
            if self._is_stopping:
                # Before the lease: else a new metadata leader might elect this node on hearing of it.
                tell(StopAnnounced(self._node_id, leader, node_epoch))
            tell(LeaseAsked(self._node_id, leader, node_epoch, now()))
        for node in sorted(self._unheard):
            tell(NodeUnheard(self._node_id, leader, node))

    def _told(self, message: NodeMessage) -> None:
        if isinstance(message, LeaseGranted | LeaseRefused):
            self._answers.append(message)
            self._bell.ring()

    def _take_in(self) -> None:
        answers, self._answers = self._answers, []
        for answer in answers:
            match answer:
                case LeaseGranted():
                    if not self._unheard and not self._is_stopping:
                        self._say_at = MonotonicNs(answer.asked_at + self._ask_interval_ns)
                    if self._tenure.granted(answer, now()):
                        _log.info("node=%s has a lease again", self._node_id)
                        self.on_resumed()
                case LeaseRefused(node_epoch=node_epoch):
                    if self._tenure.is_over(answer):
                        raise Fenced(
                            f"node {self._node_id!r} has started again, as node_epoch {node_epoch}",
                            node_epoch=node_epoch,
                        )
