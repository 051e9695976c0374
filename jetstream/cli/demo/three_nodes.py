"""The steps of ``jetstream demo --nodes 3``: the demo through the death of the node that leads the stream."""

import asyncio
import hashlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import nats
import pyarrow as pa

import jetstream
from envelope.errors import CorruptDataError, DeadlinePassed, UnavailableError
from envelope.types import NodeId
from jetstream.cli.demo.flight_query import sealed_segments
from jetstream.cli.demo.flights import Flight
from jetstream.cli.demo.plain_publisher import PlainPublisher, Progress, PublishedFlights, publish_flights
from jetstream.cli.demo.single_node import (
    MARKER,
    STREAM,
    DemoReport,
    checked_sha256,
    demo_report,
    prepared_stream,
    read_back,
    refuse_foreign,
)
from jetstream.cli.serve.cluster_directory import NodePorts, cluster_directory, free_ports
from jetstream.cli.serve.data_directory import CLUSTER_FILE, EMBEDDED_NATS_DIRECTORY
from jetstream.cli.serve.local_cluster import LocalCluster, NodeChange, local_cluster
from jetstream.client.connection import JetstreamClient
from jetstream.node.nats.embedded_server import EmbeddedNatsServer
from metadata.api.responses import StreamInfo, StreamState

WHOLE_SECONDS: Final = 120.0
"""How long the cluster may take to come up, and a node that was away to have caught up."""

_LOOK_SECONDS: Final = 0.05
_RUN_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Failover:
    """The effects of the death of a leader.

    Attributes:
        killed: the node that led.
        killed_after: messages acked when it was killed.
        successor: the node that leads since.
        epoch: leader epoch of the successor.
        silence_seconds: from the last ack of the old leader to the first of the new one, at the publisher.
        sent_again: messages that the publisher had to send once more.
        caught_up_seconds: from the restart of the killed node to its being in sync.
        isr: in sync in the end.
        equal_files: sealed segment files that every replica has, byte for byte the same.
    """

    killed: str
    killed_after: int
    successor: str
    epoch: int
    silence_seconds: float
    sent_again: int
    caught_up_seconds: float
    isr: tuple[str, ...]
    equal_files: int


async def run_cluster_demo(
    directory: Path,
    nodes: int,
    messages: Sequence[Flight],
    progress: Progress,
    say: Callable[[str], None],
) -> tuple[DemoReport, Failover]:
    """Publish ``messages`` to a stream with a replica on each node, kill its leader meanwhile, check all.

    Args:
        directory: empty, or an earlier run's; its stream is replaced.
        nodes: how many.
        messages: published in this order; messages that have to be sent again may be stored later.
        progress: shows a step's progress: takes its name and total.
        say: prints a line for people.

    Raises:
        InvalidConfig: the directory has the data of nodes, and not of this many of an earlier demo.
        CorruptDataError: the records read back are not those that were acked.
        UnavailableError: a node cannot be kept alive, or does not come back in time.
    """
    refuse_foreign(directory, CLUSTER_FILE)
    async with AsyncExitStack() as running:
        claimed = running.enter_context(cluster_directory(directory, nodes))
        (directory / MARKER).touch()
        ports = free_ports(nodes)
        settings = {node: NodePorts(port, None) for node, port in zip(claimed.peers, ports, strict=True)}
        claimed.write_settings(settings, "error")
        server = await running.enter_async_context(EmbeddedNatsServer(directory / EMBEDDED_NATS_DIRECTORY))

        def told(change: NodeChange) -> None:
            if change.event != "stopped":
                say(change.text)

        def log(node: str, line: str) -> None:
            say(f"{node}: {line}")

        cluster = await running.enter_async_context(
            local_cluster(claimed, {"urls": [server.url]}, told, log, asyncio.Event())
        )
        client = await running.enter_async_context(jetstream.connect(server.url))
        run = _Run(client, cluster, say)
        await run.begin()
        published, failover = await run.publish(server.url, messages, progress)
        read = await read_back(client, 0, len(messages), progress)
        sha256 = checked_as_acked(messages, published.offsets, read.records)
        await run.until_whole()
    files = {node: sealed_segments(directory / node) for node in claimed.peers}
    failover = replace(
        failover, equal_files=equal_files([{path.name: path for path in found} for found in files.values()])
    )
    report = demo_report(messages, published, read, sha256, directory / failover.successor)
    return report, failover


class _Run:
    """A run against a cluster that is up."""

    def __init__(self, client: JetstreamClient, cluster: LocalCluster, say: Callable[[str], None]) -> None:
        self._client = client
        self._cluster = cluster
        self._say = say

    async def begin(self) -> None:
        """Make the stream once all nodes serve."""
        async with _limited("the nodes did not all come up"):
            await self._cluster.until_ready(self._client)
        await prepared_stream(self._client, keep=False, replicas=len(self._cluster.nodes))
        stream = await self.until_whole()
        self._say(f"{len(stream.replicas)} nodes serve; {stream.leader} leads {STREAM}, and all are in sync")

    async def until_whole(self) -> StreamInfo:
        """Wait until the stream is led and every replica is in sync."""
        async with _limited(f"not every replica of {STREAM} is in sync"):
            while True:
                info = await self._info()
                if (
                    info is not None
                    and info.state == StreamState.ONLINE
                    and len(info.isr) == len(info.replicas)
                ):
                    return info
                await asyncio.sleep(_LOOK_SECONDS)

    async def _info(self) -> StreamInfo | None:
        try:
            return await self._client.streams.info(STREAM)
        except UnavailableError:  # its leader has just died
            return None

    async def publish(
        self, url: str, messages: Sequence[Flight], progress: Progress
    ) -> tuple[PublishedFlights, Failover]:
        """Publish everything, and kill the leader when a third of it is acked."""
        async with await nats.connect(url) as plain:
            third = len(messages) // 3
            # The last third waits for the leader's death: a slow kill would find everything acked.
            publisher = PlainPublisher(plain, secrets.token_hex(_RUN_BYTES), held_at=2 * third)
            async with asyncio.TaskGroup() as tasks:
                publishing = tasks.create_task(publish_flights(publisher, messages, progress))
                failing = tasks.create_task(self._fail_over(publisher, third))
        published, failover = publishing.result(), failing.result()
        return published, replace(failover, sent_again=publisher.sent_again)

    async def _fail_over(self, publisher: PlainPublisher, killed_after: int) -> Failover:
        await publisher.until_acked(killed_after)
        before = await self.until_whole()
        killed = NodeId(str(before.leader))
        self._say(f"{publisher.acked:,} messages are acked: killing {killed}, which leads, with SIGKILL")
        killed_after = publisher.acked
        await self._cluster.kill(killed)
        publisher.release()
        async with _limited("nobody has taken over"):
            epoch = await publisher.until_reign_after(before.leader_epoch)
            now = await self._info()
            while now is None or now.leader in (None, killed):
                now = await self._info()
        reigns = publisher.reigns
        silence = reigns[epoch].first_at - max(
            reign.last_at for earlier, reign in reigns.items() if earlier < epoch
        )
        self._say(f"{now.leader} leads since, in epoch {epoch}; no ack came for {silence:.2f} s")
        started = time.perf_counter()
        self._cluster.start(killed)
        whole = await self.until_whole()
        caught_up = time.perf_counter() - started
        isr = ", ".join(whole.isr)
        self._say(f"started {killed} again: after {caught_up:.1f} s all replicas are in sync ({isr})")
        return Failover(
            killed=killed,
            killed_after=killed_after,
            successor=str(now.leader),
            epoch=epoch,
            silence_seconds=silence,
            sent_again=0,
            caught_up_seconds=caught_up,
            isr=tuple(whole.isr),
            equal_files=0,
        )


@asynccontextmanager
async def _limited(what: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(WHOLE_SECONDS):
            yield
    except TimeoutError:
        raise DeadlinePassed(f"{what} within {WHOLE_SECONDS:g} s") from None


def checked_as_acked(messages: Sequence[Flight], offsets: Sequence[int], stored: pa.Table) -> str:
    """Return the SHA-256 of all values in the order of publishing, if each message is where it was acked.

    Every offset belongs to one message, and to none but those: so nothing is lost and nothing is there twice.

    Raises:
        CorruptDataError: it is not so.
    """
    count = len(messages)
    if stored.num_rows != count:
        raise CorruptDataError(f"{count} records were acked and {stored.num_rows} read back")
    if stored["offset"].to_pylist() != list(range(count)) or sorted(offsets) != list(range(count)):
        raise CorruptDataError("the offsets of the records, or those of the acks, are not each there once")
    published = stored.combine_chunks().take(pa.array(offsets, pa.int64()))
    for index, (message, subject) in enumerate(zip(messages, published["subject"].to_pylist(), strict=True)):
        if subject != message.subject:
            raise CorruptDataError(f"offset {offsets[index]} is not the message {index} that was acked there")
    return checked_sha256(messages, published)


def equal_files(replicas: Sequence[Mapping[str, Path]]) -> int:
    """Return how many sealed segment files all replicas have, by name.

    Raises:
        CorruptDataError: such a file is not the same everywhere.
    """
    names = set.intersection(*(set(files) for files in replicas))
    for name in sorted(names):
        if len({hashlib.sha256(files[name].read_bytes()).digest() for files in replicas}) > 1:
            raise CorruptDataError(f"the replicas' files {name} differ")
    return len(names)
