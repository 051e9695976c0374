"""One reader in a process of its own: reads a stream again and again, verifies it, and says how fast it was.

    python -m benchmarks.reader_process KIND [--once] --records N [--socket HOST:PORT] [--http HOST:PORT]
        [--nats URL] [--files]
    python -m benchmarks.reader_process KIND --ends NAME=N… [--group G --owned N] --socket ADDRESS

With ``--ends`` the kinds are ``group``, ``group_records`` and ``partitions``. It begins at once, says so with
the first arrival, and goes on until the end of the window that it is then told on standard input: ``BEGIN
END``, in nanoseconds of the monotonic clock. With ``--once`` it waits for a line instead, and reads all of it
one time. With ``--linger`` it reads on, uncounted, when it has said its result. Everything is verified: each
record or batch continues where the last one ended, and a pass has exactly the stream's records; of raw bytes,
the end of each pass is compared. The event loop is uvloop's, for every kind.
"""

import argparse
import asyncio
import os
import select
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final

import uvloop

import jetstream
from benchmarks import nats_consumers, partition_readers, raw_stream
from benchmarks.helper_process import announce
from benchmarks.http_readers import read_http_batches, read_http_lines
from benchmarks.meter import Meter, Unverified, Window
from benchmarks.systems import stream_name
from jetstream.client.nodes.socket_access import parse_address

STREAM: Final = stream_name(0)
RECORDS_PER_LOOK: Final = 1024
"""Single records are counted one by one, but the clock is asked only so often."""


async def read_batches(address: str, records: int, meter: Meter, *, short_circuit: bool = False) -> None:
    """Read by Arrow batch: received, or read where it lies, CRC checked, decoded to columns."""
    async with jetstream.connect(socket=address, short_circuit_reads=short_circuit) as client:
        meter.begin()
        while True:
            expected = 0
            async with client.read_batches(STREAM, start=0, end=records) as reader:
                async for batch in reader:
                    offsets = batch.column(0)
                    first, last = offsets[0].as_py(), offsets[batch.num_rows - 1].as_py()
                    if (first, last) != (expected, expected + batch.num_rows - 1):
                        raise Unverified(
                            f"a batch [{first}, {last}] of {batch.num_rows} at offset {expected}"
                        )
                    expected = last + 1
                    if not meter.add(batch.num_rows):
                        return
            _check_end(expected, records)
            if not meter.passed():
                return


async def read_records(address: str, records: int, meter: Meter) -> None:
    """Read record by record: a Python object for each."""
    async with jetstream.connect(socket=address, short_circuit_reads=False) as client:
        meter.begin()
        while True:
            expected = 0
            async with client.read(STREAM, start=0, end=records) as reader:
                async for record in reader:
                    if record.offset != expected:
                        raise Unverified(f"offset {record.offset} instead of {expected}")
                    expected += 1
                    if not expected % RECORDS_PER_LOOK and not meter.add(RECORDS_PER_LOOK):
                        return
            _check_end(expected, records)
            if not meter.add(expected % RECORDS_PER_LOOK) or not meter.passed():
                return


def _check_end(reached: int, records: int) -> None:
    if reached != records:
        raise Unverified(f"a pass ended at offset {reached} of {records}")


class _ToldWindow:
    """Says at the first arrival that the reader reads, and looks from then on for the window it is told."""

    def __init__(self) -> None:
        self._reads = False

    def __call__(self) -> Window | None:
        if not self._reads:
            self._reads = True
            announce("ready")
        readable, _, _ = select.select([sys.stdin], [], [], 0)
        if not readable:
            return None
        begin, end = map(int, sys.stdin.readline().split())
        return begin, end


async def _blocking(work: Callable[[], None]) -> None:
    """Raw reading needs no event loop; here it has one, so that all kinds start alike."""
    work()


def _kinds(arguments: argparse.Namespace, meter: Meter) -> dict[str, Callable[[], Awaitable[None]]]:
    files, records, socket, url = arguments.files, arguments.records, arguments.socket, arguments.nats

    def receive() -> None:
        raw_stream.receive(parse_address(socket), files, meter)

    ends = {name: int(end) for name, _, end in (pair.partition("=") for pair in arguments.ends)}

    over_http = (arguments.http, STREAM, records, meter)
    member = (socket, ends, arguments.group, arguments.owned, meter)
    return {
        "group": partial(partition_readers.read_in_group, *member),
        "group_records": partial(partition_readers.read_records_in_group, *member),
        "partitions": partial(partition_readers.read_alone, socket, ends, meter),
        "batches": partial(read_batches, socket, records, meter),
        "local_batches": partial(read_batches, socket, records, meter, short_circuit=True),
        "http_batches": partial(_blocking, partial(read_http_batches, *over_http)),
        "http_lines": partial(_blocking, partial(read_http_lines, *over_http)),
        "records": partial(read_records, socket, records, meter),
        "files": partial(_blocking, partial(raw_stream.read_files, files, meter)),
        "raw": partial(_blocking, receive),
        "ordered": partial(nats_consumers.read_ordered, url, records, meter),
        "pull": partial(nats_consumers.read_pulled, url, records, meter),
    }


async def _read(arguments: argparse.Namespace, meter: Meter) -> None:
    problem = None
    try:
        await _kinds(arguments, meter)[arguments.kind]()
    except Unverified as error:
        problem = str(error)
    announce("result", **meter.reading(problem).as_json())
    if arguments.linger:
        await _kinds(arguments, Meter(lambda: None))[arguments.kind]()


def main() -> None:
    """Read as the command line and the line on standard input say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind")
    parser.add_argument("--records", type=int, default=0)
    parser.add_argument("--socket", default="")
    parser.add_argument("--http", default="", help="HOST:PORT of the node's HTTP port")
    parser.add_argument("--nats", default="")
    parser.add_argument("--files", type=Path, nargs="*", default=[])
    parser.add_argument("--ends", nargs="*", default=[], help="of partitions: NAME=RECORDS")
    parser.add_argument("--group", default="")
    parser.add_argument("--owned", type=int, default=0, help="partitions that the member is to have")
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--linger", action="store_true", help="go on after the window, until it is ended")
    parser.add_argument("--nice", type=int, default=0, help="lower this process's priority")
    arguments = parser.parse_args()
    os.nice(arguments.nice)
    if arguments.once:
        announce("ready")
        sys.stdin.readline()
    meter = Meter(None if arguments.once else _ToldWindow())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_read(arguments, meter))


if __name__ == "__main__":
    main()
