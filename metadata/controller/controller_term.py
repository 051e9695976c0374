"""The controller driver's decisions: when a voter is the controller, and when it grants leases. Pure.

Theory of operation. A voter that leads the metadata log asks whether it still does (a *question*: a read that
a majority has to confirm). The answer to the first question of a term says that the catalogue here has all
that was committed before the term: only then is there a `Controller`. Messages of nodes wait for it
meanwhile. A lease is granted only after a question that was asked later than the node asked for it; all nodes
that wait share one.

The shell reports the end of the term. Until then a controller driver can do no harm: its commands compare
epochs, and no majority confirms it.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, assert_never

from envelope.types import MonotonicNs, NodeEpoch, NodeId, Term
from metadata.catalog.catalog import Catalog
from metadata.controller import events as controlling
from metadata.controller.machine import Controller
from metadata.controller.settings import ControllerSettings
from metadata.raft.messages.node_messages import (
    LeaseAsked,
    LeaseGranted,
    LeaseRefused,
    NodeUnheardReport,
    StopAnnounced,
)

WAITING_MAX: Final = 4096
"""Most messages that wait for the work to begin; the oldest are dropped, as nodes repeat them."""

NodeReport = LeaseAsked | NodeUnheardReport | StopAnnounced

# --- events -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Leads:
    """This voter leads the metadata log in that term; None: it does not lead. May be repeated."""

    term: Term | None


@dataclass(frozen=True, slots=True)
class NodeReported:
    """A node, perhaps this one, has sent a message to the metadata leader."""

    message: NodeReport


@dataclass(frozen=True, slots=True)
class Answered:
    """A majority has confirmed that this voter leads, after the question of that number; or will not."""

    number: int
    leads: bool


@dataclass(frozen=True, slots=True)
class Replaced:
    """Another voter's snapshot has replaced the catalogue: all that was derived from its rows is void."""


Event = Leads | NodeReported | Answered | Replaced | controlling.RowsChanged | controlling.Tick

# --- actions ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConfirmLeadership:
    """Ask whether this voter leads; answer when the catalogue has all that was committed before now."""

    number: int


@dataclass(frozen=True, slots=True)
class SendToNode:
    """Send this message to its target."""

    message: LeaseGranted | LeaseRefused


@dataclass(frozen=True, slots=True)
class Decide:
    """Propose this command; it is a compare-and-set, so it may be lost, late or repeated."""

    command: controlling.Decision


Action = ConfirmLeadership | SendToNode | Decide | controlling.ChangeVoters

_DEFAULT_SETTINGS: Final = ControllerSettings()


_Grant = tuple[NodeId, NodeEpoch, MonotonicNs, int]
"""A lease that was asked for: by whom, of which start, when, and for how long it may be granted."""


class ControllerTerm:
    """See the module; one for every voter.

    Invariants:
        J5: there is a controller only in a term that this voter leads, and not before a majority has
            confirmed that after the term began.
        J6: a lease is granted only after a majority has confirmed, to a question asked later than the node
            asked, that this voter leads.
    """

    def __init__(
        self,
        catalog: Catalog,
        node_id: NodeId,
        settings: ControllerSettings = _DEFAULT_SETTINGS,
        cluster_id: str | None = None,
    ) -> None:
        """Begin as a voter that does not lead.

        Args:
            catalog: this voter's, applied to by the caller; the same object for ever.
            node_id: this voter.
            settings: the same on all voters.
            cluster_id: as of `Controller`.
        """
        self._catalog = catalog
        self._node_id = node_id
        self._cluster_id = cluster_id
        self._settings = settings
        self._term: Term | None = None
        self._controller: Controller | None = None
        self._questions = 0
        self._first_question: int | None = None
        """Whose answer begins the work."""
        self._granting: tuple[int, list[_Grant]] | None = None
        """The grants that the answer to that question lets out."""
        self._grants: list[_Grant] = []
        """The grants that wait for the next question."""
        self._reports: deque[NodeReport] = deque(maxlen=WAITING_MAX)
        self._asked_at: dict[NodeId, MonotonicNs] = {}

    @property
    def term(self) -> Term | None:
        """The term in which this voter leads; None if it does not."""
        return self._term

    @property
    def controller(self) -> Controller | None:
        """The term's controller, once there is one."""
        return self._controller

    def handle(self, event: Event, now: MonotonicNs) -> tuple[Action, ...]:
        """Handle one event; return the actions of the shell, in order."""
        match event:
            case Leads(term):
                return self._led(term)
            case NodeReported(message):
                return self._reported(message, now)
            case Answered(number, leads):
                return self._answered(number, now, leads=leads)
            case Replaced():
                self._end_work()
                return ()
            case controlling.RowsChanged():
                return self._control(event, now)
            case controlling.Tick():
                return (*self._control(event, now), *self._begin_work())
            case _:
                assert_never(event)

    # --- terms --------------------------------------------------------------------------------------------

    def _led(self, term: Term | None) -> tuple[Action, ...]:
        if term == self._term:
            return ()
        self._end_work()
        self._reports.clear()
        self._term = term
        return self._begin_work()

    def _begin_work(self) -> tuple[Action, ...]:
        """Ask the term's first question, again if it was refused."""
        if self._term is None or self._controller is not None or self._first_question is not None:
            return ()
        ask = self._new_question()
        self._first_question = ask.number
        return (ask,)

    def _end_work(self) -> None:
        self._controller = self._first_question = self._granting = None
        self._grants.clear()

    def _new_question(self) -> ConfirmLeadership:
        self._questions += 1
        return ConfirmLeadership(self._questions)

    def _answered(self, number: int, now: MonotonicNs, *, leads: bool) -> tuple[Action, ...]:
        if number == self._first_question:
            self._first_question = None
            if not leads:
                return ()
            assert self._term is not None, f"J5: question {number} was answered in no term"
            self._controller = Controller(self._catalog, now, self._settings, self._cluster_id)
            waiting = tuple(self._reports)
            self._reports.clear()
            return tuple(action for message in waiting for action in self._reported(message, now))
        if self._granting is None or self._granting[0] != number:
            return ()  # of a term that is over
        assert self._controller is not None, f"J6: question {number} without a controller"
        granted = self._granting[1] if leads else []
        self._granting = None
        return (
            *(SendToNode(LeaseGranted(self._node_id, *grant, self._catalog.applied)) for grant in granted),
            *self._ask_for_grants(),
        )

    # --- the controller -----------------------------------------------------------------------------------

    def _reported(self, message: NodeReport, now: MonotonicNs) -> tuple[Action, ...]:
        if self._controller is None:
            if self._term is not None:
                self._reports.append(message)
            return ()
        match message:
            case LeaseAsked(source, _, node_epoch, asked_at):
                self._asked_at[source] = asked_at
                return self._control(controlling.NodeHeard(source, node_epoch), now)
            case NodeUnheardReport(source, _, node):
                return self._control(controlling.NodeUnheard(node, reporter=source), now)
            case StopAnnounced(source, _, node_epoch):
                return self._control(controlling.NodeStopping(source, node_epoch), now)
            case _:
                assert_never(message)

    def _control(self, event: controlling.Event, now: MonotonicNs) -> tuple[Action, ...]:
        if self._controller is None:
            return ()
        return tuple(self._wanted(self._controller.handle(event, now)))

    def _wanted(self, actions: Iterable[controlling.Action]) -> Iterable[Action]:
        for action in actions:
            match action:
                case (
                    controlling.Elect(command)
                    | controlling.Finish(command)
                    | controlling.Grow(command)
                    | controlling.Name(command)
                ):
                    yield Decide(command)
                case controlling.ChangeVoters():
                    yield action
                case controlling.RefuseLease(node, node_epoch):
                    yield SendToNode(LeaseRefused(self._node_id, node, node_epoch))
                case controlling.GrantLease(node, node_epoch, duration_ns):
                    self._grants.append((node, node_epoch, self._asked_at[node], duration_ns))
                    yield from self._ask_for_grants()
                case _:
                    assert_never(action)

    def _ask_for_grants(self) -> tuple[Action, ...]:
        """Ask on behalf of all nodes that wait, unless a question for others is under way."""
        if self._granting is not None or not self._grants:
            return ()
        ask = self._new_question()
        self._granting = ask.number, self._grants
        self._grants = []
        return (ask,)
