"""What is done to the cluster: faults drawn from a seed, in rounds, each of which ends with all mended.

All of a round is drawn before it begins, so that a seed stands for one sequence of faults whatever the
cluster does. Whom a role means (the leader, that of the metadata log) is looked up as the fault strikes.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from nats.aio.client import Client

from tests.chaos.cluster import NATS, ChaosCluster, asked, pairs_between, passes
from tests.chaos.fault import Fault
from tests.chaos.host_faults import HostFaults
from tests.chaos.member_faults import MemberFaults
from tests.chaos.recorder import Recorder
from tests.support.faulty_network import Pair

_ROLES: Final = ("one", "one", "leader", "leader", "metadata leader", "in sync", "majority", "all")
_KINDS: Final = {
    "kill": 4,
    "kill-starting": 1,
    "stop": 1,
    "pause": 4,
    "partition": 5,
    "slow": 2,
    "cut": 2,
    "nats-cut": 2,
    "nats-slow": 1,
    "nats-kill": 1,
    "nats-pause": 1,
    "disk": 2,
    "wipe": 2,
    "blank-stream": 2,
    "clock": 2,
    "descriptors": 2,
    "member-kill": 2,
    "member-stop": 1,
    "member-pause": 3,
    "member-cut": 3,
    "member-slow": 1,
}
"""How likely each is, against the others."""
KINDS: Final = tuple(_KINDS)
LOSSES: Final = ("wipe", "blank-stream")
"""Those that take what is on a disk: at most one in a round, before all else, when everything is whole."""
MEMBER_KINDS: Final = tuple(kind for kind in KINDS if kind.startswith("member-"))
_SILENCE_SECONDS: Final = 4.5
"""A node's connection to NATS is given up after two of its `ping_interval` of silence, which are 4 s."""
_SHAPES: Final = ("isolated", "isolated", "deaf", "dumb", "refused", "halves", "ring", "from metadata")


@dataclass(frozen=True, slots=True)
class Round:
    """Faults that meet, how all is mended, and whether the cluster has time to recover."""

    faults: tuple[Fault, ...]
    loses: bool
    """Whether what the network holds is lost when it heals."""
    staggered_s: float
    """How long at most between one node that comes back and the next."""
    recovers: bool
    rights_clocks: bool


def drawn(chance: random.Random, kinds: Sequence[str], seconds_max: float) -> Round:
    """Draw the next round."""
    weights = [_KINDS[kind] for kind in kinds]
    count = chance.choices((1, 2, 3), (6, 3, 1))[0]
    faults = [
        Fault(
            kind=kind,
            role=chance.choice(_ROLES),
            shape=chance.choice(_SHAPES),
            number=chance.random(),
            after_acks=chance.choice((1, 10, 50, 200)),
            seconds=chance.uniform(0.1, seconds_max),
        )
        for kind in chance.choices(kinds, weights, k=count)
    ]
    losses = [fault for fault in faults if fault.kind in LOSSES]
    return Round(
        (*losses[:1], *(fault for fault in faults if fault.kind not in LOSSES)),
        loses=chance.random() < 0.5,
        staggered_s=chance.choice((0.0, 0.0, 1.0)),
        recovers=chance.random() < 0.4,
        rights_clocks=chance.random() < 0.5,
    )


def ring_cuts(names: Sequence[str]) -> list[Pair]:
    """Return the directions to hold so that everybody sees a majority, and no two the same one."""
    size = len(names)
    places = {name: place for place, name in enumerate(names)}

    def are_neighbours(one: str, other: str) -> bool:
        distance = abs(places[one] - places[other])
        return distance == 1 or (size > 3 and distance == size - 1)

    return [pair for pair in pairs_between(set(names), set(names)) if not are_neighbours(*pair)]


@dataclass
class Nemesis:
    """Carries rounds out."""

    cluster: ChaosCluster
    recorder: Recorder
    client: Client
    members: MemberFaults
    hosts: HostFaults
    streams: Sequence[str]
    chance: random.Random
    over: asyncio.Event
    counts: dict[str, int] = field(default_factory=dict)
    _leaders: dict[str, str] = field(default_factory=dict)
    _isr: list[str] = field(default_factory=list)

    async def strike(self, round_: Round) -> None:
        """Do what was drawn, and mend it."""
        for fault in round_.faults:
            await self._look()
            strikes: dict[str, Callable[[Fault], Awaitable[str]]] = {
                "kill": self._kill,
                "kill-starting": self._kill_starting,
                "stop": self._stop,
                "pause": self._pause,
                "partition": self._partition,
                "slow": self._slow,
                "cut": self._cut,
                "nats-cut": self._nats_cut,
                "nats-slow": self._nats_slow,
                "nats-kill": self._nats_kill,
                "nats-pause": self._nats_pause,
                "disk": self._disk,
                **self.members.strikes,
                **self.hosts.strikes(self._victims(fault)),
            }
            text = await strikes[fault.kind](fault)
            count = f"{fault.kind} (skipped)" if text.startswith("skipped") else fault.kind
            self.counts[count] = self.counts.get(count, 0) + 1
            self.recorder.note(f"{fault.kind}: {text}")
            if fault.kind in MEMBER_KINDS:
                await passes(fault.seconds, self.over)  # sessions last for a time, not for a number of acks
            else:
                await self.recorder.more_acks(fault.after_acks, fault.seconds)
        for name in self.chance.sample(sorted(self.cluster.nodes), len(self.cluster.nodes)):
            if round_.staggered_s and not self.cluster.nodes[name].is_running:
                await self.cluster.start(name)
                await passes(self.chance.uniform(0, round_.staggered_s), self.over)
        await self.cluster.heal(lose=round_.loses)
        await self.members.workforce.heal()
        if round_.rights_clocks:
            for name in self.cluster.nodes:
                self.cluster.move_clock(name, 0.0)
        lost = ", what was held is lost" if round_.loses else ""
        self.recorder.note(f"healed{lost}{', clocks are right' if round_.rights_clocks else ''}")

    # --- whom -------------------------------------------------------------------------------------

    async def _look(self) -> None:
        """Look up who leads, if anybody says so quickly; else what was so stays what is believed."""
        stream = self.chance.choice(list(self.streams))
        info, cluster = await asyncio.gather(
            asked(self.client, "stream.info", 1.0, name=stream), asked(self.client, "cluster.info", 1.0)
        )
        if info.get("leader"):
            self._leaders["leader"] = info["leader"]
            self._isr = info["isr"]
        if cluster.get("metadata_leader"):
            self._leaders["metadata leader"] = cluster["metadata_leader"]

    def _victims(self, fault: Fault) -> list[str]:
        names = sorted(self.cluster.nodes)
        one = names[int(fault.number * len(names))]
        turned = names[names.index(one) :] + names[: names.index(one)]
        match fault.role:
            case "all":
                return names
            case "majority":
                return sorted(turned[: len(names) // 2 + 1])
            case "in sync":
                return sorted(self._isr) or [one]
            case role:
                return [self._leaders.get(role, one)]

    # --- processes --------------------------------------------------------------------------------

    async def _kill(self, fault: Fault) -> str:
        victims = self._victims(fault)
        for name in victims:
            await self.cluster.kill(name)
        return f"{fault.role} {' '.join(victims)}"

    async def _kill_starting(self, fault: Fault) -> str:
        [name, *_] = self._victims(fault)
        for _ in range(3):
            await self.cluster.kill(name)
            await self.cluster.start(name)
            await passes(2 * fault.number, self.over)
        return name

    async def _stop(self, fault: Fault) -> str:
        [name, *_] = self._victims(fault)
        return f"{fault.role} {name}, exit code {await self.cluster.stop(name)}"

    async def _pause(self, fault: Fault) -> str:
        victims = self._victims(fault)
        for name in victims:
            self.cluster.pause(name)
        return f"{fault.role} {' '.join(victims)}"

    # --- the network ------------------------------------------------------------------------------

    async def _partition(self, fault: Fault) -> str:
        names = sorted(self.cluster.nodes)
        if fault.shape == "ring":
            held = ring_cuts(names)
            self.cluster.network.hold(held)
            return "ring: " + " ".join(f"{one}-{other}" for one, other in held if one < other)
        inside = set(self._victims(fault))
        if fault.shape == "halves" or len(inside) in (0, len(names)):
            start = int(fault.number * len(names))
            inside = {names[(start + step) % len(names)] for step in range(len(names) // 2)}
        outside = set(names) - inside
        if fault.shape == "from metadata":
            outside = {self._leaders.get("metadata leader", names[0])} - inside
        out, into = pairs_between(inside, outside), pairs_between(outside, inside)
        if fault.number > 0.7:  # from NATS too
            out, into = out + pairs_between(inside, {NATS}), into + pairs_between({NATS}, inside)
        where = f"{fault.shape}: {' '.join(sorted(inside))} from {' '.join(sorted(outside))}"
        self._part(fault.shape, out, into)
        return where + (", and NATS" if fault.number > 0.7 else "")

    def _part(self, shape: str, out: list[Pair], into: list[Pair]) -> None:
        if shape == "refused":
            self.cluster.network.refuse([*out, *into])
        elif shape == "deaf":
            self.cluster.network.hold(into)
        elif shape == "dumb":
            self.cluster.network.hold(out)
        else:
            self.cluster.network.hold([*out, *into])

    async def _slow(self, fault: Fault) -> str:
        victims, names = set(self._victims(fault)), set(self.cluster.nodes)
        pairs = pairs_between(victims, names) + pairs_between(names, victims)
        delay_s = 0.3 * fault.number**2
        bytes_per_s = 20_000 + 200_000 * fault.number if fault.shape in ("halves", "ring", "deaf") else None
        self.cluster.network.slow(pairs, delay_s, bytes_per_s)
        return f"{' '.join(sorted(victims))} by {delay_s * 1000:.0f} ms, {bytes_per_s} bytes/s"

    async def _cut(self, fault: Fault) -> str:
        victims, names = set(self._victims(fault)), {*self.cluster.nodes, NATS}
        pairs: list[Pair] = pairs_between(victims, names) + pairs_between(names, victims)
        times = 1 + int(5 * fault.number)
        for _ in range(times):
            self.cluster.network.cut(pairs)
            await passes(0.2 * fault.number, self.over)
        return f"{' '.join(sorted(victims))} {times} times"

    async def _nats_cut(self, fault: Fault) -> str:
        victims = set(self._victims(fault))
        out, into = pairs_between(victims, {NATS}), pairs_between({NATS}, victims)
        self._part(fault.shape, out, into)
        return f"{fault.shape}: {' '.join(sorted(victims))}"

    async def _nats_slow(self, fault: Fault) -> str:
        victims = set(self._victims(fault))
        pairs = pairs_between(victims, {NATS}) + pairs_between({NATS}, victims)
        self.cluster.network.slow(pairs, fault.number, None)
        return f"{' '.join(sorted(victims))} by {fault.number * 1000:.0f} ms"

    # --- NATS and the disk ------------------------------------------------------------------------

    async def _nats_kill(self, _: Fault) -> str:
        await asyncio.to_thread(self.cluster.nats.kill)
        return "killed"

    async def _nats_pause(self, fault: Fault) -> str:
        """For so long, every other time, that nodes and NATS give each other up."""
        if self.cluster.nats.running:
            self.cluster.nats.pause()
        seconds = _SILENCE_SECONDS + 6 * (fault.number - 0.5) if fault.number > 0.5 else 0.0
        await passes(seconds, self.over)
        return f"paused, for {seconds:.1f} s and what follows"

    async def _disk(self, fault: Fault) -> str:
        if self.cluster.small_disk is None:
            return "skipped: only root can mount a small disk"
        left_bytes = int(fault.number * 3) * 20_000
        self.cluster.small_disk.fill(left_bytes)
        return f"{self.cluster.small} has {left_bytes} bytes left"
