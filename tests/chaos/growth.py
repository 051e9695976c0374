"""A cluster grows from one node to five and shrinks to one, under load, with a kill at every step.

    python -m tests.chaos.growth --rounds 50

A round begins with one node and one stream with one copy; a publisher wants 10,000 messages a second stored,
each under an id, until the end. Two nodes join, and the stream gets three copies; then comes a plain failover
for comparison; then five voters, three, and one are wanted. In each step one node is killed at a drawn moment
and started again half a second later. In the end every number is in the stream once, at the offset that its
ack named.
"""

import argparse
import asyncio
import contextlib
import json
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import nats.errors
import uvloop
from nats.aio.client import Client

from jetstream.node.nats.embedded_server import EmbeddedNatsServer
from tests.support.growing_cluster import GrowingCluster, Info, are_alive, are_voters, client_of, until_info
from tests.support.nodes import WAIT_SECONDS, request
from tests.support.pauses import pause
from tests.support.steady_publisher import SteadyPublisher

STREAM: Final = "numbers"
MESSAGES_A_SECOND: Final = 10_000
_KILL_WITHIN_ACKS: Final = 10_000
"""A second: a change takes half a second to two, so the node is killed in most of them."""
_DEAD_FOR_ACKS: Final = 5_000
_CLUSTER_INFO: Final = "jetstream.api.cluster.info"
_ANSWER_SECONDS: Final = 0.25
FAILOVER: Final = "a plain failover"


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a round."""

    name: str
    killed: str
    pause_s: float
    """The longest time without an ack in it."""
    change_s: float
    """From when it was asked for, or its nodes were started, until the voters were as wanted."""
    is_hit: bool
    """The node was killed before they were."""

    def __str__(self) -> str:
        changed = "" if self.name == FAILOVER else f", changed in {self.change_s:.2f} s"
        return f"{self.name} (kill {self.killed}): pause {self.pause_s:.2f} s{changed}"


@dataclass(slots=True)
class GrowthRound:
    """One round on new nodes; ``story`` says what was done, for whoever must find out why it failed."""

    directory: Path
    seed: int
    story: list[str] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    acked: int = 0
    acked_a_second: float = 0.0

    async def run(self) -> None:
        """Do it."""
        chance = random.Random(self.seed)
        async with EmbeddedNatsServer(self.directory / "nats") as server, client_of(server.url) as client:
            cluster = GrowingCluster(self.directory, server.url)
            publisher = SteadyPublisher(server.url, STREAM, MESSAGES_A_SECOND)
            scene = _Scene(cluster, client, publisher, chance, self)
            try:
                cluster.begin()
                await until_info(client, are_alive("a"), are_voters("a"))
                created = await request(client, "stream.create", name=STREAM, subject=f"{STREAM}.>")
                assert "error" not in created, created
                async with publisher.going_on():
                    await publisher.more_acks(1)
                    await scene.grow_and_shrink()
                self.acked = len(publisher.acked)
                self.acked_a_second = 1 / publisher.seconds_an_ack
            finally:
                cluster.close()


class _Scene:
    """The steps of one round."""

    def __init__(
        self,
        cluster: GrowingCluster,
        client: Client,
        publisher: SteadyPublisher,
        chance: random.Random,
        record: GrowthRound,
    ) -> None:
        self._cluster = cluster
        self._client = client
        self._publisher = publisher
        self._chance = chance
        self._record = record

    async def grow_and_shrink(self) -> None:
        """Take all the steps."""
        for name in "bc":
            self._cluster.add(name).start()
        await self._step("one voter to three", "bc", 3, copies=1)
        updated = await request(self._client, "stream.update", name=STREAM, replicas=3)
        assert "error" not in updated, updated
        info = await self._cluster.until_whole(self._client, STREAM, 3)
        await self._step(FAILOVER, info["leader"], 3)
        for name in "de":
            self._cluster.add(name).start()
        await until_info(self._client, are_alive("abcde"))
        await self._step("three voters to five", "abcde", 5)
        await self._step("five voters to three", "abcde", 3)
        leader = (await until_info(self._client, are_alive("abcde")))["metadata_leader"]
        await self._step("three voters to one", "abcde".replace(leader, ""), 1)

    async def _step(self, name: str, victims: str, voters: int, copies: int = 3) -> None:
        """Change the voters, and kill one of ``victims`` meanwhile; return when all is whole again."""
        nodes = "".join(sorted(self._cluster.nodes))
        victim = self._chance.choice(victims)
        self._record.story.append(f"{name}: kill {victim}")
        begun = time.monotonic()
        if len(nodes) == 5:  # before, as many vote as can
            answer = await request(self._client, "cluster.update", voters=voters)
            assert "error" not in answer, answer
        async with asyncio.TaskGroup() as tasks:
            changing = tasks.create_task(self._seconds_until(voters, begun))
            await self._publisher.more_acks(self._chance.randrange(_KILL_WITHIN_ACKS))
            is_hit = not changing.done()
            self._cluster[victim].kill()
            await self._publisher.more_acks(_DEAD_FOR_ACKS)
            self._cluster[victim].start()
        await until_info(self._client, are_alive(nodes), _are_so_many(voters))
        await self._cluster.until_whole(self._client, STREAM, copies)
        pause_s = self._publisher.pause_since(begun)
        self._record.steps.append(Step(name, victim, pause_s, changing.result(), is_hit))

    async def _seconds_until(self, voters: int, begun: float) -> float:
        """Ask until it is so; a question that NATS has handed to the node that died is not waited for."""
        are_so_many = _are_so_many(voters)
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                await pause()
                with contextlib.suppress(nats.errors.Error):
                    reply = await self._client.request(_CLUSTER_INFO, b"{}", timeout=_ANSWER_SECONDS)
                    if are_so_many(json.loads(reply.data)):
                        return time.monotonic() - begun


def _are_so_many(number: int) -> Callable[[Info], bool]:
    return lambda info: (len(info.get("voters", ())), info.get("learners")) == (number, [])


async def growth(rounds: int, directory: Path, seed: int, tell: Callable[[str], object]) -> list[GrowthRound]:
    """Run rounds one after the other; tell each, and in the end all of them together.

    The directory of a round that fails stays.
    """
    done: list[GrowthRound] = []
    for number in range(rounds):
        one = GrowthRound(directory / f"round-{number}", seed + number)
        one.directory.mkdir(parents=True)
        try:
            await one.run()
        finally:
            if not one.acked:
                tell(f"FAILED in {one.directory}, seed {one.seed}: {'; '.join(one.story)}")
        shutil.rmtree(one.directory)
        done.append(one)
        acked = f"{one.acked:,} acked, {one.acked_a_second:,.0f}/s"
        tell(f"{number + 1}/{rounds} seed {one.seed}: {acked}; {', '.join(map(str, one.steps))}")
    steps = [step for one in done for step in one.steps]
    for name in dict.fromkeys(step.name for step in steps):
        tell(_summary(name, [step for step in steps if step.name == name]))
    longest = [max(step.pause_s for step in one.steps if step.name != FAILOVER) for one in done]
    tell(f"longest pause of a round beside its plain failover: {_spread(longest)}")
    return done


def _summary(name: str, steps: Sequence[Step]) -> str:
    pauses = f"{name}: longest pause {_spread([step.pause_s for step in steps])}"
    if name == FAILOVER:
        return pauses
    changes = _spread([step.change_s for step in steps])
    return f"{pauses}; changed in {changes}; {sum(step.is_hit for step in steps)} killed meanwhile"


def _spread(seconds: Sequence[float]) -> str:
    return f"median {statistics.median(seconds):.2f} s, max {max(seconds):.2f} s"


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.growth", description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1, help="of the first round; each has the next one")
    given = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="growth-"))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(growth(given.rounds, directory, given.seed, _say))
    shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
