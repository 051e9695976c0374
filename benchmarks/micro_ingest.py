"""CPU per message of the ingest path's pure parts: parser, machine with columns, acks.

    python -m benchmarks.micro_ingest [--json] [--seconds 0.5]

Each figure is the best of several runs over a canonical stream: 128-byte payloads, reply subjects as official
clients make them, chunks of 32 KiB as nats-py reads them, groups of 256 messages. Figures of small groups are
dearer: the last table shows groups of 1.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial

from envelope.limits import DEDUPE_IDS_MAX
from envelope.types import LeaderEpoch, Offset, StreamName, TimestampUs
from jetstream.ingest.machine import (
    AppendRecords,
    StreamIngest,
)
from jetstream.ingest.messages import MessageBlock
from jetstream.ingest.parser import Block, MessageParser
from jetstream.ingest.publishers.dedupe import DedupeWindow, window_us
from jetstream.ingest.publishers.history import PublisherHistory
from metadata.stream_config import StreamConfig

CHUNK_BYTES = 32 * 1024
MESSAGES = 20_000
_WINDOW = timedelta(minutes=2)
_CONFIG = StreamConfig(name="orders", subject="orders.>")


def _stream(payload: bytes, header: bytes = b"") -> bytes:
    lines: list[bytes] = []
    for number in range(MESSAGES):
        block = header.replace(b"#", b"%07d" % number)
        sizes = b"%d %d" % (len(block), len(block) + len(payload)) if header else b"%d" % len(payload)
        operation = b"HMSG" if header else b"MSG"
        reply = b"_INBOX.bq3kJ8dN2xW0yZ5rT7vQ1m.%07d" % number
        lines.append(b"%b orders.new 7 %b %b\r\n%b%b\r\n" % (operation, reply, sizes, block, payload))
    return b"".join(lines)


def _chunks(stream: bytes) -> list[bytes]:
    return [stream[start : start + CHUNK_BYTES] for start in range(0, len(stream), CHUNK_BYTES)]


def _best_us(run: Callable[[], float], seconds: float) -> float:
    """Return the best result (seconds of CPU) of ``run`` in microseconds per message."""
    best = run()
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        best = min(best, run())
    return best / MESSAGES * 1e6


def _parse(chunks: list[bytes]) -> float:
    parser = MessageParser()
    start = time.process_time()
    for chunk in chunks:
        parser.feed(chunk)
    return time.process_time() - start


def _groups(stream: bytes, group_messages: int) -> list[MessageBlock]:
    every = MessageBlock()
    parser = MessageParser()
    for chunk in _chunks(stream):
        for item in parser.feed(chunk):
            assert isinstance(item, Block), "the stream has no control operations"
            every.extend(item.messages)
    groups: list[MessageBlock] = []
    while len(every):
        group, every = every.split(min(group_messages, len(every)))
        groups.append(group)
    return groups


def _machine(groups: list[MessageBlock], window: timedelta) -> tuple[float, float]:
    """Return the CPU seconds of sequencing with columns, and of releasing the acks."""
    history = PublisherHistory(DedupeWindow(window_us(window), DEDUPE_IDS_MAX))
    machine = StreamIngest(
        stream=StreamName("orders"),
        config=_CONFIG,
        leader_epoch=LeaderEpoch(1),
        log_end_offset=Offset(0),
        history=history,
        binds=lambda _stream, _subject: True,
    )
    sequencing = acks = 0.0
    for number, group in enumerate(groups):
        now = TimestampUs(number)
        start = time.process_time()
        actions = machine.received(group, now)
        middle = time.process_time()
        assert any(isinstance(action, AppendRecords) for action in actions), "all messages are stored"
        machine.appended(machine.log_end_offset)
        machine.committed(machine.log_end_offset, now)
        sequencing += middle - start
        acks += time.process_time() - middle
    return sequencing, acks


def _sequencing(groups: list[MessageBlock], window: timedelta) -> float:
    return _machine(groups, window)[0]


def _acking(groups: list[MessageBlock], window: timedelta) -> float:
    return _machine(groups, window)[1]


def measure(seconds: float) -> dict[str, dict[str, float]]:
    """Return microseconds per message by table and row; every figure takes about ``seconds`` to measure."""
    text = bytes(ord("a") + place % 26 for place in range(128))
    plain, lines = _stream(text), _stream(text[:-1] + b"\n")
    identified = _stream(text, b"NATS/1.0\r\nNats-Msg-Id: #\r\n\r\n")
    parser = {
        name: _best_us(partial(_parse, _chunks(stream)), seconds)
        for name, stream in (("plain", plain), ("payload with LF", lines), ("with Nats-Msg-Id", identified))
    }
    result = {"parser": parser, "machine and columns": {}, "acks": {}}
    for name, stream, size, window in (
        ("plain, groups of 256", plain, 256, _WINDOW),
        ("with Nats-Msg-Id, groups of 256", identified, 256, _WINDOW),
        ("the same, no dedupe window", identified, 256, timedelta()),
        ("plain, groups of 1", plain, 1, _WINDOW),
        ("with Nats-Msg-Id, groups of 1", identified, 1, _WINDOW),
    ):
        groups = _groups(stream, size)
        result["machine and columns"][name] = _best_us(partial(_sequencing, groups, window), seconds)
        result["acks"][name] = _best_us(partial(_acking, groups, window), seconds)
    return result


def main(arguments: list[str]) -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--json", action="store_true", help="print JSON")
    options.add_argument("--seconds", type=float, default=0.5, help="time spent on each figure")
    chosen = options.parse_args(arguments)
    result = measure(chosen.seconds)
    if chosen.json:
        print(json.dumps({"unit": "us_per_message", "messages": MESSAGES, "result": result}))
        return
    for table, rows in result.items():
        print(f"{table}: microseconds of CPU per message")
        for name, figure in rows.items():
            print(f"  {figure:7.3f}  {name}")


if __name__ == "__main__":
    main(sys.argv[1:])
