"""One voter of a metadata group, and a client of it: commands come on standard input.

    python -m benchmarks.metadata_member --name N --root DIRECTORY --voters '{"n1": port, …}'

Says ``ready`` once it knows a leader. ``serial COUNT`` proposes one command after the other and says how long
each took; ``burst COUNT WINDOW`` keeps so many under way; ``watch`` proposes one after the other until
``stop``, and then says when each was known to be applied, and when a leader was lost and found, in
nanoseconds of the monotonic clock.
"""

import argparse
import asyncio
import json
import logging
import socket
import sys
import time
from pathlib import Path
from typing import Final

import uvloop

from benchmarks.helper_process import announce
from envelope.types import NodeId
from jetstream.log.disk.os_disk import OsDisk
from metadata.catalog.commands import RegisterNode
from metadata.node.catalogue.group import MetadataQuorum
from metadata.node.peers.dialling import Address, PeerIdentity
from metadata.node.storage.file_storage import FileStorage
from metadata.raft.settings import RaftSettings

HOST: Final = "127.0.0.1"
COMMAND: Final = RegisterNode(
    node_id=NodeId("benched"), directory="directory", host=HOST, port=1, http_port=None, version="0"
)
"""It changes one row each time: how often it was applied can be counted."""


class _Leaders(logging.Handler):
    """Notes when the voter logs that a leader was lost or found."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.changes: list[tuple[int, str | None]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg.startswith("metadata leader=") and isinstance(record.args, tuple):
            leader = record.args[0]
            self.changes.append((time.monotonic_ns(), None if leader is None else str(leader)))


class _Member:
    """The voter, and what it is told to do."""

    def __init__(self, group: MetadataQuorum, leaders: _Leaders, tasks: asyncio.TaskGroup) -> None:
        self._group = group
        self._tasks = tasks
        self._leaders = leaders
        self._watching: asyncio.Task[None] | None = None
        self._applied_at: list[int] = []

    async def obey(self, words: list[str]) -> None:
        """Do what one line says."""
        match words:
            case ["leader"]:
                announce("leader", name=self._group.leader, count=self._count())
            case ["serial", count]:
                announce("took", us=[await self._propose() for _ in range(int(count))])
            case ["burst", count, window]:
                announce("took", seconds=await self._burst(int(count), int(window)))
            case ["watch"]:
                self._applied_at, self._leaders.changes = [], []
                self._watching = self._tasks.create_task(self._watch())
            case ["stop"]:
                assert self._watching is not None, "watch comes before stop"
                self._watching.cancel()
                announce("watched", applied_at=self._applied_at, leaders=self._leaders.changes)
            case _:
                raise ValueError(f"no command: {words}")

    def _count(self) -> int:
        node = self._group.catalog.node(COMMAND.node_id)
        return node.node_epoch if node is not None else 0

    async def _propose(self) -> float:
        begun = time.perf_counter()
        await self._group.propose(COMMAND)
        return (time.perf_counter() - begun) * 1e6

    async def _burst(self, count: int, window: int) -> float:
        begun = time.perf_counter()

        async def some(number: int) -> None:
            for _ in range(number):
                await self._group.propose(COMMAND)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(window):
                tasks.create_task(some(count // window))
        return time.perf_counter() - begun

    async def _watch(self) -> None:
        while True:
            await self._group.propose(COMMAND)
            self._applied_at.append(time.monotonic_ns())


async def _run(arguments: argparse.Namespace) -> None:
    ports: dict[str, int] = json.loads(arguments.voters)
    leaders = _Leaders()
    logger = logging.getLogger("metadata.node.voter.voter")
    logger.addHandler(leaders)
    logger.setLevel(logging.INFO)
    group = MetadataQuorum.voting(
        PeerIdentity("benchmark", NodeId(arguments.name)),
        {NodeId(name): Address(HOST, port) for name, port in ports.items()},
        FileStorage.open(OsDisk(arguments.root), "metadata"),
        RaftSettings(),
    )
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind((HOST, ports[arguments.name]))
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(commands), sys.stdin
    )
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(group.member.run(listening))
        await group.led()
        member = _Member(group, leaders, tasks)
        announce("ready")
        while line := await commands.readline():
            await member.obey(line.decode().split())
        running.cancel()


def main() -> None:
    """Run until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", required=True)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--voters", required=True)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(parser.parse_args()))


if __name__ == "__main__":
    main()
