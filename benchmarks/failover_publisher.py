"""A publisher that goes on through a change of leaders, by the clock, and remembers every ack.

    python -m benchmarks.failover_publisher --url URL

``fill SUBJECT COUNT`` publishes so many messages with an id each, and says ``filled`` when all are acked.
``watch SUBJECT`` publishes a message every 2 ms and says ``flowing`` when acks come; ``again NANOSECONDS``
says ``again`` once messages that left after that moment are acked; ``stop`` says all acks. Nothing is
repeated: a message that nobody stores is none of the acked ones. Times are nanoseconds since 1970.
"""

import argparse
import asyncio
import json
import sys
import time
from typing import Any, Final

import nats
import uvloop
from nats.aio.client import Client
from nats.aio.msg import Msg

from benchmarks.helper_process import announce

PERIOD_SECONDS: Final = 0.002
ACKS_WANTED: Final = 50
"""So many say that acks flow, at the beginning and again."""
PAYLOAD: Final = bytes(128)
FILL_IN_FLIGHT: Final = 1000


async def _fill(client: Client, subject: str, count: int) -> None:
    """Publish ``count`` messages with ids of their own; any that is refused ends the program."""
    free, inbox = asyncio.Semaphore(FILL_IN_FLIGHT), client.new_inbox()
    refused: list[bytes] = []

    async def on_answer(message: Msg) -> None:
        if b'"error"' in message.data or not message.data:
            refused.append(message.data)
        free.release()

    subscription = await client.subscribe(inbox, cb=on_answer)
    for number in range(count):
        await free.acquire()
        await client.publish(subject, PAYLOAD, reply=inbox, headers={"Nats-Msg-Id": f"{number}"})
    for _ in range(FILL_IN_FLIGHT):
        await free.acquire()
    await subscription.unsubscribe()
    if refused:
        raise ValueError(f"{len(refused)} of {count} messages refused, the first one by {refused[0]!r}")
    announce("filled", count=count)


class _Publisher:
    """Publishes on one subject while it is watched."""

    def __init__(self, client: Client, tasks: asyncio.TaskGroup) -> None:
        self._client = client
        self._tasks = tasks
        self._inbox = client.new_inbox()
        self._publishing: asyncio.Task[None] | None = None
        self._sent: list[int] = []
        self._acks: list[tuple[int, int, int, int | None]] = []
        self._refused = 0
        self._first_sent = 0
        self._after_ns: int | None = None
        self._counted = 0
        self._event = "flowing"

    async def begin(self) -> None:
        await self._client.subscribe(f"{self._inbox}.*", cb=self._on_answer)

    def obey(self, words: list[str]) -> None:
        """Do what one line says."""
        match words:
            case ["fill", subject, count]:
                self._tasks.create_task(_fill(self._client, subject, int(count)))
            case ["watch", subject]:
                self._first_sent += len(self._sent)
                self._sent, self._acks, self._refused = [], [], 0
                self._wait_for("flowing", 0)
                self._publishing = self._tasks.create_task(self._publish(subject))
            case ["again", moment]:
                self._wait_for("again", int(moment))
            case ["stop"]:
                assert self._publishing is not None, "watch comes before stop"
                self._publishing.cancel()
                announce("watched", acks=self._acks, sent=len(self._sent), refused=self._refused)
            case _:
                raise ValueError(f"no command: {words}")

    def _wait_for(self, event: str, after_ns: int) -> None:
        self._event, self._after_ns, self._counted = event, after_ns, 0

    async def _publish(self, subject: str) -> None:
        due = time.monotonic()
        while True:
            number = self._first_sent + len(self._sent)
            self._sent.append(time.time_ns())
            await self._client.publish(subject, PAYLOAD, reply=f"{self._inbox}.{number}")
            due = max(due + PERIOD_SECONDS, time.monotonic() - 1.0)
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _on_answer(self, message: Msg) -> None:
        acked_ns = time.time_ns()
        number = int(message.subject.rpartition(".")[2]) - self._first_sent
        if number < 0:
            return  # of an earlier watch
        answer: dict[str, Any] = json.loads(message.data) if message.data else {"error": "nobody listens"}
        if "error" in answer:
            self._refused += 1
            return
        sent_ns = self._sent[number]
        self._acks.append((sent_ns, acked_ns, int(answer["seq"]), answer.get("epoch")))
        if self._after_ns is not None and sent_ns > self._after_ns:
            self._counted += 1
            if self._counted == ACKS_WANTED:
                self._after_ns = None
                announce(self._event)


async def _run(url: str) -> None:
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(commands), sys.stdin
    )
    client = await nats.connect(url)
    async with asyncio.TaskGroup() as tasks:
        publisher = _Publisher(client, tasks)
        await publisher.begin()
        announce("ready")
        while line := await commands.readline():
            publisher.obey(line.decode().split())
    await client.close()


def main() -> None:
    """Run until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(parser.parse_args().url))


if __name__ == "__main__":
    main()
