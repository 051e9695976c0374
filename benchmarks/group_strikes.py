"""The node that coordinates a group is killed, while a member commits one cursor after the other."""

import asyncio
import re
import time
from dataclasses import dataclass
from typing import Final

from nats.aio.client import Client

from benchmarks.arrivals import outage_ms
from benchmarks.clusters import NodeCluster, connected, eventually, until_whole
from benchmarks.group_members import find_coordinator, groups_of
from benchmarks.group_nodes import sockets_of
from benchmarks.helper_process import HelperProcess, helper
from benchmarks.outages import stamp_ns
from benchmarks.processes import ProcessError
from benchmarks.systems import ask, each
from envelope.internal_streams import GROUP_SHARD_STREAMS
from envelope.types import StreamName

STREAM: Final = "COMMITS"
SHARDS: Final = GROUP_SHARD_STREAMS
LOADED: Final = SHARDS[-1]
"""The shard that gets many cursors; the others stay small."""
CURSORS_AT_ONCE: Final = 5_000
ACKS: Final = 20
"""So many say that commits are acked, before a strike and after it."""
ACK_SECONDS_MAX: Final = 60.0
LOOK_SECONDS: Final = 0.05

_READ: Final = re.compile(r" groups read stream=(\S+) .* seconds=(\S+)")


@dataclass(frozen=True, slots=True)
class CoordinatorStrike:
    """One of them, in milliseconds."""

    outage_ms: float
    """The longest time between two acked commits."""
    reading_ms: float | None
    """Of that, what the new coordinator took to read its groups; None if it did not say."""


class Coordinators:
    """Those of a cluster's shards; every shard is there."""

    def __init__(self, cluster: NodeCluster) -> None:
        self._cluster = cluster
        address = cluster.nats_address
        body = {"name": STREAM, "subject": STREAM.lower(), "replicas": len(cluster.servers)}
        each(address, [body], lambda client, body: ask(client, "stream.create", body))
        for shard in SHARDS:
            find_coordinator(next(iter(sockets_of(address).values())), groups_of(shard, 1)[0])

    def fill(self, cursors: int) -> None:
        """Have so many cursors in the shard that is `LOADED`."""
        bodies = [
            {
                "group": group,
                "cursors": [
                    {"stream": "filled", "partition": n, "offset": n} for n in range(CURSORS_AT_ONCE)
                ],
            }
            for group in groups_of(LOADED, 1 + cursors // CURSORS_AT_ONCE)[1:]
        ]
        each(self._cluster.nats_address, bodies, lambda client, body: ask(client, "group.reset", body))

    def strike(self, shard: StreamName | None, *, leads_metadata: bool | None) -> CoordinatorStrike | None:
        """Kill the coordinator of ``shard``, or of one of the small ones; None if none leads as is asked."""
        places = self._whole()
        leads = asyncio.run(self._metadata_leader())
        wanted = [
            name
            for name, leader in places.items()
            if (name == shard if shard else name != LOADED) and leads_metadata in (None, leader == leads)
        ]
        if not wanted:
            return None
        name, group = wanted[0], groups_of(wanted[0], 1)[0]
        words = ("--url", self._cluster.nats_address.url, "--group", group, "--streams", STREAM)
        with helper("group_consumer", *words, "--session-s", 10, "--commits") as member:
            member.hear("ready")
            member.say("join")
            times = self._acked(member, [], 0)
            struck = self._cluster.servers[places[name]]
            struck_ns = time.time_ns()
            struck.kill()
            times = self._acked(member, times, struck_ns)
            member.say("leave")
            member.hear("left")
        found = outage_ms(times, struck_ns)
        assert found is not None, "acks have come"
        reading_ms = self._reading_ms(name, places[name], struck_ns)
        struck.start()
        return CoordinatorStrike(found, reading_ms)

    def _acked(self, member: HelperProcess, times: list[int], since_ns: int) -> list[int]:
        """Wait until commits are acked after ``since_ns``."""
        deadline = time.monotonic() + ACK_SECONDS_MAX
        while sum(at > since_ns for at in times) < ACKS:
            if time.monotonic() > deadline:
                raise ProcessError("no commit is acked")
            time.sleep(LOOK_SECONDS)
            member.say("seen")
            times = times + [at for _, _, at in member.hear("seen")["seen"]]
        return times

    def _whole(self) -> dict[StreamName, str]:
        """Wait until all shards have all their copies; return who leads them."""

        async def place(client: Client, name: StreamName) -> tuple[StreamName, str]:
            leader = (await until_whole(self._cluster, client, name)).leader
            assert leader is not None, "what is whole is led"
            return name, leader

        return dict(each(self._cluster.nats_address, SHARDS, place))

    async def _metadata_leader(self) -> str:
        async with connected(self._cluster.nats_address) as client:
            return await eventually("a metadata leader", lambda: self._cluster.metadata_leader(client))

    def _reading_ms(self, shard: StreamName, struck: str, since_ns: int) -> float | None:
        """Return how long the new coordinator said that it read; None if it did not."""
        survivors = [server for name, server in self._cluster.servers.items() if name != struck]
        lines = [line for one in survivors for line in one.log.read_text(errors="replace").splitlines()]
        read = [
            found for line in lines if (stamp_ns(line) or 0) >= since_ns and (found := _READ.search(line))
        ]
        return next((1e3 * float(found[2]) for found in read if found[1] == shard), None)
