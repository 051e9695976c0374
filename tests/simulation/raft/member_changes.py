"""Voters and learners that come, go and are exchanged."""

from collections.abc import Mapping
from random import Random

from envelope.types import NodeId
from metadata.raft.configuration import Configuration
from tests.simulation.raft.swarm import ELECTION_TIMEOUT
from tests.simulation.raft.voter import Voter
from tests.simulation.raft.world import World

_KINDS = ("learn", "learn", "promote", "promote", "promote", "demote", "remove", "replace", "forget", "any")

Wanted = tuple[tuple[NodeId, ...], tuple[NodeId, ...]]
"""Voters and learners."""


class MemberChanges:
    """An operator that asks whoever leads for a change, now and then, until the world heals."""

    def __init__(
        self, world: World, voters: Mapping[NodeId, Voter], rng: Random, *, keep_all: bool = False
    ) -> None:
        """Begin at once.

        Args:
            world: where.
            voters: all machines.
            rng: all chance of this.
            keep_all: who is no voter is a learner, as every node of a cluster needs the log.
        """
        self._world, self._voters, self._rng, self._keeps_all = world, voters, rng, keep_all
        self._interval = int(ELECTION_TIMEOUT * 10 ** rng.uniform(-1.0, 0.6))
        self._plan()

    def _plan(self) -> None:
        self._world.timeline.after(int(2 * self._rng.random() * self._interval), self._ask)

    def _ask(self) -> None:
        if self._world.healing:
            return
        alive = [voter for voter in self._voters.values() if voter.life is not None]
        asked = [voter for voter in alive if voter.leading] or alive
        if asked:
            voter = self._rng.choice(asked)
            assert voter.life is not None, "asked while it lives"
            wanted = self._wanted(voter.life.raft.configuration)
            if wanted is not None:
                voter.change(*wanted, self._answered)
        self._plan()

    def _answered(self, count: int | None, leader: NodeId | None) -> None:
        if count is not None:
            self._world.trace.counts["changed"] += 1

    def _wanted(self, configuration: Configuration) -> Wanted | None:
        """Draw what becomes of these members; None: nothing, or nobody would decide."""
        rng, voters, learners = self._rng, set(configuration.voters), set(configuration.learners)
        before = voters | learners
        kind = rng.choice(_KINDS)
        coming = self._some(learners) if kind in ("promote", "replace") else set()
        leaving = self._some(voters) if kind in ("remove", "replace", "demote") else set()
        voters = (voters | coming) - leaving
        learners -= coming
        if kind == "learn":
            learners |= self._some(set(self._world.swarm.machines) - before)
        elif kind == "demote":
            learners |= leaving
        elif kind == "forget":
            learners -= self._some(learners)
        elif kind == "any":
            voters = {name for name in sorted(before) if rng.random() < 0.6}
            learners = {name for name in sorted(before - voters) if rng.random() < 0.5}
        if self._keeps_all:
            learners = set(self._world.swarm.machines) - voters
        return (tuple(sorted(voters)), tuple(sorted(learners))) if voters else None

    def _some(self, names: set[NodeId]) -> set[NodeId]:
        count = min(len(names), self._rng.choice((1, 1, 1, 2, 3)))
        return set(self._rng.sample(sorted(names), count))
