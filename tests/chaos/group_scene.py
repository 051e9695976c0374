"""Node processes, member processes, and between them a network whose every link can break."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from nats.aio.client import Client

import jetstream
from envelope.errors import JetstreamError
from envelope.internal_streams import group_shard
from jetstream import JetstreamClient
from tests.chaos.aftermath import traces
from tests.chaos.member_task import Task
from tests.chaos.members import MemberProcess
from tests.chaos.recorder import Recorder
from tests.support.cluster_scene import ClusterScene
from tests.support.faulty_network import Network, faulty_network
from tests.support.group_history import (
    AskedFor,
    Committed,
    Committing,
    Delivered,
    Ending,
    Granted,
    PutOut,
    group_anomalies,
)
from tests.support.nats_server import NatsServer
from tests.support.node_cluster import NodeCluster, asked
from tests.support.nodes import WAIT_SECONDS
from tests.support.pauses import pause


@dataclass(frozen=True)
class Stage:
    """Nodes a, b and c, which are voters, and d, for one scene after the other."""

    nats: NatsServer
    cluster: NodeCluster

    def mend(self) -> None:
        """Have everybody run."""
        if not self.nats.running:
            self.nats.start()
        for node in self.cluster.nodes.values():
            if node.is_running:
                node.send(signal.SIGCONT)
            else:
                node.kill()
                node.start()


@contextmanager
def stage(directory: Path) -> Iterator[Stage]:
    """Start them; whoever still runs in the end is killed."""
    with NatsServer(directory / "nats") as nats:
        cluster = NodeCluster(directory, nats.url, size=3, data=1)
        try:
            cluster.start()
            yield Stage(nats, cluster)
        finally:
            cluster.close()


@dataclass
class GroupScene:
    """One group, and what tests of its faults look at."""

    group: str
    stage: Stage
    js: JetstreamClient
    network: Network
    recorder: Recorder
    directory: Path
    tasks: asyncio.TaskGroup
    published: dict[str, list[str]] = field(default_factory=dict)
    members: dict[str, MemberProcess] = field(default_factory=dict)

    @property
    def cluster(self) -> NodeCluster:
        """The nodes."""
        return self.stage.cluster

    @property
    def client(self) -> Client:
        """For the request API."""
        return self.js.nats

    @property
    def shard(self) -> str:
        """Where the group is kept."""
        return group_shard(self.group)

    async def create(self, count: int) -> None:
        """Create streams for the group."""
        for number in range(count):
            name = f"{self.group}{number}"
            await self.js.streams.create(name, f"{name}.>", replicas=3)
            self.published[name] = []

    async def move(self, stream: str, nodes: list[str]) -> str:
        """Have these nodes hold a stream, and no others; return who leads it when that is so."""
        answer = await asked(self.client, "stream.reassign", name=stream, replicas=nodes)
        assert "error" not in answer, answer
        scene = ClusterScene(self.cluster, self.stage.nats.url)
        info = await scene.until(
            self.client,
            stream,
            lambda info: (
                info["target"] is None and info["state"] == "online" and sorted(info["isr"]) == sorted(nodes)
            ),
        )
        return str(info["leader"])

    async def publish(self, count: int) -> None:
        """Publish so many records to each stream, and await the acks."""
        for stream, values in self.published.items():
            for _ in range(count):
                value = f"{stream}-{len(values)}"
                await self._acked(stream, value)
                values.append(value)

    async def _acked(self, stream: str, value: str) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                try:
                    await self.js.publish(f"{stream}.x", value.encode(), message_id=value)
                except JetstreamError as error:
                    if not error.retriable:
                        raise
                    await pause()
                else:
                    return

    def member(
        self,
        name: str,
        *,
        session_ms: int = 3_000,
        again: float = 0.0,
        gated: bool = False,
        is_library: bool = False,
    ) -> MemberProcess:
        """A member that is to be started; it subscribes to all streams; see `Task`."""
        ports = {node: self.cluster[node].socket_port for node in self.cluster.nodes}
        ways = {port: self.network.port(name, node) for node, port in ports.items()}
        task = Task(
            name=name,
            group=self.group,
            streams=list(self.published),
            ways=ways,
            begun=self.recorder.begun,
            session_ms=session_ms,
        )
        task = replace(task, again=again, gated=gated, is_library=is_library)
        self.members[name] = MemberProcess(task, self.directory, self.recorder, self.tasks)
        return self.members[name]

    async def coordinator(self) -> str:
        """The node that leads the group's shard, once all its replicas are in sync."""
        info = await self.cluster.until_whole(self.client, self.shard, 3)
        return str(info["leader"])

    # --- what the members say ---------------------------------------------------------------------

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until something is so of the history."""
        async with asyncio.timeout(WAIT_SECONDS):
            await self.recorder.until(is_so)

    async def until_shared(self, *members: MemberProcess) -> None:
        """Wait until all of these own something, and nobody else does."""

        def is_so() -> bool:
            owned = [self.owned(member) for member in members]
            return all(owned) and sum(map(len, owned)) == len(self.published)

        await self.until(is_so)

    async def until_done(self) -> None:
        """Wait until all that was published is committed."""
        wanted = {stream: len(values) for stream, values in self.published.items()}
        await self.until(lambda: self.cursors() == wanted)

    def owned(self, member: MemberProcess) -> set[str]:
        """The streams that the process has heard of last, of all who have."""
        latest: dict[str, Granted] = {}
        for event in self.recorder.group_events:
            if isinstance(event, Granted):
                former = latest.get(event.stream)
                latest[event.stream] = event if former is None or event.since > former.since else former
        return {stream for stream, grant in latest.items() if _is_of(member, grant.member)}

    def has_heard(self, kind: type[AskedFor | Granted | PutOut], member: MemberProcess) -> bool:
        """Whether the process has ever heard of such a thing."""
        return any(
            isinstance(event, kind) and _is_of(member, event.member) for event in self.recorder.group_events
        )

    def delivered(self, member: MemberProcess) -> int:
        """How many records the process has got."""
        return sum(
            len(event.values)
            for event in self.recorder.group_events
            if isinstance(event, Delivered) and _is_of(member, event.member)
        )

    def answered(self, member: MemberProcess) -> list[Committed]:
        """What the process heard of its commits."""
        asked = {
            event.commit
            for event in self.recorder.group_events
            if isinstance(event, Committing) and _is_of(member, event.member)
        }
        return [
            event
            for event in self.recorder.group_events
            if isinstance(event, Committed) and event.commit in asked
        ]

    def cursors(self) -> dict[str, int]:
        """The largest cursor of each stream that was acked."""
        asked = {event.commit: event for event in self.recorder.group_events if isinstance(event, Committing)}
        found = dict.fromkeys(self.published, 0)
        for event in self.recorder.group_events:
            if isinstance(event, Committed) and event.outcome == "accepted":
                found[event.stream] = max(found[event.stream], asked[event.commit].offset)
        return found

    async def judge(self) -> None:
        """Have everybody leave, and hold what was seen against what is there."""
        for member in self.members.values():
            if member.is_running:
                assert await member.stop() == 0, member.log.read_text()
            await member.has_said_all()
        for stream, values in self.published.items():
            told = [(record.value or b"").decode() async for record in self.js.read(stream)]
            assert told == values
            self.recorder.record_of_group(Ending(self.recorder.now(), self.group, stream, tuple(told)))
        found = [str(anomaly) for anomaly in group_anomalies(self.recorder.group_events)]
        found += [line for node in self.cluster.nodes.values() for line in traces(node.log)]
        assert not found, "\n".join(found)


def _is_of(member: MemberProcess, label: str) -> bool:
    return label.startswith(f"{member.life}/")


@asynccontextmanager
async def group_scene(
    stage: Stage, directory: Path, group: str, members: Iterable[str]
) -> AsyncIterator[GroupScene]:
    """A scene on whole ground; ``members`` are the names that members may have."""
    cluster = stage.cluster
    stage.mend()
    async with AsyncExitStack() as stack:
        recorder = stack.enter_context(Recorder(directory / "history.jsonl"))
        targets = {
            (member, name): node.socket_port for member in members for name, node in cluster.nodes.items()
        }
        network = await stack.enter_async_context(faulty_network(targets))
        js = await stack.enter_async_context(
            jetstream.connect(stage.nats.url, reconnect_time_wait=0.1, error_cb=_quiet)
        )
        await cluster.until_ready(js.nats)
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        scene = GroupScene(
            group=group,
            stage=stage,
            js=js,
            network=network,
            recorder=recorder,
            directory=directory,
            tasks=tasks,
        )
        try:
            yield scene
        finally:
            for member in scene.members.values():
                if member.is_running:
                    await member.kill()


async def _quiet(error: Exception) -> None:
    """The outages are the test's own doing."""
