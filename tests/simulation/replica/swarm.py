"""What kind of cluster a seed gets: drawn once, so that most clusters lack most faults (swarm testing)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from envelope.types import NodeId, StreamName, SyncMode
from jetstream.replica.settings import ReplicaSettings
from tests.simulation.network import Weather

LEASE: Final = 1_000_000_000
"""Virtual ns that a node's lease lasts; every other time of a run is drawn in proportion to it."""

_NEVER_LOST: Final = 1_000 * LEASE
"""Longer than any run."""

FAULTS: Final = (
    "kill_one",
    "kill_leader",
    "kill_isr",
    "kill_all",
    "stop_one",
    "restart_follower",
    "pause_one",
    "pause_leader",
    "wipe",
    "isolate_one",
    "isolate_leader",
    "cut_metadata",
    "cut_leaders_metadata",
    "one_way",
    "halves",
    "clog",
    "disconnect",
    "cut_bus",
    "slow_disk",
    "stalled_disk",
    "full_disk",
    "clock_jump",
    "hand_over",
    "there_and_back",
    "metadata_down",
    "trim",
)
_AGAINST_REIGNS: Final = (
    "hand_over",
    "there_and_back",
    "there_and_back",
    "kill_leader",
    "restart_follower",
    "slow_disk",
    "one_way",
    "cut_leaders_metadata",
)
_AGAINST_MEMBERS: Final = ("slow_disk", "isolate_one", "wipe", "wipe", "wipe", "kill_leader", "hand_over")


@dataclass(frozen=True, slots=True)
class StreamShape:
    """One stream as it is created."""

    name: StreamName
    replicas: tuple[NodeId, ...]
    min_insync_replicas: int
    sync: SyncMode = SyncMode.ALWAYS
    unclean_election: bool = False
    read_replicas: tuple[NodeId, ...] = ()
    dedupe_window: int = 0
    """Virtual ns after which a repeat may be stored again; 0: never."""

    @property
    def holders(self) -> tuple[NodeId, ...]:
        """All nodes that have a log of it: replicas, then read replicas."""
        return self.replicas + self.read_replicas


@dataclass(frozen=True, slots=True)
class Swarm:
    """The parameters of one cluster; times in virtual ns, probabilities from 0 to 1."""

    nodes: tuple[NodeId, ...]
    streams: tuple[StreamShape, ...]
    settings: ReplicaSettings
    leader_timeout: int
    accused: int
    """How long a leader that was replaced for its silence is not elected for another's."""
    weather: Weather
    reliable: bool
    """Connections between nodes lose nothing without breaking; no fetch is ever taken for lost."""
    bus_delay: int
    bus_loss: float
    metadata_delay: int
    """Mean time from a command's arrival to its application."""
    metadata_loss: float
    notice_delay: int
    """Mean time until a node is told that the catalogue has changed."""
    coalesced_notices: bool
    """A node that is behind sees only the newest row of each stream."""
    write_mean: int
    late_report: float
    power: float
    """Share of the crashes that lose what was not synced."""
    breaks_off: float
    """Share of the connections to a dying process that lose what is under way."""
    spares_the_last: bool
    """The last disk of an ISR is never lost."""
    drift_ppm: int
    keeps_high_watermark: bool
    """A node starts with a high watermark that it knew before, not with 0."""
    group_records_max: int
    served_batches_max: int
    publishers: int
    in_flight: int
    think_mean: int
    gives_up: float
    readers: int
    faults: tuple[str, ...]
    fault_interval: int
    fault_length: int
    safety_end: int
    moves: bool
    """Streams are moved to other nodes, and go back to their preferred leaders."""
    syncs: float = 1.0
    """Share of the writes that a sync follows, of streams without ``sync: always``."""
    verifies: bool = False
    """Every start reads all that is stored."""
    deaf: float = 0.0
    """Share of the answers that publishers do not hear."""

    def shape_of(self, stream: StreamName) -> StreamShape:
        """Return a stream as it is created."""
        return next(shape for shape in self.streams if shape.name == stream)

    @property
    def has_read_replicas(self) -> bool:
        """Whether nodes copy streams that they never lead, and which these are changes."""
        return any(shape.read_replicas for shape in self.streams)


_SIZES: Final = (3, 20, 55, 12, 10)
"""How often a cluster has one node, two, and so on."""


def draw(rng: Random, *, frugal: bool, sizes: Sequence[int] = _SIZES) -> Swarm:
    """Draw a cluster; ``frugal``: its followers ask for what comes next when they acknowledge."""
    count = rng.choices((1, 2, 3, 4, 5), sizes)[0]
    nodes = tuple(NodeId(f"n{number}") for number in range(1, count + 1))
    style = rng.random()
    if style < 0.25:
        kinds: tuple[str, ...] = _AGAINST_REIGNS
    elif style < 0.4:
        kinds = _AGAINST_MEMBERS
    else:
        kinds = tuple(kind for kind in FAULTS for _ in range(rng.choice((0, 0, 0, 1, 4))))
    reliable = rng.random() < 0.3
    settings = _draw_settings(rng, reliable=reliable, frugal=frugal)
    # Whoever is well answers a ping within that, and is asked as often as machines are woken up.
    silence = settings.retry_interval_ns + 2 * settings.heartbeat_interval_ns
    leader_timeout = int(silence * rng.uniform(1.2, 3.0))
    swarm = Swarm(
        nodes=nodes,
        streams=tuple(_draw_stream(rng, nodes, number) for number in range(rng.choice((1, 1, 1, 2)))),
        settings=settings,
        leader_timeout=leader_timeout,
        accused=int(leader_timeout * rng.uniform(2, 10)),
        weather=_draw_weather(rng, reliable=reliable, late=style < 0.4),
        reliable=reliable,
        bus_delay=int(LEASE * 10 ** rng.uniform(-3.0, -1.5)),
        bus_loss=rng.choice((0.0, 0.0, 0.1)),
        metadata_delay=int(LEASE * 10 ** rng.uniform(-2.5, -0.5)),
        metadata_loss=rng.choice((0.0, 0.0, 0.1, 0.4)),
        notice_delay=int(LEASE * 10 ** rng.uniform(-2.5, -0.3)),
        coalesced_notices=rng.random() < 0.4,
        write_mean=int(LEASE * 10 ** rng.uniform(-3.5, -1.2)),
        late_report=rng.choice((0.0, 0.1, 0.5)),
        power=rng.choice((0.0, 0.5, 1.0)),
        breaks_off=rng.choice((0.3, 0.9)),
        spares_the_last=rng.random() < 0.9,
        drift_ppm=rng.choice((0, 1_000, 50_000)),
        keeps_high_watermark=rng.random() < 0.5,
        group_records_max=rng.choice((1, 3, 10)),
        served_batches_max=rng.choice((1, 3, 100)),
        publishers=rng.randint(1, 3),
        in_flight=rng.choice((1, 1, 3, 8)),
        think_mean=int(LEASE * 10 ** rng.uniform(-2.0, -0.3)),
        gives_up=rng.choice((0.0, 0.1, 0.5)),
        readers=rng.choice((0, 1, 2)),
        faults=kinds or ("kill_one",),
        fault_interval=int(LEASE * 10 ** rng.uniform(-0.8, 0.4)),
        fault_length=int(LEASE * 10 ** rng.uniform(-0.9, 0.5)),
        safety_end=int(LEASE * rng.uniform(5, 20)),
        moves=False,
    )
    # No draw of its own, which would change all that follows.
    return _moving(swarm) if swarm.safety_end % 4 == 0 else swarm


def with_promises(swarm: Swarm, rng: Random) -> Swarm:
    """Return the cluster with streams that promise other things than most do, in a minority of clusters."""
    return _unsynced(swarm, rng) if rng.random() < 0.2 else swarm


def with_lost_logs(swarm: Swarm, rng: Random) -> Swarm:
    """Return the cluster with disks from which single logs vanish, in a minority of clusters."""
    if rng.random() >= 0.15:
        return swarm
    share = len(swarm.faults) // rng.choice((6, 3, 1)) + 1
    return replace(swarm, faults=swarm.faults + ("lose_log", "lose_log_in_the_dark") * share)


def with_damage(swarm: Swarm, rng: Random) -> Swarm:
    """Return the cluster with disks that lose bits, in a minority of clusters."""
    if rng.random() >= 0.15:
        return swarm
    share = rng.choice((4, 2, 1))
    flips = ("flip",) * (len(swarm.faults) // share + 1)
    return replace(swarm, faults=swarm.faults + flips, verifies=rng.random() < 0.3)


def with_dedupe_windows(swarm: Swarm, rng: Random) -> Swarm:
    """Return the cluster with short dedupe windows and followers that are away for longer, in a minority.

    Not where disks lose bits: ids inside damaged ranges are forgotten.
    """
    if rng.random() >= 0.25 or "flip" in swarm.faults:
        return swarm
    shortest = 8 * swarm.settings.heartbeat_interval_ns  # the upkeep comes several times in a window
    streams = tuple(
        replace(
            shape,
            dedupe_window=max(shortest, int(LEASE * 10 ** rng.uniform(-0.9, 0.1))),
            min_insync_replicas=max(shape.min_insync_replicas, rng.choice((1, len(shape.replicas) // 2 + 1))),
        )
        for shape in swarm.streams
    )
    share = len(swarm.faults) // rng.choice((8, 4, 2)) + 1
    return replace(
        swarm,
        streams=streams,
        deaf=rng.choice((0.1, 0.3, 0.6)),
        gives_up=rng.choice((0.0, 0.02)),
        faults=swarm.faults + ("followers_away",) * share,
    )


def _unsynced(swarm: Swarm, rng: Random) -> Swarm:
    """Return the cluster with streams that are not synced before they count, and machines that lose power."""
    syncs, modes = rng.choice((0.0, 0.1, 0.5)), (SyncMode.INTERVAL, SyncMode.OS)
    streams = tuple(replace(shape, sync=rng.choice(modes)) for shape in swarm.streams)
    return replace(swarm, streams=streams, syncs=syncs, power=rng.choice((0.3, 0.7, 1.0)))


def with_read_replicas(swarm: Swarm, rng: Random) -> Swarm:
    """Return the cluster with read replicas, on nodes of their own if need be, in a minority of clusters."""
    return _read_elsewhere(swarm, rng) if rng.random() < 0.15 else swarm


def _read_elsewhere(swarm: Swarm, rng: Random) -> Swarm:
    """Return the cluster with one or two read replicas of each stream, which come and go."""
    counts = [rng.choice((1, 1, 2)) for _ in swarm.streams]
    holders = max(len(shape.replicas) + count for shape, count in zip(swarm.streams, counts, strict=True))
    size = max(len(swarm.nodes), holders + rng.choice((0, 1)))
    nodes = swarm.nodes + tuple(NodeId(f"n{number}") for number in range(len(swarm.nodes) + 1, size + 1))
    streams = []
    for shape, count in zip(swarm.streams, counts, strict=True):
        free = [node for node in nodes if node not in shape.replicas]
        streams.append(replace(shape, read_replicas=tuple(rng.sample(free, count))))
    share = 1 + len(swarm.faults) // 4
    exchanges = ("exchange_readers",) * share + ("leave_and_return",) * share
    return replace(
        swarm,
        nodes=nodes,
        streams=tuple(streams),
        # Nor does a read replica lead where all disks of the ISR are lost.
        spares_the_last=swarm.spares_the_last and rng.random() < 0.5,
        readers=max(1, swarm.readers),
        faults=swarm.faults + exchanges,
    )


def with_unclean_elections(swarm: Swarm, rng: Random) -> Swarm:
    """Return the cluster with streams that others than the ISR may lead, in a minority of clusters.

    There whole ISRs are lost, also those of streams that do not permit it; at times an operator does.
    """
    if rng.random() >= 0.2 or len(swarm.nodes) == 1:
        return swarm
    streams = tuple(replace(shape, unclean_election=rng.random() < 0.7) for shape in swarm.streams)
    often = 1 + len(swarm.faults) // 8
    orders = ("elect_uncleanly",) * often if rng.random() < 0.4 else ()
    faults = swarm.faults + ("lose_isr",) * often + orders
    return replace(swarm, streams=streams, faults=faults)


def _moving(swarm: Swarm) -> Swarm:
    """Return the cluster with streams that are moved: as often as everything else goes wrong together."""
    return replace(swarm, moves=True, faults=swarm.faults + ("reassign",) * len(swarm.faults))


def _draw_stream(rng: Random, nodes: tuple[NodeId, ...], number: int) -> StreamShape:
    count = min(len(nodes), rng.choices((1, 2, 3, 5), (4, 20, 70, 6))[0])
    majority = count // 2 + 1
    minimum = rng.choices((rng.randint(1, majority), majority), (1, 1))[0]
    return StreamShape(StreamName(f"s{number + 1}"), tuple(rng.sample(nodes, count)), minimum)


def _draw_settings(rng: Random, *, reliable: bool, frugal: bool) -> ReplicaSettings:
    heartbeat = int(LEASE * 10 ** rng.uniform(-1.5, -0.7))
    retry = int(heartbeat * rng.uniform(1.3, 3.0))
    return ReplicaSettings(
        heartbeat_interval_ns=heartbeat,
        retry_interval_ns=retry,
        fetch_timeout_ns=_NEVER_LOST if reliable else int(heartbeat * rng.uniform(1.3, 3.0)),
        replica_lag_max_ns=int(retry * rng.uniform(1.2, 5.0)),
        ask_ahead_records_min=0
        if retry % 4
        else 3,  # no draw of its own, which would change all that follows
    )


def _draw_weather(rng: Random, *, reliable: bool, late: bool) -> Weather:
    """Return the weather; ``late``: what is sent in one reign or life often arrives in a later one."""
    delay_mean = int(LEASE * 10 ** rng.uniform(-3.0, -1.0))
    if reliable:
        return Weather(delay_mean, in_order=True)
    return Weather(
        delay_mean=delay_mean,
        loss=rng.choice((0.0, 0.0, rng.uniform(0.0, 0.3))),
        twice=rng.choice((0.0, 0.0, rng.uniform(0.0, 0.5))),
        straggling=rng.uniform(0.02, 0.2) if late and rng.random() < 0.7 else rng.choice((0.0, 0.0, 0.05)),
        straggling_max=LEASE * rng.randint(1, 4),
        in_order=rng.random() < 0.5,
    )
