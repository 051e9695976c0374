"""Disks that are gone when their voter starts again: of a minority at a time."""

import itertools
from random import Random

from envelope.types import NodeId
from tests.simulation.raft.disk import LogImage


class DiskLosses:
    """Draws from chance of its own, so that a world without losses is the same as before there were any."""

    def __init__(self, rng: Random, share: float, disks: dict[NodeId, LogImage]) -> None:
        """Lose none yet.

        Args:
            rng: all chance of this.
            share: of the restarts.
            disks: all voters'; a lost one is replaced in here.
        """
        self._rng, self._share, self._disks = rng, share, disks
        self._tokens = itertools.count(1)

    def token(self, name: NodeId) -> int | None:
        """Return what a voter starts with that finds nothing on its disk, None if it need not ask."""
        return next(self._tokens) if self._share and self._is_blank(name) else None

    def lose(self, name: NodeId) -> LogImage | None:
        """Replace the disk of a dead voter by an empty one now and then; return the one that is lost."""
        without_vote = {other for other in self._disks if not self._has_vote(other)} | {name}
        if not self._share or self._rng.random() >= self._share:
            return None
        if len(without_vote) > (len(self._disks) - 1) // 2:
            return None
        lost, self._disks[name] = self._disks[name], LogImage()
        return lost

    @property
    def all_vote(self) -> bool:
        """Whether no voter would have to recover if it started now."""
        return not self._share or all(map(self._has_vote, self._disks))

    def _is_blank(self, name: NodeId) -> bool:
        return self._disks[name].stored().is_blank

    def _has_vote(self, name: NodeId) -> bool:
        return not self._is_blank(name) and not self._disks[name].hard_state.recovery_term
