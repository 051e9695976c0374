"""Faults for a cluster of node processes under load, and what must be so afterwards.

A publisher that retries with message ids remembers every ack. What is checked at the end does not trust the
nodes: every value is stored once, at the offset that its ack named, on every replica, byte for byte.
"""

import asyncio
import hashlib
import random
import signal
from dataclasses import dataclass, field
from pathlib import Path

import jetstream
from jetstream.log.disk.os_disk import OsDisk
from jetstream.log.inspection import inspect_stream
from jetstream.node.nats.embedded_server import EmbeddedNatsServer
from tests.support.node_cluster import ClusterNode, NodeCluster
from tests.support.nodes import request
from tests.support.publishers import Witness

STREAM = "numbers"
_SEGMENT_BYTES = 1 << 16
_ROUND_MESSAGES = 300


@dataclass
class Torture:
    """One run; ``story`` says what was done, for whoever must find out why it failed."""

    directory: Path
    size: int
    seed: int
    story: list[str] = field(default_factory=list)

    async def run(self, faults: int) -> int:
        """Do it; return how many values were acked."""
        chance = random.Random(self.seed)
        async with EmbeddedNatsServer(self.directory / "nats") as server:
            cluster = NodeCluster(self.directory, server.url, self.size)
            witness = Witness("numbers.all", server.url)
            try:
                cluster.start()
                await witness.open()
                client = witness.client
                await cluster.until_ready(client)
                created = await request(
                    client,
                    "stream.create",
                    name=STREAM,
                    subject="numbers.>",
                    replicas=3,
                    segment_bytes=_SEGMENT_BYTES,
                )
                assert "error" not in created, created
                for _ in range(faults):
                    await self._fault(cluster, witness, chance)
                await witness.retry_until_acked()
                info = await cluster.until_whole(client, STREAM, replicas=3)
                await self._verify(witness, server.url)
                for node in cluster.nodes.values():
                    assert node.stop() == 0, f"{node.name} did not stop cleanly: {self.story}"
                self._compare_files([cluster[name] for name in info["replicas"]])
            except (AssertionError, TimeoutError) as error:
                error.add_note(f"seed {self.seed}: {'; '.join(self.story)}")
                raise
            finally:
                await witness.close()
                cluster.close()
        return len(witness.acked)

    async def _fault(self, cluster: NodeCluster, witness: Witness, chance: random.Random) -> None:
        """Publish, hurt somebody in the middle of it, and go on before all is well again."""
        info = await cluster.until_whole(witness.client, STREAM, replicas=2)
        leader = str(info["leader"])
        others = [name for name in cluster.nodes if name != leader]
        before = len(witness.acked)
        await witness.publish(_ROUND_MESSAGES)
        some = before + chance.randrange(1, _ROUND_MESSAGES // 2)
        try:
            await witness.wait_for_acks(some, 2.0)
        except TimeoutError:  # the fault before may have cost the leader its reign, and them their place
            await witness.retry_until_acked(some)
        kind = chance.choice(("kill leader", "kill leader", "kill follower", "stop leader", "freeze leader"))
        victim = cluster[leader if "leader" in kind else chance.choice(others)]
        self.story.append(f"{kind} {victim.name}")
        if kind == "freeze leader":
            victim.send(signal.SIGSTOP)
            await cluster.until_led_by_another(witness.client, STREAM, leader)
            await witness.retry_until_acked()
            victim.send(signal.SIGCONT)
            return
        if kind == "stop leader":
            await asyncio.to_thread(victim.stop)
        else:
            victim.kill()
        await witness.retry_until_acked()
        victim.start()
        if chance.random() < 0.7:
            await cluster.until_whole(witness.client, STREAM, replicas=3)

    async def _verify(self, witness: Witness, url: str) -> None:
        assert witness.contradictions == []
        async with jetstream.connect(url) as js:
            stored: dict[int, int] = {}
            async for record in js.read(STREAM, start="earliest"):
                assert record.offset == len(stored), f"offset {record.offset} after {len(stored)} records"
                assert record.value is not None
                number = int(record.value)
                assert number not in stored, f"{number} is at {stored[number]} and at {record.offset}"
                stored[number] = record.offset
        assert stored == witness.acked
        assert len(stored) == witness.published
        assert set(witness.refused) <= set(witness.acked), "a refused value was retried until it was acked"

    def _compare_files(self, nodes: list[ClusterNode]) -> None:
        """The replicas' segments are equal, byte by byte, and legal."""
        digests = {node.name: _digests(node.data) for node in nodes}
        first = digests[nodes[0].name]
        assert first, "there are segments"
        for name, found in digests.items():
            assert found == first, f"the files of {name} differ from those of {nodes[0].name}: {self.story}"
        for node in nodes:
            [directory] = (node.data / "streams").iterdir()
            report = inspect_stream(OsDisk(node.data), f"streams/{directory.name}")
            assert report.problems == (), f"{node.name}: {report.problems}"


def _digests(data: Path) -> dict[str, str]:
    [directory] = (data / "streams").iterdir()
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.glob("*.arrows"))
    }
