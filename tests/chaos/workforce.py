"""The members of one group while all breaks: what is done to them, and what must come of their work."""

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from nats.aio.client import Client

from envelope.internal_streams import group_shard
from tests.chaos.cluster import ChaosCluster, asked, pairs_between, passes, until_answered
from tests.chaos.member_task import Task
from tests.chaos.members import MemberProcess
from tests.chaos.recorder import Recorder
from tests.support.faulty_network import Pair
from tests.support.group_history import CursorTold, Ending, PutOut
from tests.support.history import Drained, Read

GROUP: Final = "workers"
SHARD: Final = group_shard(GROUP)
MEMBERS: Final = ("one", "two", "three")
PARTITIONED: Final = {"jobs": 3}
"""Streams that have partitions, and how many."""
SUBSCRIBED: Final = ("jobs", "numbers")
_WITH_LIBRARY: Final = ("two", "three")
SESSION_MS: Final = 2_000
DONE_SECONDS: Final = 60.0
"""How long the group may take until it has done all that is there, once all is mended."""
_AGAIN: Final = 0.5
"""How likely a request is sent again, of those that members think of now and then."""


@dataclass
class Workforce:
    """Processes that are members, and whoever watches their cursors."""

    cluster: ChaosCluster
    recorder: Recorder
    client: Client
    ended: list[str] = field(default_factory=list)
    """Processes that ended by themselves, with their last words."""
    members: dict[str, MemberProcess] = field(default_factory=dict)
    _is_wanted: set[str] = field(default_factory=set)

    async def start(self, directory: Path, tasks: asyncio.TaskGroup) -> None:
        """Start all, and wait until one of them is a member: from then on there is a shard."""
        for name in MEMBERS:
            nodes = self.cluster.nodes.values()
            ways = {node.socket_port: self.cluster.network.port(name, node.name) for node in nodes}
            begun = self.recorder.begun
            task = Task(
                name=name,
                group=GROUP,
                streams=list(SUBSCRIBED),
                ways=ways,
                begun=begun,
                session_ms=SESSION_MS,
                again=_AGAIN,
            )
            task = replace(task, is_library=name in _WITH_LIBRARY)
            self.members[name] = MemberProcess(task, directory, self.recorder, tasks)
            await self._start(name)
        await until_answered(self.client, lambda info: bool(info.get("members")), "group.info", group=GROUP)

    async def _start(self, name: str) -> None:
        if name not in self._is_wanted:
            await self.members[name].start()
            self._is_wanted.add(name)  # not before: whoever watches would start it too

    async def watch(self, over: asyncio.Event) -> None:
        """Note who ends by itself, and start it again."""
        while not await passes(0.05, over):
            for name in tuple(self._is_wanted):
                member = self.members[name]
                if not member.is_running:
                    self.ended.append(f"{member.life} ended by itself: {_last_words(member.log)}")
                    await member.start()

    async def ask(self, chance: random.Random, over: asyncio.Event) -> None:
        """Ask again and again for the group's cursors, of whatever node."""
        while not await passes(chance.uniform(0.0, 0.5), over):
            await self._cursors()

    async def _cursors(self) -> dict[str, int]:
        """Put down and return the cursors that are told; {} if nobody tells any."""
        asked_at = self.recorder.now()
        info = await asked(self.client, "group.info", group=GROUP)
        cursors = {_stream_of(cursor): cursor["offset"] for cursor in info.get("cursors", ())}
        for stream, offset in cursors.items():
            told = CursorTold(
                asked_at=asked_at,
                at=self.recorder.now(),
                group=GROUP,
                stream=stream,
                member="asker",
                offset=offset,
            )
            self.recorder.record_of_group(told)
        return cursors

    # --- faults -----------------------------------------------------------------------------------

    async def kill(self, name: str) -> None:
        """SIGKILL."""
        self._is_wanted.discard(name)
        if self.members[name].is_running:
            await self.members[name].kill()

    def stop(self, name: str) -> None:
        """Have it leave, without waiting: a member that can ask nobody cannot."""
        if name in self._is_wanted:
            self._is_wanted.discard(name)
            self.members[name].let_go()

    def pause(self, name: str) -> None:
        """SIGSTOP."""
        if name in self._is_wanted and self.members[name].is_running:
            self.members[name].stand_still()

    def cut_off(self, names: Sequence[str], nodes: Sequence[str], shape: str) -> None:
        """Let these members hear nothing of the nodes, say nothing to them, both, or reach none of them."""
        out, into = pairs_between(set(names), set(nodes)), pairs_between(set(nodes), set(names))
        if shape == "refused":
            self.cluster.network.refuse(out)
            return
        held: dict[str, list[Pair]] = {"deaf": into, "dumb": out}
        self.cluster.network.hold(held.get(shape, out + into))

    def slow(self, names: Sequence[str], delay_s: float) -> None:
        """Delay all that these members say and hear."""
        nodes = set(self.cluster.nodes)
        pairs = pairs_between(set(names), nodes) + pairs_between(nodes, set(names))
        self.cluster.network.slow(pairs, delay_s, None)

    async def heal(self) -> None:
        """Have everybody run."""
        for name, member in self.members.items():
            if member.is_paused:
                member.go_on()
            if name not in self._is_wanted and member.is_running:
                await member.stop()
            await self._start(name)

    # --- the end ----------------------------------------------------------------------------------

    async def problems(self, ends: Mapping[str, int]) -> list[str]:
        """Wait until the group has come to the ends of the streams, and have its members leave."""
        problems = list(self.ended)
        cursors: dict[str, int] = {}
        try:
            async with asyncio.timeout(DONE_SECONDS):
                while cursors != ends:
                    cursors = await self._cursors()
        except TimeoutError:
            problems.append(f"{DONE_SECONDS:.0f} s after all was mended the group is at {cursors} of {ends}")
        self._is_wanted.clear()
        for member in self.members.values():
            if not member.is_running:
                problems.append(f"{member.life} ended by itself: {_last_words(member.log)}")
            elif (code := await member.stop()) != 0:
                problems.append(f"{member.life} stopped with exit code {code}: {_last_words(member.log)}")
            await member.has_said_all()
        return problems + self._wrongly_put_out()

    def _wrongly_put_out(self) -> list[str]:
        """No member loses what it has but by being put out altogether."""
        return [
            f"{event.member} was put out with {event.code}"
            for event in self.recorder.group_events
            if isinstance(event, PutOut) and event.code != "member_fenced"
        ]

    def record_endings(self, streams: Sequence[str]) -> None:
        """Put down what is in the streams, as whoever drained them saw it."""
        for stream in streams:
            [reader, *_] = [
                event.reader
                for event in self.recorder.events
                if isinstance(event, Drained) and event.stream == stream
            ]
            values = [
                record.value
                for event in self.recorder.events
                if isinstance(event, Read) and (event.reader, event.stream) == (reader, stream)
                for record in event.records
            ]
            self.recorder.record_of_group(Ending(self.recorder.now(), GROUP, stream, tuple(values)))

    async def close(self) -> None:
        """Kill who still runs."""
        self._is_wanted.clear()
        for member in self.members.values():
            if member.is_running:
                await member.kill()


def _stream_of(cursor: Mapping[str, Any]) -> str:
    stream, number = cursor["stream"], cursor["partition"]
    return f"{stream}/{number}" if stream in PARTITIONED else stream


def _last_words(log: Path) -> list[str]:
    return log.read_text(errors="replace").splitlines()[-3:]
