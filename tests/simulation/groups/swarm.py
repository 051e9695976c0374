"""What kind of groups a seed gets: drawn once, so that most of them lack most faults (swarm testing)."""

from dataclasses import dataclass
from random import Random
from typing import Final

from consumer_groups.assignment.assignors import Assignor
from consumer_groups.assignment.partitions import GroupName
from envelope.types import StreamName
from tests.simulation.network import Weather

SECOND: Final = 1_000_000_000
FAULTS: Final = (
    "kill_process",
    "pause_process",
    "leave",
    "twin",
    "fail_over",
    "depose",
    "pause_coordinator",
    "lack_replicas",
    "reset_group",
    "delete_group",
    "cut",
    "cut_one_way",
    "add_partitions",
    "delete_stream",
    "subscribe",
)


@dataclass(frozen=True, slots=True)
class Swarm:
    """The parameters of one run; times in virtual ns, probabilities from 0 to 1."""

    groups: tuple[GroupName, ...]
    processes: tuple[str, ...]
    """Each is of one group, in turn."""
    clients_each: int
    """Members that share a connection, and its heartbeats."""
    streams: tuple[StreamName, ...]
    partitions_max: int
    named_lives: bool
    """Members say of which life of a stream their cursors are."""
    assignor: Assignor
    static: bool
    session_timeout: int
    rebalance_timeout: int
    heartbeat: int
    give_up_mean: int
    stubborn: float
    """Share of the times that a client never gives up what it is asked for."""
    produce_mean: int
    commit_mean: int
    resets: float
    """Share of a member's commits that go back."""
    write_mean: int
    """Until something is durable."""
    flapping: float
    """Share of the writes for which replicas are lacking."""
    weather: Weather
    faults: tuple[str, ...]
    fault_interval: int
    safety_end: int

    @property
    def healing_max(self) -> int:
        """How long it may take until everything is owned again: a session, a rebalance, a few messages."""
        return 2 * self.session_timeout + self.rebalance_timeout + 20 * self.heartbeat


def draw(rng: Random) -> Swarm:
    """Draw the parameters."""
    session = int(SECOND * rng.uniform(1.0, 4.0))
    kinds = tuple(kind for kind in FAULTS for _ in range(rng.choice((0, 0, 1, 1, 4))))
    weather = Weather(
        delay_mean=int(session * 10 ** rng.uniform(-3.5, -1.7)),
        loss=rng.choice((0.0, 0.0, 0.05, 0.2)),
        twice=rng.choice((0.0, 0.1, 0.4)),
        straggling=rng.choice((0.0, 0.05, 0.2)),
        straggling_max=session * rng.randint(1, 3),
        in_order=rng.random() < 0.3,
    )
    return Swarm(
        groups=tuple(GroupName(name) for name in ("g", "h")[: rng.choice((1, 1, 2))]),
        processes=tuple(f"p{number}" for number in range(1, rng.randint(2, 5) + 1)),
        clients_each=rng.choice((1, 1, 1, 2)),
        streams=tuple(StreamName(name) for name in ("s", "t", "u")[: rng.choice((1, 1, 2, 3))]),
        partitions_max=rng.randint(1, 8),
        named_lives=rng.random() < 0.8,
        assignor=rng.choice((Assignor.STICKY, Assignor.STICKY, Assignor.RANGE, Assignor.ROUND_ROBIN)),
        static=rng.random() < 0.4,
        session_timeout=session,
        rebalance_timeout=int(SECOND * rng.uniform(1.0, 4.0)),
        heartbeat=int(session / rng.uniform(3, 8)),
        give_up_mean=int(SECOND * 10 ** rng.uniform(-3, -0.5)),
        stubborn=rng.choice((0.0, 0.0, 0.1)),
        produce_mean=int(session * 10 ** rng.uniform(-2, -0.3)),
        commit_mean=int(session * 10 ** rng.uniform(-1.5, -0.3)),
        resets=rng.choice((0.0, 0.02, 0.2)),
        write_mean=int(SECOND * 10 ** rng.uniform(-3.5, -1.0)),
        flapping=rng.choice((0.0, 0.0, 0.03)),
        weather=weather,
        faults=kinds or ("kill_process",),
        fault_interval=int(session * 10 ** rng.uniform(-0.7, 0.5)),
        safety_end=int(session * rng.uniform(6, 20)),
    )
