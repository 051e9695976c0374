"""Commands of one process to the metadata group: sent to whoever leads, and again under the same name.

As `metadata.node.catalogue.group` does it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from envelope.types import NodeId
from metadata.catalog.commands import Command, encode_command
from metadata.catalog.events import Events
from metadata.raft.messages.wire import Forwarded
from metadata.raft.proposals import PROPOSAL_ID_BYTES, ProposalId, encode_proposal
from tests.simulation.replica.swarm import LEASE

if TYPE_CHECKING:
    from tests.simulation.cluster.world import World
    from tests.simulation.replica.life import Life

_RETRY: Final = LEASE // 6
"""After so long without an outcome a command is sent again."""

Outcome = Callable[[Events | None], None]
"""Told what the catalogue said; None: that is not known, but the command was applied."""


@dataclass(slots=True)
class _Proposal:
    payload: bytes
    outcome: Outcome
    deadline: int | None
    attempts: int = 0


class Proposals:
    """Those of one life."""

    def __init__(self, world: "World", life: "Life") -> None:
        self._world, self._life, self._name = world, life, life.name
        self._voter = world.voters[life.name]
        self._waiting: dict[ProposalId, _Proposal] = {}
        self._named = 0

    def submit(self, command: Command, outcome: Outcome, deadline: int | None = None) -> None:
        """Have a command applied, once; it is sent again under the same name until ``deadline`` ns passed."""
        proposal_id, payload = self.name(command)
        until = None if deadline is None else self._world.timeline.now + deadline
        self._waiting[proposal_id] = _Proposal(payload, outcome, until)
        self._soon(partial(self._forward, proposal_id, 0))

    def name(self, command: Command) -> tuple[ProposalId, bytes]:
        """Return a new name for a proposal, and the payload that proposes ``command`` under it."""
        self._named += 1
        name = f"{self._name}.{self._life.number}.{self._named}".encode()
        proposal_id = ProposalId(name.rjust(PROPOSAL_ID_BYTES, b"-"))
        return proposal_id, encode_proposal(proposal_id, encode_command(command))

    def propose_here(self, payload: bytes) -> None:
        """Propose to this voter alone; it is lost if that does not lead."""
        self._voter.propose((payload,), no_answer)

    def decided(self, proposal_id: ProposalId, events: Events | None) -> None:
        """A proposal was applied, perhaps one of these."""
        proposal = self._waiting.pop(proposal_id, None)
        if proposal is not None:
            self._soon(partial(proposal.outcome, events))

    def leader_changed(self) -> None:
        """Send everything again: the one before may not have passed it on."""
        for proposal_id, proposal in self._waiting.items():
            self._soon(partial(self._forward, proposal_id, proposal.attempts))

    def _forward(self, proposal_id: ProposalId, attempts: int) -> None:
        proposal = self._waiting.get(proposal_id)
        if proposal is None or proposal.attempts != attempts:
            return
        if proposal.deadline is not None and self._world.timeline.now >= proposal.deadline:
            del self._waiting[proposal_id]
            return
        proposal.attempts += 1
        voter = self._voter.life
        leader = voter.raft.leader if voter is not None else None
        if leader == self._name:
            self.propose_here(proposal.payload)
        elif leader is not None:
            self._world.saying.send((self._name, leader), Forwarded(self._name, leader, (proposal.payload,)))
        again = partial(self._forward, proposal_id, proposal.attempts)
        self._world.timeline.after(_RETRY, self._life.hold, again)

    def _soon(self, step: Callable[[], None]) -> None:
        self._world.timeline.after(0, self._life.hold, step)


def no_answer(count: int | None, leader: NodeId | None) -> None:
    """Take no notice of what a voter answers: what came of it shows in the log."""
