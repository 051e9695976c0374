"""One process as the controller driver, whenever its voter leads the metadata log.

As `metadata.node.leases.controller_driver` does it: asks, tells and proposes what `ControllerTerm` decides,
in order.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from envelope.types import NodeId
from metadata.catalog.commands import ChangeLeader
from metadata.controller.controller_term import (
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
from metadata.controller.events import ChangeVoters, RowsChanged, Tick
from metadata.raft.messages.node_messages import NodeMessage
from tests.simulation.cluster.proposals import Proposals
from tests.simulation.cluster.voter_choice import VoterChoice

if TYPE_CHECKING:
    from tests.simulation.cluster.world import World
    from tests.simulation.replica.life import Life


class ControllerDriver:
    """The shell around one life's `ControllerTerm`; ``tell`` takes what it says to nodes."""

    def __init__(
        self, world: "World", life: "Life", proposals: Proposals, tell: Callable[[NodeMessage], None]
    ) -> None:
        self._world, self._life, self._proposals, self._tell = world, life, proposals, tell
        self._voter = world.voters[life.name]
        self._catalog = world.machines[life.name].catalog
        self._controller_term = ControllerTerm(self._catalog, life.name, world.swarm.controller)
        self._choice = VoterChoice(world, life.name)
        self._actions: list[tuple[Action, str | None]] = []
        """What is to be done, and what is wrong with it if anything comes of it."""

    @property
    def is_at_work(self) -> bool:
        """Whether there is a controller here."""
        return self._controller_term.controller is not None

    def look(self) -> None:
        """Take in whether the voter leads; what a term that is over wants is not done any more."""
        voter = self._voter.life
        leads = voter is not None and voter.raft.leader == self._life.name
        term = voter.raft.term if voter is not None and leads else None
        if term != self._controller_term.term:
            self._actions.clear()
        self._do(self._controller_term.handle(Leads(term), self._life.now()))

    def told(self, message: NodeReport) -> None:
        """A node says something to the metadata leader, which this may be."""
        self.look()
        if self._controller_term.term is not None:
            self._world.stewards.told(message)
            self._do(self._controller_term.handle(NodeReported(message), self._life.now()))

    def heard(self, event: RowsChanged | Replaced) -> None:
        """The catalogue has changed."""
        self._do(self._controller_term.handle(event, self._life.now()))

    def tick(self) -> None:
        """Time has passed; where the controller chooses the voters, it is shown those that there are."""
        judge = self._world.chosen_voters
        quorum = None if judge is None else self._choice.quorum()
        actions = self._controller_term.handle(Tick(quorum), self._life.now())
        for action in actions:
            if isinstance(action, ChangeVoters) and judge is not None and quorum is not None:
                wanted = self._catalog.cluster.voters_wanted
                judge.chosen(self._life.name, quorum, action.change, wanted)
        self._do(actions)

    def _do(self, actions: Iterable[Action]) -> None:
        """Perform, once the voter has done what it is doing."""
        for action in actions:
            wrong = None
            if isinstance(action, Decide) and isinstance(action.command, ChangeLeader):
                wrong = self._world.stewards.judge(self._life.name, action.command)
            self._actions.append((action, wrong))
        if self._actions:
            self._soon(self._perform)

    def _perform(self) -> None:
        actions, self._actions = self._actions, []
        for action, wrong in actions:
            match action:
                case ConfirmLeadership(number):
                    self._ask(number)
                case SendToNode(message):
                    self._tell(message)
                case ChangeVoters(change):
                    self._choice.change(change)
                case Decide(command):
                    proposal_id, payload = self._proposals.name(command)
                    self._world.stewards.proposes(proposal_id, wrong)
                    self._proposals.propose_here(payload)

    def _ask(self, number: int) -> None:
        def answered(index: int | None, _: NodeId | None) -> None:
            self._soon(partial(self._answered, number, leads=index is not None))

        self._voter.read(answered)

    def _answered(self, number: int, *, leads: bool) -> None:
        self.look()
        was_at_work = self.is_at_work
        self._do(self._controller_term.handle(Answered(number, leads), self._life.now()))
        if self.is_at_work and not was_at_work:
            self._world.trace.counts["steward"] += 1
            self._world.stewards.begun(self._life.name)

    def _soon(self, step: Callable[[], None]) -> None:
        self._world.timeline.after(0, self._life.hold, step)
