"""Consumers of groups that commit their cursors, as many as there are connections, from one process.

    python -m benchmarks.committers --address HOST:PORT --shard __cursors/0 --consumers N --streams S0,S1…

Each consumer is the only member of its group and owns every stream; it commits all of them in one request,
one offset further each time, and beats beside it. It says ``joined`` when all have joined; then it is told
``closed SECONDS WARMUP`` (each consumer sends its next request when the last one is answered) or ``open
SECONDS WARMUP RATE`` (requests leave by the clock, the consumers take turns, and latency counts from when a
request was due), and says ``measuring``, ``measured`` and the ``result``. After that the cursors of all are
read back: each must be where the last acked commit left it.
"""

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import cycle
from typing import Final

from benchmarks.group_members import Line, Lines, Member, Unexpected, groups_of
from benchmarks.helper_process import announce
from benchmarks.raw_protocol import PREFIX, Header
from benchmarks.wake_up import percentile
from envelope.types import StreamName

INCARNATION: Final = "01JD2Q3G6W8X0V4T5R7Y9ZBENCH"
"""As long as that of a stream."""

SHARES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}

Acked = Callable[["Committer", int], None]
"""Told who has committed, and when that was due."""


def commit_header(member: Member, request_id: int, number: int, offset: int) -> bytes:
    """Return the request that commits ``offset`` in all streams; written by hand: thousands a second are."""
    place = f'"offset":{offset},"incarnation":"{INCARNATION}"'
    cursors = ",".join(f'{{"stream":"{stream}","partition":0,{place}}}' for stream in member.streams)
    whose = f'"group":"{member.group}","member":"{member.member_id}","generation":{member.generation}'
    request = f'"op":"commit_cursors","id":{request_id},{whose},"number":{number},"cursors":[{cursors}]'
    return f"{{{request}}}".encode()


class Committer:
    """One consumer."""

    def __init__(self, line: Line, acked: Acked) -> None:
        """Commit for the only member of ``line``."""
        self._line, self._acked = line, acked
        (self._member,) = line.members
        self._number = 0
        self._offset = self._committed = time.time_ns() // 1000
        """Runs before this one may have left cursors, lower ones."""

    def commit(self, due_ns: int) -> None:
        """Commit one offset further."""
        self._number += 1
        self._offset += 1
        number = self._line.next_id()
        header = self._request(number).encode()
        done = partial(self._done, due_ns, self._offset)
        self._line.send(number, PREFIX.pack(len(header), 0) + header, done)

    def _request(self, number: int) -> str:
        member, place = self._member, f'"offset":{self._offset},"incarnation":"{INCARNATION}"'
        cursors = ",".join(f'{{"stream":"{stream}","partition":0,{place}}}' for stream in member.streams)
        whose = f'"group":"{member.group}","member":"{member.member_id}","generation":{member.generation}'
        return (
            f'{{"op":"commit_cursors","id":{number},{whose},"number":{self._number},"cursors":[{cursors}]}}'
        )

    def _done(self, due_ns: int, offset: int, answer: Header) -> None:
        if answer["superseded"]:
            raise Unexpected("a commit was superseded")
        self._committed = max(self._committed, offset)
        self._acked(self, due_ns)

    def read_back(self, problems: list[str]) -> None:
        """Ask for the cursors; what is not where it should be becomes a problem."""
        partitions = [{"stream": stream, "numbers": [0]} for stream in self._member.streams]
        done = partial(self._compare, problems)
        self._line.ask(done, op="fetch_cursors", group=self._member.group, partitions=partitions)

    def _compare(self, problems: list[str], answer: Header) -> None:
        found = {cursor["stream"]: cursor["offset"] for cursor in answer["cursors"]}
        expected = dict.fromkeys(self._member.streams, self._committed)
        if found != expected:
            problems.append(f"{self._member.group} has committed {expected} and finds {found}")


class Run:
    """All consumers under one load."""

    def __init__(self, lines: Lines, seconds: float, warmup_seconds: float) -> None:
        """Measure from ``warmup_seconds`` from now on; nothing is sent yet."""
        self._lines = lines
        self._committers = [Committer(line, self._acked) for line in lines.lines]
        self._begin_ns = time.perf_counter_ns() + round(warmup_seconds * 1e9)
        self._end_ns = self._begin_ns + round(seconds * 1e9)
        self._is_closed_loop = False
        self._latencies_us: list[float] = []

    def closed_loop(self) -> None:
        """Commit as soon as the last commit is acked."""
        self._is_closed_loop = True
        for committer in self._committers:
            committer.commit(time.perf_counter_ns())
        self._measure(lambda _: self._end_ns)

    def by_the_clock(self, rate: float) -> None:
        """Commit ``rate`` times a second, in turns."""
        turns, period_ns = cycle(self._committers), 1e9 / rate
        due_ns = float(time.perf_counter_ns())

        def send(now_ns: int) -> float:
            nonlocal due_ns
            while due_ns <= now_ns:
                next(turns).commit(int(due_ns))
                due_ns += period_ns
            return due_ns

        self._measure(send)

    def _measure(self, send: Callable[[int], float]) -> None:
        """Go on until the end; ``send`` returns when it wants to be called again."""
        self._go_on(self._begin_ns, send)
        announce("measuring")
        cpu_seconds = time.process_time()
        self._go_on(self._end_ns, send)
        announce("measured")
        cpu_seconds = time.process_time() - cpu_seconds
        self._lines.until_answered()
        problems: list[str] = []
        for committer in self._committers:
            committer.read_back(problems)
        self._lines.until_answered()
        found = self._latencies_us
        announce(
            "result",
            acked=len(found),
            cpu_seconds=cpu_seconds,
            latency_us={name: percentile(found, share) for name, share in SHARES.items()},
            problem=problems[0] if problems else None,
        )

    def _go_on(self, until_ns: int, send: Callable[[int], float]) -> None:
        while (now_ns := time.perf_counter_ns()) < until_ns:
            due_ns = send(now_ns)
            self._lines.step((min(due_ns, until_ns) - now_ns) / 1e9)

    def _acked(self, committer: Committer, due_ns: int) -> None:
        now_ns = time.perf_counter_ns()
        if self._begin_ns <= now_ns < self._end_ns:
            self._latencies_us.append((now_ns - due_ns) / 1e3)
        if self._is_closed_loop and now_ns < self._end_ns:
            committer.commit(now_ns)


def main() -> None:
    """Be what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", required=True)
    parser.add_argument("--shard", type=StreamName, required=True)
    parser.add_argument("--consumers", type=int, required=True)
    parser.add_argument("--streams", required=True)
    arguments = parser.parse_args()
    streams = arguments.streams.split(",")
    lines = Lines()
    for group in groups_of(arguments.shard, arguments.consumers):
        lines.add(Line(arguments.address, [Member(group, f"{group}-{time.time_ns()}", streams)]))
        lines.lines[-1].join()
    lines.until_answered()
    unserved = [member.group for member in lines.members if member.owned < len(streams)]
    if unserved:
        raise Unexpected(f"{unserved[0]} does not own its streams")
    lines.begin_to_beat()
    announce("joined")
    kind, *numbers = sys.stdin.readline().split()
    seconds, warmup_seconds, *rate = map(float, numbers)
    run = Run(lines, seconds, warmup_seconds)
    if kind == "open":
        run.by_the_clock(*rate)
    else:
        run.closed_loop()
    lines.leave()
    announce("left")


if __name__ == "__main__":
    main()
