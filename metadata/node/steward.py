"""The controller (`metadata.controller.machine`) as it runs: on the voter that leads the metadata log.

Theory of operation. Every voter has a steward; it is idle unless its voter leads. Its work begins when
the catalogue here has all that was committed before the term: only then is there a controller. What nodes
say meanwhile waits for it. Elections are proposed side by side, and the answer is the row that changes. A
lease is granted only after a majority has confirmed, to a question that came later than the node's, that
this voter still leads; all nodes that wait share one such question.

That its term is over it notices at the next event or tick. Until then it can do no harm: its commands compare
epochs, and nobody confirms it.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from typing import Final, assert_never

from envelope.errors import JetstreamError, NotLeader
from envelope.types import MonotonicNs, NodeId
from metadata.catalog.commands import ChangeLeader, FinishReassignment
from metadata.catalog.events import Events, LeaderChanged, ReplicasReassigned, UncleanlyElected
from metadata.controller import events as controller_events
from metadata.controller.events import (
    Action,
    Elect,
    Finish,
    GrantLease,
    NodeHeard,
    NodeStopping,
    RefuseLease,
    RowsChanged,
    Tick,
)
from metadata.controller.machine import Controller
from metadata.controller.settings import ControllerSettings
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
from metadata.raft.settings import NEVER

_log = logging.getLogger(__name__)

TICK_NS: Final = 100_000_000
_NS_PER_SECOND: Final = 1_000_000_000
_WAITING_MAX: Final = 4096
"""Most messages that wait for its work to begin; the oldest are dropped, as nodes repeat what they say."""

_Said = LeaseAsked | NodeUnheard | StopAnnounced

_DEFAULT_SETTINGS: Final = ControllerSettings()


class Steward:
    """See the module; made on the event loop it runs on."""

    def __init__(
        self, group: MetadataGroup, node_id: NodeId, settings: ControllerSettings = _DEFAULT_SETTINGS
    ) -> None:
        """Listen to ``group``; `run` does the work.

        Args:
            group: this voter's; made, and not stopped before this.
            node_id: this voter.
            settings: the same on all voters.
        """
        self._group = group
        self._node_id = node_id
        self._settings = settings
        self._controller: Controller | None = None
        self._said: deque[_Said] = deque(maxlen=_WAITING_MAX)
        self._asked_at: dict[NodeId, MonotonicNs] = {}
        self._grants: list[LeaseGranted] = []
        self._proposals: list[ChangeLeader | FinishReassignment] = []
        self._bell = Bell()
        self._grant_bell = Bell()
        group.subscribe(self)
        group.member.attend(self._told)

    def alive(self) -> frozenset[NodeId] | None:
        """Return the nodes that hold a lease; None if this voter does not lead, or cannot know yet."""
        if self._controller is None or not self._leads:
            return None
        return self._controller.alive(now())

    async def run(self) -> None:
        """Be the controller whenever this voter leads, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._grant_when_confirmed())
            while True:
                if self._leads:
                    await self._serve_term(tasks)
                    again_at = MonotonicNs(now() + TICK_NS)
                else:
                    self._said.clear()
                    again_at = NEVER
                await self._bell.heard(again_at, self._group.next_leader())

    @property
    def _leads(self) -> bool:
        return self._group.leader == self._node_id

    async def _serve_term(self, tasks: asyncio.TaskGroup) -> None:
        """Be the controller of this term until it ends, or the whole catalogue is replaced."""
        term = self._group.member.voter.term
        try:
            await self._group.read()
        except NotLeader as error:
            _log.debug("no steward of metadata term=%d: %s", term, error.description)
            return
        controller = self._controller = Controller(self._group.catalog, now(), self._settings)
        _log.info("steward of metadata term=%d streams=%d", term, self._group.catalog.count_streams())
        tick_at = MonotonicNs(now() + TICK_NS)
        try:
            while self._controller is controller and self._leads and self._group.member.voter.term == term:
                self._take_in(controller)
                if now() >= tick_at:
                    tick_at = MonotonicNs(now() + TICK_NS)
                    self._perform(controller.handle(Tick(), now()))
                for command in self._proposals:
                    tasks.create_task(self._propose(command))
                self._proposals.clear()
                await self._bell.heard(tick_at)
        finally:
            self._controller = None
            self._grants.clear()
            self._proposals.clear()
            _log.info("steward no more of metadata term=%d", term)

    # --- the CatalogListener ----------------------------------------------------------------------

    def applied(self, events: Events) -> None:
        """See `CatalogListener.applied`."""
        if self._controller is None:
            return
        for event in events:
            if isinstance(event, UncleanlyElected):
                _log.error(
                    "stream=%s leader=%s leader_epoch=%d was not in sync and is elected uncleanly: committed "
                    "records may be lost; in sync were %s",
                    event.stream.name,
                    event.stream.leader,
                    event.stream.leader_epoch,
                    ",".join(member.node_id for member in event.given_up),
                )
            elif isinstance(event, LeaderChanged):
                row = event.stream
                _log.info("stream=%s leader=%s leader_epoch=%d", row.name, row.leader, row.leader_epoch)
            elif isinstance(event, ReplicasReassigned):
                replicas, target = ",".join(event.stream.replicas), ",".join(event.stream.target or ())
                _log.info("stream=%s replicas=%s target=%s", event.stream.name, replicas, target)
        self._perform(self._controller.handle(RowsChanged(events), now()))

    def restored(self) -> None:
        """See `CatalogListener.restored`: what the controller derived from rows is void."""
        self._controller = None
        self._bell.ring()

    # --- what nodes say ---------------------------------------------------------------------------

    def _told(self, message: NodeMessage) -> None:
        if self._leads and isinstance(message, _Said):
            self._said.append(message)
            self._bell.ring()

    def _take_in(self, controller: Controller) -> None:
        while self._said:
            match self._said.popleft():
                case LeaseAsked(source, _, node_epoch, asked_at):
                    self._asked_at[source] = asked_at
                    event: controller_events.Event = NodeHeard(source, node_epoch)
                case NodeUnheard(source, _, node):
                    event = controller_events.NodeUnheard(node, reporter=source)
                case StopAnnounced(source, _, node_epoch):
                    event = NodeStopping(source, node_epoch)
                case unknown:
                    assert_never(unknown)
            self._perform(controller.handle(event, now()))

    # --- actions ----------------------------------------------------------------------------------

    def _perform(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Elect(command) | Finish(command):
                    self._proposals.append(command)
                    self._bell.ring()
                case GrantLease(node, node_epoch, duration_ns):
                    self._grants.append(
                        LeaseGranted(self._node_id, node, node_epoch, self._asked_at[node], duration_ns)
                    )
                    self._grant_bell.ring()
                case RefuseLease(node, node_epoch):
                    self._group.member.tell(LeaseRefused(self._node_id, node, node_epoch))
                case _:
                    assert_never(action)

    async def _grant_when_confirmed(self) -> None:
        while True:
            await self._grant_bell.heard(NEVER)
            grants, self._grants = self._grants, []
            try:
                await self._group.read()
            except NotLeader as error:
                _log.debug("leases=%d are not granted: %s", len(grants), error.description)
                continue
            for grant in grants:
                self._group.member.tell(grant)

    async def _propose(self, command: ChangeLeader | FinishReassignment) -> None:
        """Propose what the controller has decided; it does so again if nothing comes of it."""
        try:
            applied = await self._group.propose(command, self._settings.retry_interval_ns / _NS_PER_SECOND)
            applied.answer()
        except JetstreamError as error:
            _log.debug("stream=%s refused: %s error=%s", command.stream, type(command).__name__, error)
