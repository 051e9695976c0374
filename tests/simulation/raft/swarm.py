"""What kind of world a seed gets: drawn once, so that most worlds lack most faults (swarm testing).

A world with every fault at once seldom gets anywhere; one with few of them reaches deep states of those few
(Groce et al., "Swarm Testing", ISSTA 2012).
"""

from dataclasses import dataclass, replace
from random import Random
from typing import Final

from envelope.types import NodeId
from tests.simulation.network import Weather

ELECTION_TIMEOUT: Final = 1_000_000_000
"""Virtual ns; every other time of a run is drawn in proportion to it."""

_DISK_LOSSES: Final = (0.0, 0.0, 0.0, 0.1, 0.5)

_AGAINST_LEADERS: Final = ("kill_leader", "isolate_leader", "isolate_leader", "transfer", "one_way")

FAULTS: Final = (
    "kill_one",
    "kill_leader",
    "kill_majority",
    "kill_all",
    "pause_one",
    "pause_leader",
    "isolate_one",
    "isolate_leader",
    "halves",
    "one_way",
    "ring",
    "bridge",
    "clog",
    "disconnect",
    "clock_jump",
    "transfer",
    "slow_disk",
)


@dataclass(frozen=True, slots=True)
class Swarm:
    """The parameters of one world; times in virtual ns, probabilities from 0 to 1."""

    voters: tuple[NodeId, ...]
    heartbeat_interval: int
    entries_in_flight_max: int
    append_bytes_max: int
    appends_in_flight_max: int
    weather: Weather
    write_mean: int
    coalesced_writes: bool
    """One sync serves every write that waits, as a group commit does."""
    late_report: float
    """Share of the writes whose report waits while other events are handled."""
    crash_after_write: float
    """Per write: the process dies with it durable and nothing sent."""
    failing_sync: float
    """Per write: it fails, and the process stops itself."""
    drift_ppm: int
    faults: tuple[str, ...]
    """The kinds that occur; one that stands here more than once is so much more frequent."""
    fault_interval: int
    """Mean time between two faults."""
    fault_length: int
    """Typical time that a fault lasts; from a third to three times this."""
    clients: int
    think_mean: int
    reads: float
    compact_entries: int
    """Entries behind the snapshot at which a voter compacts; 0: never."""
    safety_end: int
    """When faults end and everything must converge."""
    election_timeout: int = ELECTION_TIMEOUT
    disk_loss: float = 0.0
    """In how many of the restarts the disk is gone; where it may be, the group begins with empty disks."""
    strangers: tuple[NodeId, ...] = ()
    """Machines that are no voters at first, but may become some."""

    @property
    def machines(self) -> tuple[NodeId, ...]:
        """All that may ever be voters."""
        return self.voters + self.strangers


def draw(rng: Random) -> Swarm:
    """Draw a world."""
    timeout = ELECTION_TIMEOUT
    count = rng.choices((1, 2, 3, 4, 5, 7), (3, 4, 50, 8, 32, 3))[0]
    short_reigns = rng.random() < 0.3
    kinds = (
        _AGAINST_LEADERS
        if short_reigns
        else tuple(kind for kind in FAULTS for _ in range(rng.choice((0, 0, 0, 1, 4))))
    )
    write_mean = int(timeout * 10 ** rng.uniform(-3.5, -0.8))
    return Swarm(
        voters=tuple(NodeId(f"n{number}") for number in range(1, count + 1)),
        heartbeat_interval=timeout // rng.randint(3, 5),
        entries_in_flight_max=rng.choice((4, 50, 1_000)),
        append_bytes_max=rng.choice((100, 300, 100_000)),
        appends_in_flight_max=rng.choice((1, 3, 64)),
        weather=_draw_weather(rng, short_reigns=short_reigns),
        write_mean=write_mean,
        coalesced_writes=rng.random() < 0.5,
        late_report=rng.choice((0.0, 0.1, 0.5)),
        crash_after_write=rng.choice((0.0, 0.0, 0.002, 0.02)),
        failing_sync=rng.choice((0.0, 0.0, 0.0, 0.01)),
        drift_ppm=rng.choice((0, 1_000, 50_000)),
        faults=kinds or ("kill_one",),
        fault_interval=int(timeout * 10 ** rng.uniform(-0.7, 0.4)),
        fault_length=int(timeout * 10 ** rng.uniform(-0.7, 0.6)),
        clients=rng.randint(1, 4),
        think_mean=int(timeout * 10 ** rng.uniform(-1.7, 0.0)),
        reads=rng.choice((0.0, 0.2, 0.5)),
        compact_entries=rng.choice((0, 1, 3, 10, 30)),
        safety_end=int(timeout * rng.uniform(8, 30)),
    )


def with_losses_or_strangers(swarm: Swarm, rng: Random) -> Swarm:
    """Draw what has a chance of its own, so that the rest of the world is as it was before there was any.

    A voter that has lost its disk has to know all voters that there are: in no world is there both.
    """
    disk_loss = rng.choice(_DISK_LOSSES)
    if disk_loss:
        return replace(swarm, disk_loss=disk_loss)
    first = len(swarm.voters) + 1
    strangers = tuple(NodeId(f"n{number}") for number in range(first, first + rng.choice((1, 1, 2, 3))))
    return replace(swarm, strangers=strangers)


def _draw_weather(rng: Random, *, short_reigns: bool) -> Weather:
    timeout = ELECTION_TIMEOUT
    return Weather(
        delay_mean=int(timeout * 10 ** rng.uniform(-3.0, -0.8)),
        loss=rng.choice((0.0, 0.0, rng.uniform(0.0, 0.3))),
        twice=rng.choice((0.0, 0.0, rng.uniform(0.0, 0.5))),
        # What was sent in one reign arrives in a later one.
        straggling=rng.uniform(0.05, 0.3) if short_reigns else rng.choice((0.0, rng.uniform(0.0, 0.1))),
        straggling_max=timeout * (rng.randint(2, 5) if short_reigns else rng.randint(1, 10)),
        in_order=rng.random() < 0.5,
    )
