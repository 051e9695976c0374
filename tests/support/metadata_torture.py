"""A metadata group of real processes under faults, clients that never give up, and what must hold then.

Each client adds one word after the other: the next only when the last is known to be applied, retried under
the same id wherever somebody answers. So in the end every member has each word once, and those of one client
in order.
"""

import asyncio
import contextlib
import json
import random
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from metadata.node.peers.accepting import StreamServer
from metadata.node.peers.dialling import Address
from tests.support.forked_process import ForkedProcess
from tests.support.metadata_members import listening
from tests.support.metadata_process import LOOPBACK

WAIT_SECONDS: Final = 60.0


def free_port() -> int:
    with listening(Address(LOOPBACK, 0)) as found:
        port: int = found.getsockname()[1]
        return port


class Way:
    """How one member reaches another: a proxy that can be clogged, one direction at a time."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._open = asyncio.Event()
        self._open.set()
        self._server = StreamServer(self._carry, limit=1 << 16)

    def start(self) -> int:
        found = listening(Address(LOOPBACK, 0))
        found.listen()
        self._server.start(found)
        port: int = found.getsockname()[1]
        return port

    def clog(self) -> None:
        self._open.clear()

    def clear(self) -> None:
        self._open.set()

    async def stop(self) -> None:
        self._open.set()
        await self._server.stop()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            there_reader, there_writer = await asyncio.open_connection(LOOPBACK, self._target)
            with contextlib.closing(there_writer):
                async with asyncio.TaskGroup() as ways:
                    ways.create_task(self._pump(there_reader, writer))
                    ways.create_task(self._pump(reader, there_writer))
        writer.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                await self._open.wait()
                writer.write(data)
                await writer.drain()
        writer.transport.abort()


@dataclass
class Process:
    """One member."""

    name: str
    settings: dict[str, Any]
    popen: ForkedProcess | None = None
    is_paused: bool = False

    def start(self) -> None:
        with Path(self.settings["root"] + ".log").open("ab") as log:
            self.popen = ForkedProcess(
                "tests.support.metadata_process", [json.dumps(self.settings)], stderr=log
            )

    def kill(self) -> None:
        assert self.popen is not None
        log = Path(self.settings["root"] + ".log")
        assert self.popen.poll() is None, f"{self.name} ended by itself: {log.read_text()[-2000:]}"
        self.popen.kill()
        self.popen.wait()
        self.popen, self.is_paused = None, False

    def pause(self, *, on: bool) -> None:
        assert self.popen is not None
        self.popen.send_signal(signal.SIGSTOP if on else signal.SIGCONT)
        self.is_paused = on

    async def ask(self, request: dict[str, Any], timeout_seconds: float) -> dict[str, Any]:
        """Return the answer.

        Raises:
            OSError, TimeoutError, ValueError: there is none.
        """
        async with asyncio.timeout(timeout_seconds):
            reader, writer = await asyncio.open_connection(LOOPBACK, self.settings["control"], limit=1 << 24)
            try:
                writer.write(json.dumps(request).encode() + b"\n")
                answer: dict[str, Any] = json.loads(await reader.readline())
                return answer
            finally:
                writer.transport.abort()


@dataclass
class Group:
    """All members, the ways between them, and what the clients know."""

    processes: list[Process]
    ways: dict[tuple[str, str], Way]
    applied: list[str] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def client(self, name: str, chance: random.Random) -> None:
        """Add words until cancelled."""
        number = 0
        process = chance.choice(self.processes)
        while True:
            word = f"{name}.{number}"
            while True:
                with contextlib.suppress(OSError, TimeoutError, ValueError):
                    answer = await process.ask({"propose": word}, 2.0)
                    if answer.get("applied"):
                        break
                process = chance.choice(self.processes)
            number += 1
            self.applied.append(word)
            self.changed.set()

    async def progress(self, count: int) -> None:
        """Wait until so many more words are known to be applied."""
        wanted = len(self.applied) + count
        async with asyncio.timeout(WAIT_SECONDS):
            while len(self.applied) < wanted:
                self.changed.clear()
                await self.changed.wait()

    def heal(self) -> None:
        for way in self.ways.values():
            way.clear()
        for process in self.processes:
            if process.popen is None:
                process.start()
            elif process.is_paused:
                process.pause(on=False)

    async def verify(self) -> None:
        """Every word that is known to be applied is on every member, once, each client's in order."""
        index = await self._committed()
        answers = [await self._answer(process, {"words": index}) for process in self.processes]
        [first, *others] = [answer["words"][: self._count_at(answers)] for answer in answers]
        for other in others:
            assert other == first, "members disagree"
        assert len(set(first)) == len(first), "a word was applied twice"
        missing = set(self.applied) - set(first)
        assert not missing, f"lost: {sorted(missing)}"
        for client in {word.split(".")[0] for word in first}:
            numbers = [int(word.split(".")[1]) for word in first if word.split(".")[0] == client]
            assert numbers == list(range(len(numbers))), f"out of order: {client}"

    async def _answer(self, process: Process, request: dict[str, Any]) -> dict[str, Any]:
        """Return what a process answers that may just have been started."""
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                with contextlib.suppress(OSError, ValueError):
                    return await process.ask(request, WAIT_SECONDS)

    def _count_at(self, answers: list[dict[str, Any]]) -> int:
        return min(len(answer["words"]) for answer in answers)

    async def _committed(self) -> int:
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                for process in self.processes:
                    with contextlib.suppress(OSError, TimeoutError, ValueError):
                        answer = await process.ask({"read": True}, 2.0)
                        if "index" in answer:
                            index: int = answer["index"]
                            return index


@contextlib.asynccontextmanager
async def group(size: int, root: Path, *, proxied: bool) -> AsyncIterator[Group]:
    """A running group; with ``proxied`` every connection can be clogged, else a dead process is refused."""
    names = [f"n{number}" for number in range(size)]
    ports = {name: free_port() for name in names}
    ways = {(source, target): Way(ports[target]) for source in names for target in names if source != target}
    entrances = {pair: way.start() for pair, way in ways.items()} if proxied else {}
    processes = [
        Process(
            name,
            {
                "name": name,
                "root": str(root / name),
                "voters": {other: entrances.get((name, other), ports[other]) for other in names},
                "control": free_port(),
            },
        )
        for name in names
    ]
    try:
        for process in processes:
            process.start()
        yield Group(processes, ways if proxied else {})
    finally:
        for process in processes:
            if process.popen is not None:
                process.kill()
        for way in ways.values():
            await way.stop()


async def torture(size: int, root: Path, seed: int, *, faults: int, proxied: bool) -> int:
    """Let clients add words while faults come and go; return how many words were applied."""
    chance = random.Random(seed)
    async with group(size, root, proxied=proxied) as members:
        async with asyncio.TaskGroup() as tasks:
            clients = [
                tasks.create_task(members.client(f"c{number}", random.Random(seed * 100 + number)))
                for number in range(4)
            ]
            await members.progress(20)
            for _ in range(faults):
                await one_fault(members, chance)
            members.heal()
            await members.progress(20)
            for client in clients:
                client.cancel()
        await members.verify()
        return len(members.applied)


async def one_fault(members: Group, chance: random.Random) -> None:
    """Harm some members, wait for progress if it is still possible, and mend them."""
    size = len(members.processes)
    hurt = chance.sample(members.processes, chance.choice([1, 1, size // 2, size // 2, size]))
    kind = chance.choice(["kill", "kill", "pause", "clog"] if members.ways else ["kill", "kill", "pause"])
    for process in hurt:
        if kind == "kill":
            process.kill()
        elif kind == "pause":
            process.pause(on=True)
        else:
            outward = chance.random() < 0.5
            for (source, target), way in members.ways.items():
                if process.name == (source if outward else target):
                    way.clog()
    if len(hurt) <= (size - 1) // 2:
        await members.progress(chance.randrange(5, 40))
    members.heal()
    if chance.random() < 0.5:
        await members.progress(chance.randrange(1, 20))
