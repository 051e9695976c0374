"""Whatever happens to a few replicas in whatever order, what was committed stays, and they agree in the end.

The cluster of `tests.support.replica_cluster` asserts the promises after every step: committed records are
for ever the same and on every member of the ISR, logs that share a record share all before it.
"""

from dataclasses import dataclass, field
from random import Random
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st

from envelope.types import MonotonicNs
from jetstream.replica.leader_events import ProposeIsr
from metadata.catalog.events import CommandRefused
from tests.support.example_counts import examples
from tests.support.replica_cluster import HEARTBEAT, LAG_MAX, RETRY, ReplicaCluster
from tests.support.replica_member import Member

_LATE_MAX: Final = 30
"""A late repeat is of one of so many messages sent last."""


@dataclass
class Chaos:
    """Steps that are made from two numbers each, whatever they are."""

    cluster: ReplicaCluster
    proposals: list[tuple[Member, ProposeIsr]] = field(default_factory=list)
    published: int = 0

    def member(self, number: int) -> Member:
        members = list(self.cluster.members.values())
        return members[number % len(members)]

    def publish(self, one: int, other: int) -> None:
        leaders = [member for member in self.cluster.members.values() if member.leader is not None]
        if leaders and self.published < 40:
            self.published += 1
            leaders[one % len(leaders)].publish(*(f"{self.published}.{row}" for row in range(1 + other % 2)))

    def deliver(self, one: int, other: int) -> None:
        for _ in range(1 + other % 4):
            if self.cluster.wire:
                self.cluster.deliver(self.cluster.wire[one % len(self.cluster.wire)])

    def drop(self, one: int, other: int) -> None:
        if self.cluster.wire:
            self.cluster.wire.pop((one + other) % len(self.cluster.wire))

    def repeat(self, one: int, other: int) -> None:
        late = self.cluster.sent[-_LATE_MAX:]
        if late:
            self.cluster.deliver(late[(one * 7 + other) % len(late)])

    def flow(self, one: int, other: int) -> None:
        cut_off = [] if other % 2 else [self.member(one).name]
        self.cluster.flow(cut_off=cut_off)

    def pass_time(self, one: int, other: int) -> None:
        duration = (HEARTBEAT, RETRY, LAG_MAX)[other % 3]
        self.cluster.now = MonotonicNs(self.cluster.now + duration)
        for member in self.cluster.members.values():
            if member.is_up and member is not self.member(one):
                member.tick()

    def crash(self, one: int, other: int) -> None:
        member = self.member(one)
        if member.is_up:
            self._collect()
            member.crash(power=other % 2 == 0)

    def start(self, one: int, other: int) -> None:
        member = self.member(one)
        if member.is_up:
            return
        if other % 4 == 0 and set(self.cluster.row.isr_nodes) != {member.name}:
            member.wipe()
        else:
            member.start()

    def elect(self, one: int, other: int) -> None:
        members = [self.cluster[name] for name in self.cluster.row.isr_nodes]
        eligible = [member.name for member in members if member.is_up and member.is_registered]
        if eligible:
            self.cluster.elect(eligible[one % len(eligible)], tell=[])
            self.cluster.tell(*([self.cluster.row.leader] if other % 2 and self.cluster.row.leader else []))

    def tell(self, one: int, other: int) -> None:
        member = self.member(one + other)
        if member.is_up:
            member.learn()

    def decide(self, one: int, other: int) -> None:
        """Apply a proposal, perhaps one that was decided before; perhaps its leader is not told."""
        self._collect()
        if not self.proposals:
            return
        member, proposal = self.proposals[-1 - one % min(4, len(self.proposals))]
        first = self.cluster.apply(self.cluster.command(member, proposal))[0]
        self.cluster.audit()
        if other % 2 and isinstance(first, CommandRefused):
            member.refuse(proposal, first)
        elif other % 2 and member.is_up:
            member.learn()

    def hold(self, one: int, other: int) -> None:
        self.member(one).holds_syncs = other % 2 == 0

    def sync(self, one: int, other: int) -> None:
        if self.member(one + other).is_up:
            self.member(one + other).sync()

    def retain(self, one: int, other: int) -> None:
        """Remove some of what is committed from one log, at a batch."""
        member = self.member(one)
        ends = [batch.next for batch in member.log.batches if batch.next <= member.high_watermark]
        if member.is_up and ends:
            start = ends[other % len(ends)]
            member.move_start(start)

    def _collect(self) -> None:
        for member in self.cluster.members.values():
            self.proposals += [(member, proposal) for proposal in member.proposals]
            member.proposals.clear()

    def heal(self) -> None:
        """End all trouble, elect if there is no leader, and let the replicas come together."""
        cluster = self.cluster
        for member in cluster.members.values():
            member.holds_syncs = False
            if not member.is_up:
                member.start()
            member.sync()
        row = cluster.row
        if row.leader is None:
            cluster.elect(next(name for name in row.isr_nodes if cluster[name].is_registered))
        cluster.tell()
        for _ in range(12):
            cluster.pass_time(RETRY + HEARTBEAT)
            for member in cluster.members.values():
                while member.proposals:
                    cluster.decide(member.name)
        leader = row.leader or cluster.row.leader
        assert leader is not None
        cluster[leader].publish("last")
        cluster.pass_time(4 * HEARTBEAT)
        assert set(cluster.row.isr_nodes) == set(cluster.row.replicas), cluster.row
        for member in cluster.members.values():
            assert member.high_watermark == cluster[leader].log.log_end, f"{member.name}: {member.machine}"
            assert member.log.values()[-1] == "last"


_STEPS: Final = (
    Chaos.publish,
    Chaos.deliver,
    Chaos.drop,
    Chaos.repeat,
    Chaos.flow,
    Chaos.pass_time,
    Chaos.crash,
    Chaos.start,
    Chaos.elect,
    Chaos.tell,
    Chaos.decide,
    Chaos.hold,
    Chaos.sync,
    Chaos.retain,
)
_WEIGHTS: Final = (4, 8, 1, 3, 2, 3, 1, 3, 1, 4, 3, 1, 3, 1)
_STEPS_MAX: Final = 250
_SHAPES: Final = (("abc", 2), ("abc", 1), ("ab", 1), ("ab", 2), ("abcd", 2), ("abcde", 3))


def survives(seed: int) -> None:
    """Make the steps of a seed; some kinds are frequent, some do not occur, as the seed says."""
    chance = Random(seed)
    chaos = Chaos(ReplicaCluster(*chance.choice(_SHAPES)))
    weights = [weight * chance.random() * chance.choice((0, 1, 1, 2)) for weight in _WEIGHTS]
    weights[0] += 1
    for step in chance.choices(_STEPS, weights, k=_STEPS_MAX):
        step(chaos, chance.randrange(64), chance.randrange(64))
    chaos.heal()


@given(st.integers(min_value=0, max_value=2**32))
@settings(max_examples=examples(60))
def test_what_is_committed_stays_and_the_replicas_agree_in_the_end(seed: int) -> None:
    survives(seed)
