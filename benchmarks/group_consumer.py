"""One member of a group in a process of its own, which says when it has read and committed what.

    python -m benchmarks.group_consumer --url URL --group G --streams S0,S1… --session-s N [--commits]

Told ``join``, it joins; ``owned`` asks for its streams, ``seen`` for what has come since that was asked last:
of each record its stream, its offset and when it arrived. ``leave`` ends the membership; ``left`` has the
moment before that. With ``--commits`` it does not read but commits, one offset further as soon as the last is
acked, and what ``seen`` tells are these acks. Times are nanoseconds since 1970.
"""

import argparse
import asyncio
import sys
import time
from contextlib import suppress

import uvloop

import jetstream
from benchmarks.helper_process import announce
from envelope.errors import JetstreamError
from jetstream.client.connection import JetstreamClient
from jetstream.client.consume.consumer import Consumer

PAUSE_SECONDS = 0.002
"""Between two commits."""


class Member:
    """Joins and leaves as it is told."""

    def __init__(self, client: JetstreamClient, words: argparse.Namespace, tasks: asyncio.TaskGroup) -> None:
        self._client = client
        self._words = words
        self._tasks = tasks
        self._consumer: Consumer | None = None
        self._seen: list[tuple[str, int, int]] = []
        self._owns = asyncio.Event()

    async def obey(self, word: str) -> None:
        """Do what one line says."""
        match word:
            case "join":
                self._consumer = self._client.consume(
                    self._words.streams.split(","),
                    group=self._words.group,
                    session_timeout_s=self._words.session_s,
                    on_assigned=lambda _: self._owns.set(),
                )
                work = self._commit if self._words.commits else self._read
                self._tasks.create_task(work(self._consumer))
            case "owned":
                announce("owned", streams=() if self._consumer is None else self._consumer.assignment)
            case "seen":
                seen, self._seen = self._seen, []
                announce("seen", seen=seen)
            case "leave":
                assert self._consumer is not None, "join comes before leave"
                begun_ns = time.time_ns()
                await self._consumer.close()
                self._consumer = None
                announce("left", begun_ns=begun_ns)
            case _:
                raise ValueError(f"no command: {word}")

    async def _read(self, consumer: Consumer) -> None:
        async for record in consumer:
            self._seen.append((record.stream, record.offset, time.time_ns()))

    async def _commit(self, consumer: Consumer) -> None:
        async with consumer:
            await self._owns.wait()
            (stream,), offset = consumer.assignment, 0
            while True:
                with suppress(JetstreamError):
                    await consumer.commit({stream: offset + 1})
                    offset += 1
                    self._seen.append((stream, offset, time.time_ns()))
                await asyncio.sleep(PAUSE_SECONDS)


async def _run(words: argparse.Namespace) -> None:
    """Obey until standard input ends."""
    lines = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(lines)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    async with jetstream.connect(words.url) as client, asyncio.TaskGroup() as tasks:
        member = Member(client, words, tasks)
        announce("ready")
        while line := await lines.readline():
            await member.obey(line.decode().strip())


def main() -> None:
    """Be what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--streams", required=True)
    parser.add_argument("--session-s", type=float, required=True)
    parser.add_argument("--commits", action="store_true")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(parser.parse_args()))


if __name__ == "__main__":
    main()
