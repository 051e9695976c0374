"""Run the controller's term (`metadata.controller.controller_term`) on the voter that leads the metadata log.

Theory of operation. Every voter has a controller driver; it is idle unless its voter leads. Here are timers,
reads of the metadata log and messages; what they mean is decided elsewhere. A decision is proposed in this
term or not at all, and the answer is the row that changes.
"""

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Final, TypeGuard, assert_never

from envelope.errors import NotLeader
from envelope.types import MonotonicNs, NodeId, StreamName, TimestampUs
from metadata.catalog.commands import ChangeLeader, encode_command
from metadata.catalog.events import (
    CommandRefused,
    Event,
    Events,
    LeaderChanged,
    ReplicasReassigned,
    StreamUpdated,
    UncleanlyElected,
)
from metadata.controller.controller_term import (
    WAITING_MAX,
    Action,
    Answered,
    ConfirmLeadership,
    ControllerTerm,
    Decide,
    Leads,
    NodeReport,
    NodeReported,
    Replaced,
    SendToNode,
)
from metadata.controller.events import ChangeVoters, Decision, RowsChanged, Tick
from metadata.controller.settings import ControllerSettings
from metadata.node.catalogue.group import MetadataQuorum
from metadata.node.timers.movable_timer import now
from metadata.node.timers.wake_event import WakeEvent
from metadata.raft.messages.node_messages import NodeMessage
from metadata.raft.proposals import PROPOSAL_ID_BYTES, ProposalId, encode_proposal
from metadata.raft.settings import NEVER

_log = logging.getLogger(__name__)

TICK_NS: Final = 100_000_000
_CLUSTER_ID_BYTES: Final = 16

_DEFAULT_SETTINGS: Final = ControllerSettings()


class ControllerDriver:
    """See the module; made on the event loop it runs on."""

    def __init__(
        self, group: MetadataQuorum, node_id: NodeId, settings: ControllerSettings = _DEFAULT_SETTINGS
    ) -> None:
        """Listen to ``group``; `run` does the work.

        Args:
            group: this voter's; made, and not stopped before this.
            node_id: this voter.
            settings: the same on all voters.
        """
        self._group = group
        self._node_id = node_id
        cluster_id = secrets.token_hex(_CLUSTER_ID_BYTES)
        self._controller_term = ControllerTerm(group.catalog, node_id, settings, cluster_id)
        self._reports: deque[NodeReport] = deque(maxlen=WAITING_MAX)
        self._actions: list[Action] = []
        self._wake = WakeEvent()
        group.subscribe(self)
        group.member.attend(self._receive)

    def alive(self) -> frozenset[NodeId] | None:
        """Return the nodes that hold a lease; None if this voter does not lead, or cannot know yet."""
        controller = self._controller_term.controller
        return None if controller is None or not self._leads else controller.alive(now())

    def ordered_election(self, stream: StreamName, node: NodeId) -> ChangeLeader:
        """Return the command by which ``node`` leads a stream that is offline, whatever it holds.

        Raises:
            NotLeader: this voter does not lead, or cannot know yet which nodes are dead.
            JetstreamError: the typed refusal.
        """
        controller = self._controller_term.controller
        if controller is None or not self._leads:
            raise NotLeader("only who leads the metadata log can say who is dead")
        found = controller.ordered_election(stream, node, now())
        if isinstance(found, CommandRefused):
            raise found.exception()
        return _dated(found)

    async def run(self) -> None:
        """Run the controller whenever this voter leads, until cancelled."""
        tick_at = MonotonicNs(0)
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._check_term()
                while self._reports:
                    self._do(self._controller_term.handle(NodeReported(self._reports.popleft()), now()))
                if self._leads and now() >= tick_at:
                    tick_at = MonotonicNs(now() + TICK_NS)
                    self._do(self._controller_term.handle(Tick(self._group.member.membership()), now()))
                self._wake.clear()  # all that it was set for is in the actions
                self._perform(tasks)
                await self._wake.wait(tick_at if self._leads else NEVER, self._group.next_leader())

    @property
    def _leads(self) -> bool:
        return self._group.leader == self._node_id

    def _check_term(self) -> None:
        """Record whether this voter leads now; drop the actions of a term that is over."""
        before = self._controller_term.term
        term = self._group.term if self._leads else None
        if before not in (None, term):
            _log.info("steward no more of metadata term=%d", before)
            self._actions.clear()
        self._do(self._controller_term.handle(Leads(term), now()))

    # --- the CatalogListener ----------------------------------------------------------------------

    def applied(self, events: Events) -> None:
        """See `CatalogListener.applied`."""
        if self._controller_term.controller is None:
            return
        for event in events:
            if isinstance(event, UncleanlyElected):
                _log.error(
                    "stream=%s leader=%s leader_epoch=%d was not in sync and is elected uncleanly: committed "
                    "records may be lost runbook=RB-10; in sync were %s",
                    event.stream.name,
                    event.stream.leader,
                    event.stream.leader_epoch,
                    ",".join(member.node_id for member in event.given_up),
                )
            elif isinstance(event, LeaderChanged):
                row = event.stream
                _log.info("stream=%s leader=%s leader_epoch=%d", row.name, row.leader, row.leader_epoch)
            elif isinstance(event, ReplicasReassigned) or _begins_move(event):
                replicas, target = ",".join(event.stream.replicas), ",".join(event.stream.target or ())
                _log.info("stream=%s replicas=%s target=%s", event.stream.name, replicas, target)
        self._do(self._controller_term.handle(RowsChanged(events), now()))

    def restored(self) -> None:
        """See `CatalogListener.restored`."""
        self._do(self._controller_term.handle(Replaced(), now()))

    # --- events and actions -----------------------------------------------------------------------

    def _receive(self, message: NodeMessage) -> None:
        if self._leads and isinstance(message, NodeReport):
            self._reports.append(message)
            self._wake.set()

    def _do(self, actions: Iterable[Action]) -> None:
        """Queue actions for `run`, in order: nothing may be proposed while entries are applied."""
        self._actions.extend(actions)
        if self._actions:
            self._wake.set()

    def _perform(self, tasks: asyncio.TaskGroup) -> None:
        actions, self._actions = self._actions, []
        for action in actions:
            match action:
                case ConfirmLeadership(number):
                    tasks.create_task(self._ask(number))
                case SendToNode(message):
                    self._group.member.send(message)
                case Decide(ChangeLeader(unclean=True) as command):
                    self._propose(_dated(command))
                case Decide(command):
                    self._propose(command)
                case ChangeVoters(change):
                    self._group.member.change_members(change)
                case _:
                    assert_never(action)

    async def _ask(self, number: int) -> None:
        try:
            await self._group.read()
            leads = True
        except NotLeader as error:
            _log.debug("question=%d of the steward is not answered: %s", number, error.description)
            leads = False
        self._check_term()
        begun = self._controller_term.controller
        self._do(self._controller_term.handle(Answered(number, leads), now()))
        if self._controller_term.controller is not begun:
            streams = self._group.catalog.count_streams()
            _log.info("steward of metadata term=%d streams=%d", self._controller_term.term, streams)

    def _propose(self, command: Decision) -> None:
        """Propose what the controller has decided, here or not at all; it decides again if that is lost.

        Forwarded to another metadata leader, it would be the decision of a former leader: on an old view of
        which nodes are alive.
        """
        if self._leads:
            proposal_id = ProposalId(secrets.token_bytes(PROPOSAL_ID_BYTES))
            self._group.member.forward((encode_proposal(proposal_id, encode_command(command)),))


def _begins_move(event: Event) -> TypeGuard[StreamUpdated]:
    return isinstance(event, StreamUpdated) and event.stream.target != event.before.target


def _dated(election: ChangeLeader) -> ChangeLeader:
    """Add the time of an unclean election, which is shown and never compared."""
    return replace(election, unclean_at=TimestampUs(time.time_ns() // 1000))
