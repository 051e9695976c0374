"""A node as a member of the cluster: keeps its lease, reports nodes that it does not hear, and its own stop.

`metadata.controller.liveness_reporter` decides when a message is due and what an answer is worth; here are
timers and connections.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from envelope.errors import Fenced, StreamOffline
from envelope.types import LogIndex, MonotonicNs, NodeEpoch, NodeId, StreamName
from metadata.catalog.events import Events
from metadata.controller.lease_client import streams_to_hand_over
from metadata.controller.liveness_reporter import LivenessReporter
from metadata.controller.settings import ControllerSettings
from metadata.lease import Lease, unlimited
from metadata.node.catalogue.group import MetadataQuorum
from metadata.node.timers.movable_timer import now
from metadata.node.timers.wake_event import WakeEvent
from metadata.raft.messages.node_messages import LeaseGranted, LeaseRefused, NodeMessage

_log = logging.getLogger(__name__)

_HAND_OVER_LOOK_SECONDS: Final = 0.01
"""How often a node that stops looks at all streams while they change."""

CONFIRM_SECONDS_MAX: Final = 1.0
"""How long `Membership.confirm_leadership` waits: an election of the metadata leader is over by then."""

_DEFAULT_SETTINGS: Final = ControllerSettings()


class Membership:
    """See the module; one on every node, made on the event loop it runs on.

    Attributes:
        lease: this node's, for all its leaders; without limit if no other node can ever be there.
        on_resumed: called on the loop when a lease that had lapsed, or was never there, is valid again.
    """

    def __init__(
        self,
        group: MetadataQuorum,
        node_id: NodeId,
        settings: ControllerSettings = _DEFAULT_SETTINGS,
        *,
        is_alone: bool = False,
    ) -> None:
        """Listen to ``group``; `run` sends, and `begin` lets it ask for leases.

        Args:
            group: this node's; made, and not stopped before this.
            node_id: this node.
            settings: the same on all nodes.
            is_alone: no other node can ever be there: nothing is asked of anybody.
        """
        self.lease: Lease = unlimited() if is_alone else Lease()
        self._is_alone = is_alone
        self.on_resumed: Callable[[], None] = lambda: None
        self._group = group
        self._node_id = node_id
        self._reporter = LivenessReporter(node_id, self.lease, settings)
        self._answers: list[LeaseGranted | LeaseRefused] = []
        self._waiting: set[tuple[MonotonicNs, asyncio.Future[LogIndex]]] = set()
        self._wake = WakeEvent()
        self._changed = asyncio.Event()
        group.subscribe(self)
        group.member.attend(self._receive)

    def begin(self, node_epoch: NodeEpoch) -> None:
        """Ask for a lease from now on, as the start of the node that is registered so."""
        self._reporter.begin(node_epoch)
        self._wake.set()

    def unheard(self, node: NodeId) -> None:
        """Report that this node does not hear ``node``, now and again, until it is `heard`."""
        self._reporter.unheard(node)
        self._wake.set()
        self._changed.set()

    def heard(self, node: NodeId) -> None:
        """Report no more that this node does not hear ``node``."""
        self._reporter.heard(node)

    async def confirm_leadership(self) -> None:
        """Return when the catalogue here has all that was decided before this call.

        One round to the metadata leader and its majority, shared by all who wait.

        Raises:
            StreamOffline: the metadata leader has not answered within `CONFIRM_SECONDS_MAX`.
        """
        if self._is_alone:
            return
        waiter = asyncio.get_running_loop().create_future()
        waiting = (now(), waiter)
        self._waiting.add(waiting)
        self._reporter.ask()
        self._wake.set()
        try:
            async with asyncio.timeout(CONFIRM_SECONDS_MAX):
                await self._group.reached(await waiter)
        except TimeoutError:
            raise StreamOffline("nobody confirms that this node still leads") from None
        finally:
            self._waiting.discard(waiting)

    async def stop(self, deadline_seconds: float) -> bool:
        """Hand the streams that are led here to other leaders; this node is elected for none any more.

        `run`, the group, and the controller driver if it is here, are to go on until this returns. It returns
        as soon as nothing is led here that another, who is heard here, could lead, or at the deadline.

        Returns:
            Whether it was not the deadline.
        """
        self._reporter.stop()
        self._wake.set()
        try:
            async with asyncio.timeout(deadline_seconds):
                while self._left():
                    self._changed.clear()
                    await self._changed.wait()
                    await asyncio.sleep(_HAND_OVER_LOOK_SECONDS)  # each look costs as much as all streams
        except TimeoutError:
            _log.warning("stops as the leader of streams=%d after %s s", len(self._left()), deadline_seconds)
            return False
        return True

    def _left(self) -> tuple[StreamName, ...]:
        return streams_to_hand_over(self._group.catalog, self._node_id, self._reporter.unheard_nodes)

    async def run(self) -> None:
        """Send what is due until cancelled.

        Raises:
            Fenced: a newer start of this node has registered; this process is to stop.
        """
        while True:
            self._handle_answers()
            for message in self._reporter.due_messages(self._group.leader, self._group.term, now()):
                self._group.member.send(message)
            await self._wake.wait(self._reporter.due_at, self._group.next_leader())

    # --- the CatalogListener ----------------------------------------------------------------------

    def applied(self, events: Events) -> None:
        """See `CatalogListener.applied`."""
        self._changed.set()

    def restored(self) -> None:
        """See `CatalogListener.restored`."""
        self._changed.set()

    # --- what is said and heard -------------------------------------------------------------------

    def _receive(self, message: NodeMessage) -> None:
        if isinstance(message, LeaseGranted | LeaseRefused):
            self._answers.append(message)
            self._wake.set()

    def _handle_answers(self) -> None:
        answers, self._answers = self._answers, []
        for answer in answers:
            match answer:
                case LeaseGranted():
                    self._confirm(answer)
                    if self._reporter.granted(answer, now()):
                        _log.info("node=%s has a lease again", self._node_id)
                        self.on_resumed()
                case LeaseRefused(node_epoch=node_epoch):
                    if self._reporter.is_over(answer):
                        raise Fenced(
                            f"node {self._node_id!r} has started again, as node_epoch {node_epoch}",
                            node_epoch=node_epoch,
                        )

    def _confirm(self, grant: LeaseGranted) -> None:
        """Set the index that those who wait need, if the lease was asked for after they came."""
        for since, waiter in self._waiting:
            if since <= grant.asked_at and not waiter.done():
                waiter.set_result(grant.index)
