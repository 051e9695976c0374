"""One reader that waits at the end of a stream and notes when each record comes.

    python -m benchmarks.wake_up_process ours|jetstream --records N (--socket HOST:PORT | --nats URL)

Prints, after N records, one list of [offset, append time, arrival] (nanoseconds since 1970).
"""

import argparse
import asyncio
import time
from typing import Final

import nats
import uvloop
from nats.aio.msg import Msg

import jetstream
from benchmarks.helper_process import announce
from benchmarks.systems import SUBJECT, stream_name

STREAM: Final = stream_name(0)
Arrival = tuple[int, int, int]


async def follow_ours(address: str, records: int) -> list[Arrival]:
    """Follow a stream of ours with the client library."""
    async with jetstream.connect(socket=address) as client:
        announce("ready")
        async with client.read(STREAM, end=records, follow=True) as reader:
            return [(record.offset, record.timestamp * 1000, time.time_ns()) async for record in reader]


async def follow_jetstream(url: str, records: int) -> list[Arrival]:
    """Follow a stream of NATS JetStream with nats-py's ordered consumer."""
    arrivals: list[Arrival] = []
    complete = asyncio.Event()

    async def on_message(message: Msg) -> None:
        now_ns = time.time_ns()
        # The server's clock at the time of storing: in the tokens of the reply subject.
        tokens = message.reply.split(".")
        arrivals.append((int(tokens[5]) - 1, int(tokens[7]), now_ns))
        if len(arrivals) == records:
            complete.set()

    client = await nats.connect(url)
    try:
        await client.jetstream().subscribe(SUBJECT, stream=STREAM, cb=on_message, ordered_consumer=True)
        announce("ready")
        await complete.wait()
    finally:
        await client.close()
    return arrivals


def main() -> None:
    """Follow until all records have come."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("ours", "jetstream"))
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--socket", default="")
    parser.add_argument("--nats", default="")
    arguments = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if arguments.kind == "ours":
            arrivals = runner.run(follow_ours(arguments.socket, arguments.records))
        else:
            arrivals = runner.run(follow_jetstream(arguments.nats, arguments.records))
    announce("arrivals", arrivals=arrivals)


if __name__ == "__main__":
    main()
