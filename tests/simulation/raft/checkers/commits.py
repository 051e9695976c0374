"""What is committed lies on a majority of disks, stays there, and is in the log of every later leader."""

from collections.abc import Mapping

from envelope.types import NodeId, Term
from tests.simulation.raft.checkers.members import Members, Sides, are_majority
from tests.simulation.raft.disk import LogImage
from tests.simulation.violation import Violation


class Commits:
    """The one committed log, as far as any voter has announced it."""

    def __init__(self, disks: Mapping[NodeId, LogImage], members: Members) -> None:
        self._disks, self._members = disks, members
        self._lost: dict[NodeId, list[LogImage]] = {}
        self._terms = [Term(0)]
        self._committed_in = [Term(0)]

    @property
    def commit(self) -> int:
        """The highest index that any voter has said to be committed."""
        return len(self._terms) - 1

    def announced(self, asked: LogImage, commit: int, term: Term, *, sides: Sides, leads: bool) -> None:
        """A voter in ``term``, with the log ``asked``, says that it is committed up to ``commit``.

        ``sides`` were those who decide when it looked who holds it.
        """
        here = asked.term_at(commit)
        if commit <= self.commit:
            if here not in (None, self._terms[commit]):
                raise Violation(f"commit {commit} of term {here} here, of term {self._terms[commit]} before")
            return
        if here is None:
            raise Violation(f"commit {commit} beyond a log that ends at {asked.last_index}")
        if leads and here != term:
            raise Violation(f"the leader of term {term} commits {commit} of term {here} by counting")
        holders = self._holders(commit, here)
        if not are_majority(set(holders), sides):
            raise Violation(f"commit {commit} of term {here} is durable on {holders} only")
        for index in range(self.commit + 1, commit + 1):
            known = asked.term_at(index)
            if known is None:
                raise Violation(f"entry {index} is inside a snapshot before anybody committed it")
            self._members.committed(asked.entries[index - asked.snapshot.index - 1])
            self._terms.append(known)
            self._committed_in.append(term)

    def lost(self, disk: NodeId) -> None:
        """What a disk held before is not there any more."""
        holders = self._holders(self.commit, self._terms[-1])
        if not are_majority(set(holders), (self._members.certain,)):
            raise Violation(f"{disk} cut its log: committed entry {self.commit} is left on {holders} only")

    def disk_lost(self, name: NodeId, disk: LogImage) -> None:
        """A voter starts without its disk; what it held counts as held until it votes again."""
        self._lost.setdefault(name, []).append(disk)

    def votes(self, name: NodeId) -> None:
        """A voter votes: it must hold again what was committed with the help of a disk that it lost."""
        if self._lost.pop(name, None) is None:
            return
        holders = self._holders(self.commit, self._terms[-1])
        if not are_majority(set(holders), (self._members.certain,)):
            raise Violation(f"{name} votes, and committed entry {self.commit} is left on {holders} only")

    def elected(self, leader: NodeId, term: Term) -> None:
        """A voter has begun to lead: it holds all that was committed in earlier terms."""
        index = self.commit
        while self._committed_in[index] >= term > 0 and index > 0:
            index -= 1
        if not self._disks[leader].holds(index, self._terms[index]):
            raise Violation(f"{leader} leads in term {term} without committed entry {index}")

    def _holders(self, index: int, term: Term) -> list[NodeId]:
        return [
            name
            for name, disk in self._disks.items()
            if any(image.holds(index, term) for image in (disk, *self._lost.get(name, ())))
        ]
