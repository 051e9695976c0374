"""What kind of group a seed gets: drawn once, so that most groups lack most faults (swarm testing)."""

from dataclasses import dataclass
from random import Random
from typing import Final

from consumer_groups.assignors import Assignor
from envelope.types import StreamName
from tests.simulation.network import Weather

SECOND: Final = 1_000_000_000
FAULTS: Final = (
    "kill_process",
    "pause_process",
    "leave",
    "twin",
    "fail_over",
    "pause_coordinator",
    "cut",
    "cut_one_way",
    "add_partitions",
    "delete_stream",
    "subscribe",
)


@dataclass(frozen=True, slots=True)
class Swarm:
    """The parameters of one group; times in virtual ns, probabilities from 0 to 1."""

    processes: tuple[str, ...]
    clients_each: int
    """Members that share a connection, and its heartbeats."""
    streams: tuple[StreamName, ...]
    partitions_max: int
    assignor: Assignor
    static: bool
    session_timeout: int
    rebalance_timeout: int
    heartbeat: int
    give_up_mean: int
    stubborn: float
    """Share of the times that a client never gives up what it is asked for."""
    commit_mean: int
    write_mean: int
    """Until the group is durable."""
    weather: Weather
    faults: tuple[str, ...]
    fault_interval: int
    safety_end: int

    @property
    def healing_max(self) -> int:
        """How long it may take until everything is owned again: a session, a rebalance, a few messages."""
        return 2 * self.session_timeout + self.rebalance_timeout + 20 * self.heartbeat


def draw(rng: Random) -> Swarm:
    """Draw a group."""
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
        processes=tuple(f"p{number}" for number in range(1, rng.randint(2, 5) + 1)),
        clients_each=rng.choice((1, 1, 1, 2)),
        streams=tuple(StreamName(name) for name in ("s", "t", "u")[: rng.choice((1, 1, 2, 3))]),
        partitions_max=rng.randint(1, 8),
        assignor=rng.choice((Assignor.STICKY, Assignor.STICKY, Assignor.RANGE, Assignor.ROUND_ROBIN)),
        static=rng.random() < 0.4,
        session_timeout=session,
        rebalance_timeout=int(SECOND * rng.uniform(1.0, 4.0)),
        heartbeat=int(session / rng.uniform(3, 8)),
        give_up_mean=int(SECOND * 10 ** rng.uniform(-3, -0.5)),
        stubborn=rng.choice((0.0, 0.0, 0.1)),
        commit_mean=int(session * 10 ** rng.uniform(-1.5, -0.3)),
        write_mean=int(SECOND * 10 ** rng.uniform(-3.5, -1.0)),
        weather=weather,
        faults=kinds or ("kill_process",),
        fault_interval=int(session * 10 ** rng.uniform(-0.7, 0.5)),
        safety_end=int(session * rng.uniform(6, 20)),
    )
