"""What kind of cluster a seed gets: drawn once, so that most clusters lack most faults (swarm testing)."""

from dataclasses import dataclass, replace
from random import Random
from typing import Final

from envelope.types import NodeId
from metadata.controller.settings import ControllerSettings
from metadata.raft.settings import NEVER
from tests.simulation.network import Weather
from tests.simulation.raft import swarm as raft
from tests.simulation.replica import swarm as replica
from tests.simulation.replica.swarm import LEASE

_SIZES: Final = (2, 3, 55, 8, 32)
"""How often a cluster has one node, two, and so on."""

FAULTS: Final = (
    "kill_one",
    "kill_leader",
    "kill_steward",
    "kill_majority",
    "kill_all",
    "stop_one",
    "restart_at_once",
    "pause_one",
    "pause_leader",
    "pause_steward",
    "wipe",
    "isolate_one",
    "isolate_leader",
    "isolate_steward",
    "isolate_both",
    "freeze_both",
    "halves",
    "one_way",
    "ring",
    "bridge",
    "clog",
    "disconnect",
    "transfer",
    "cut_bus",
    "restart_bus",
    "clock_jump",
    "jump_a_lease",
    "slow_disk",
    "stalled_disk",
    "full_disk",
    "sync_error",
    "elect",
)
_AGAINST_STEWARDS: Final = (
    "isolate_steward",
    "isolate_both",
    "freeze_both",
    "freeze_both",
    "pause_steward",
    "kill_steward",
    "transfer",
    "one_way",
    "ring",
)
_AGAINST_MEMBERS: Final = ("wipe", "wipe", "kill_leader", "kill_steward", "elect", "slow_disk", "isolate_one")


@dataclass(frozen=True, slots=True)
class Swarm:
    """The parameters of one cluster; times in virtual ns, probabilities from 0 to 1."""

    raft: raft.Swarm
    replica: replica.Swarm
    controller: ControllerSettings
    saying: Weather
    """Of what nodes and the metadata leader say to each other."""
    late_rows: int
    """Mean time until a process acts upon a row that its voter has applied."""
    together: float
    """Share of the partitions that cut everything; each other one cuts one kind of traffic alone."""
    faults: tuple[str, ...]

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        """All of them are voters."""
        return self.replica.nodes


def draw(rng: Random) -> Swarm:
    """Draw a cluster."""
    replicas = replica.draw(rng, frugal=rng.random() < 0.3, sizes=_SIZES)
    style = rng.random()
    if style < 0.25:
        kinds: tuple[str, ...] = _AGAINST_STEWARDS
        replicas = _slowed(rng, replicas)
    elif style < 0.35:
        kinds = _AGAINST_MEMBERS
    else:
        kinds = tuple(kind for kind in FAULTS for _ in range(rng.choice((0, 0, 0, 1, 4))))
    if replicas.moves:
        kinds += ("reassign",) * (len(kinds) // 4 + 1)
    return Swarm(
        raft=_draw_raft(rng, replicas),
        replica=replicas,
        controller=ControllerSettings(
            lease_ns=LEASE,
            report_valid_ns=2 * replicas.leader_timeout,
            accused_ns=max(replicas.accused, 2 * replicas.leader_timeout),
            retry_interval_ns=LEASE // 2,
            preferred_settle_ns=4 * LEASE if replicas.moves else NEVER,
            preferred_pause_ns=LEASE,
            voter_replace_after_ns=LEASE // 2,
        ),
        saying=_scaled(raft.draw(rng).weather, LEASE // 2),
        late_rows=rng.choice((0, 0, LEASE // 100, LEASE // 10)),
        together=rng.choice((0.3, 0.7, 1.0)),
        faults=kinds or ("kill_one",),
    )


def with_lost_logs(swarm: Swarm, rng: Random) -> Swarm:
    """Return the cluster with disks from which single logs vanish, in a minority of clusters."""
    if rng.random() >= 0.15:
        return swarm
    share = len(swarm.faults) // rng.choice((6, 3, 1)) + 1
    return replace(swarm, faults=swarm.faults + ("lose_log", "lose_log_in_the_dark") * share)


def _slowed(rng: Random, replicas: replica.Swarm) -> replica.Swarm:
    """Leave enough time between two faults for a lease to run out, and do little meanwhile."""
    return replace(
        replicas,
        fault_interval=int(LEASE * rng.uniform(0.7, 3.0)),
        safety_end=int(LEASE * rng.uniform(10, 25)),
        think_mean=max(replicas.think_mean, LEASE // 4),
    )


def _draw_raft(rng: Random, replicas: replica.Swarm) -> raft.Swarm:
    """Draw what is Raft's alone; times in proportion to an election timeout that is shorter than a lease."""
    timeout = int(LEASE * rng.uniform(0.2, 0.6))
    drawn = raft.draw(rng)
    return replace(
        drawn,
        voters=replicas.nodes,
        election_timeout=timeout,
        heartbeat_interval=timeout // rng.randint(3, 5),
        weather=_scaled(drawn.weather, timeout),
        write_mean=min(drawn.write_mean * timeout // raft.ELECTION_TIMEOUT, 2 * replicas.write_mean),
        drift_ppm=replicas.drift_ppm,
        append_bytes_max=rng.choice((5_000, 100_000)),
        compact_entries=rng.choice((0, 3, 10, 30)),
        crash_after_write=rng.choice((0.0, 0.0, 0.0, 0.005)),
        failing_sync=0.0,
    )


def _scaled(weather: Weather, timeout: int) -> Weather:
    return replace(
        weather,
        delay_mean=weather.delay_mean * timeout // raft.ELECTION_TIMEOUT,
        straggling_max=weather.straggling_max * timeout // raft.ELECTION_TIMEOUT,
    )
