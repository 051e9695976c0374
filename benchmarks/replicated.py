"""Streams with three copies as systems under test, beside those with one of `benchmarks.systems`.

The publisher is connected where the stream's leader is. For JetStream that is the leader's own nats-server:
at another one it would pay for a further hop. Ours has one nats-server for everybody.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nats.aio.client import Client

from benchmarks.clusters import (
    LOOK_SECONDS,
    NAMES,
    Cluster,
    NatsCluster,
    NodeCluster,
    StreamPlace,
    nats_cluster,
    node_cluster,
    until_whole,
)
from benchmarks.loadgen import STORE_IN_PYTHON, Address
from benchmarks.systems import Count, Holdings, Laboratory, System, each, stream_name, subjects

OURS_ALWAYS: Final = "ours RF 3, sync always"
OURS_OS: Final = "ours RF 3, sync os"
PEER_DEFAULT: Final = "JetStream R3, default"
PEER_ALWAYS: Final = "JetStream R3, sync always"
BARE_STORE_ALWAYS: Final = "bare store RF 3, sync always"
BARE_STORE_OS: Final = "bare store RF 3, sync os"
PYTHON_STORE_ALWAYS: Final = "bare store in Python RF 3, sync always"
PYTHON_STORE_OS: Final = "bare store in Python RF 3, sync os"
CLUSTERS: Final = (OURS_ALWAYS, OURS_OS, PEER_DEFAULT, PEER_ALWAYS)
PYTHON_STORES: Final = (PYTHON_STORE_ALWAYS, PYTHON_STORE_OS)
BARE_STORES: Final = (BARE_STORE_ALWAYS, BARE_STORE_OS, *PYTHON_STORES)
SYSTEMS: Final = (*CLUSTERS, *BARE_STORES)

EQUAL_SECONDS_MAX: Final = 30.0
"""How long the copies may take to be alike after a run, and to be gone after their stream."""


@dataclass(slots=True)
class Replicated:
    """Streams on a cluster of three."""

    name: str
    cluster: Cluster
    settings: Mapping[str, object] = field(default_factory=dict)
    """Of our streams."""
    leader: str = NAMES[0]
    """The server that leads the first of the streams that are there."""

    @property
    def address(self) -> Address:
        """Where a publisher is nearest to the leader."""
        return self.cluster.address(self.leader)

    @property
    def processes(self) -> Mapping[str, int]:
        """The three servers by what they are to the first stream, and what runs beside them."""
        followers = [name for name in NAMES if name != self.leader]
        roles = {"leader": self.leader} | {f"follower {name}": name for name in followers}
        pids = {role: self.cluster.servers[name].pid for role, name in roles.items()}
        return pids | dict(self.cluster.others)

    @contextmanager
    def streams(self, count: int) -> Iterator[Count]:
        """Create streams, and wait until all their copies are in sync."""
        names = [stream_name(index) for index in range(count)]
        home = self.cluster.address(NAMES[0])
        self._even_batches(at=0)

        async def create(client: Client, pair: tuple[str, str]) -> StreamPlace:
            await self.cluster.create(client, *pair, self.settings)
            return await until_whole(self.cluster, client, pair[0])

        begun = each(home, list(zip(names, subjects(count), strict=True)), create)
        assert begun[0].leader is not None, "a whole stream is led"
        self.leader = begun[0].leader

        def count_records() -> Holdings:
            records = each(home, names, self.cluster.records)
            ended = each(home, names, self.cluster.place)
            batches, problem = self._even_batches()
            in_sync = min(len(place.in_sync) for place in ended)
            return Holdings(tuple(records), batches, in_sync, problem or _moved(begun, ended))

        try:
            yield count_records
        finally:
            each(home, names, self.cluster.delete)

    def _even_batches(self, at: int | None = None) -> tuple[int | None, str | None]:
        """Wait until all servers hold as many batches, ``at`` if given; return how many, what is wrong."""
        deadline = time.monotonic() + EQUAL_SECONDS_MAX
        while (counts := self.cluster.batches()) is not None:
            if len(set(counts)) == 1 and at in (None, counts[0]):
                return counts[0], None
            if time.monotonic() > deadline:
                return None, f"the servers hold {counts} batches"
            time.sleep(LOOK_SECONDS)
        return None, None


@dataclass
class ClusterLaboratory(Laboratory):
    """Knows the systems with three copies as well; streams of all settings share their system's cluster."""

    _clusters: dict[str, Cluster] = field(default_factory=dict)

    def _start(self, name: str, settings: Mapping[str, object]) -> System:
        if name not in SYSTEMS:
            return super()._start(name, settings)
        if name in BARE_STORES:
            followers = [f"follower {copy}" for copy in NAMES[1:]]
            sync = "always" if name in (BARE_STORE_ALWAYS, PYTHON_STORE_ALWAYS) else "os"
            return self._bare_store(name, sync, followers, STORE_IN_PYTHON if name in PYTHON_STORES else ())
        if name in (PEER_DEFAULT, PEER_ALWAYS):
            return Replicated(name, self.cluster(name))
        of_ours: dict[str, object] = {"sync": "always" if name == OURS_ALWAYS else "os"}
        return Replicated(name, self.cluster(name), of_ours | dict(settings))

    def cluster(self, name: str) -> Cluster:
        """Return the running servers of the system of that name."""
        if name not in self._clusters:
            self._clusters[name] = self._stack.enter_context(running(name, self._fresh()))
        return self._clusters[name]


def running(
    name: str, directory: Path, log_level: str = "warning"
) -> AbstractContextManager[NodeCluster | NatsCluster]:
    """Run the servers of the system of that name in a fresh directory; the level is for our nodes."""
    assert name in CLUSTERS, name
    if name in (PEER_DEFAULT, PEER_ALWAYS):
        return nats_cluster(directory, "sync_interval: always" if name == PEER_ALWAYS else "")
    return node_cluster(directory, log_level)


def _moved(begun: list[StreamPlace], ended: list[StreamPlace]) -> str | None:
    """Say that a stream was led by several servers in turn."""
    moved = [
        f"{stream_name(index)} from {before.leader} to {after.leader}"
        for index, (before, after) in enumerate(zip(begun, ended, strict=True))
        if (before.leader, before.leader_epoch) != (after.leader, after.leader_epoch)
    ]
    return f"leadership moved: {', '.join(moved[:3])}" if moved else None
