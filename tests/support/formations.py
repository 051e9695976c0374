"""Nodes that form a cluster, without NATS: their records, the notices between them, and the time."""

from dataclasses import dataclass, field
from typing import Final

from envelope.types import MonotonicNs, NodeId
from metadata.formation.machine import (
    SAY_INTERVAL_NS,
    Formation,
    FormationAction,
    FormationEvent,
    FormationRecord,
    NoticeReceived,
    Persist,
    Tick,
)
from metadata.formation.notices import Notice, VoterCandidate

PORT: Final = 9294


def candidate(name: str, directory: str = "", host: str = "") -> VoterCandidate:
    """A node whose directory and host are named after it unless said otherwise."""
    return VoterCandidate(NodeId(name), directory or f"dir-{name}", host or f"host-{name}", PORT)


@dataclass
class FormingNode:
    """A process and its record on disk, which outlives it."""

    own: VoterCandidate
    expected: int
    record: FormationRecord = field(default_factory=FormationRecord)
    promises: set[tuple[VoterCandidate, ...]] = field(default_factory=set)
    """All that was ever on its disk."""

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Die and start again with what is on the disk."""
        self.formation = Formation(self.own, self.expected, self.record)

    def store(self, action: Persist) -> None:
        """Make what it decided durable."""
        self.record = action.record
        if self.record.promised:
            self.promises.add(self.record.promised)


class FormingCluster:
    """Nodes that hear whatever of each other a test lets them hear."""

    def __init__(self, names: str, expected: int = 3) -> None:
        self.nodes = [FormingNode(candidate(name), expected) for name in names]
        self.now = MonotonicNs(1)
        self.said: list[Notice] = []
        """Every notice ever; any may be heard again."""

    def give(self, node: FormingNode, event: FormationEvent, *, dies: str = "") -> None:
        """Give a node an event; it may die ``before`` or ``after`` it has stored what it then would say."""
        for action in node.formation.handle(event, self.now):
            if not self._perform(node, action, dies):
                node.restart()
                return

    def _perform(self, node: FormingNode, action: FormationAction, dies: str) -> bool:
        if isinstance(action, Persist):
            if dies == "before":
                return False
            node.store(action)
            if dies == "after":
                return False
            action = action.then
        self.said.append(action.notice)
        return True

    def tick(self, node: FormingNode) -> None:
        """Have a node say what it has to say."""
        self.give(node, Tick())

    def hear(self, node: FormingNode, notice: Notice) -> None:
        """Have a node hear something."""
        self.give(node, NoticeReceived(notice))

    def run(self, rounds: int = 12) -> None:
        """Have everybody hear everything that is said from now on."""
        for _ in range(rounds):
            self.now = MonotonicNs(self.now + SAY_INTERVAL_NS)
            place = len(self.said)
            for node in self.nodes:
                self.tick(node)
            while place < len(self.said):  # what is said for a notice is heard as well
                for node in self.nodes:
                    self.hear(node, self.said[place])
                    self.check()
                place += 1

    def check(self) -> None:
        """Hold everybody to what was promised."""
        formed = {node.record.formed for node in self.nodes if node.record.formed}
        for one in formed:
            for other in formed:
                names = [{voter.node_id for voter in voters} for voters in (one, other)]
                assert one == other or names[0].isdisjoint(names[1]), f"{one} and {other} overlap"
        for node in self.nodes:
            assert len(node.promises) <= 1, f"{node.own} has promised {node.promises}"
            names_itself = all(node.own in promise for promise in node.promises)
            assert names_itself, f"{node.own} is not in {node.promises}"
            for voter in node.record.formed:
                member = next(other for other in self.nodes if other.own.node_id == voter.node_id)
                assert {one.node_id for promise in member.promises for one in promise} == {
                    one.node_id for one in node.record.formed
                }, f"{voter.node_id} has not promised {node.record.formed}"
