"""A member of a consumer group as a process of its own: it reads, does its work and commits, again and again.

``python -m tests.chaos.group_member TASK``, where TASK is a `Task` as JSON. It writes down all that it hears
and does (`tests/support/group_history.py`), line by line, on its standard output. It leaves when its standard
input ends.
"""

import asyncio
import sys
from collections.abc import Callable, Mapping
from ssl import SSLContext

import uvloop

import jetstream
from tests.chaos.library_consumer import LibraryConsumer
from tests.chaos.member_task import Task, read_task
from tests.chaos.raw_consumer import RawConsumer


class _Lines(asyncio.Protocol):
    """Opens the gate once for every line, and stops the consumer at the end."""

    def __init__(self, consumer: LibraryConsumer | RawConsumer) -> None:
        self._consumer = consumer

    def data_received(self, data: bytes) -> None:
        for _ in range(data.count(b"\n")):
            self._consumer.gate.put_nowait(None)

    def eof_received(self) -> None:
        self._consumer.stop()


class DetouredLoop(uvloop.Loop):
    """Reaches the ports of nodes by other ones, those of proxies; ``ways`` says which."""

    ways: Mapping[int, int] = {}

    # asyncio has overloads that no override can repeat; the client uses this form of them.
    async def create_connection(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        ssl: SSLContext | None = None,
    ) -> tuple[asyncio.BaseProtocol, asyncio.BaseProtocol]:  # as uvloop's own stub has it
        """Connect, by a detour if there is one."""
        way = self.ways.get(port, port)
        return await super().create_connection(protocol_factory, host, way, ssl=ssl)


async def _run(task: Task) -> None:
    async with jetstream.connect(socket=[f"127.0.0.1:{port}" for port in task.ways]) as js:
        consumer = LibraryConsumer(task, js) if task.is_library else RawConsumer(task, js)
        await asyncio.get_running_loop().connect_read_pipe(lambda: _Lines(consumer), sys.stdin)
        await consumer.run()


def main() -> None:
    """Run the task of the command line."""
    task = read_task(sys.argv[1])

    def loop() -> DetouredLoop:
        made = DetouredLoop()
        made.ways = task.ways
        return made

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(_run(task))


if __name__ == "__main__":
    main()
