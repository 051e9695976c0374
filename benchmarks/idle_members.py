"""Very many members of very many groups that have nothing to do but beat, on few connections.

    python -m benchmarks.idle_members --address HOST:PORT --groups N --members M --connections C --streams S0…

A connection has members of many groups, one of each as far as that goes. All join, connection by connection,
and give up what others are to have; it says ``idle`` when for a while no heartbeat has brought news. Told
``count``, it says how many heartbeats were ``answered`` so far, with how many members and how much news; when
standard input ends, it ends.
"""

import argparse
import select
import sys
import time
from typing import Final

from benchmarks.group_members import HEARTBEAT_MS, Line, Lines, Member, Unexpected
from benchmarks.helper_process import announce

QUIET_SECONDS: Final = 1.5 * HEARTBEAT_MS / 1e3
"""Without news for so long, nothing is under way any more."""
SETTLE_SECONDS_MAX: Final = 120.0


def main() -> None:
    """Be what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", required=True)
    parser.add_argument("--groups", type=int, required=True)
    parser.add_argument("--members", type=int, required=True, help="of each group")
    parser.add_argument("--connections", type=int, required=True)
    parser.add_argument("--streams", required=True)
    arguments = parser.parse_args()
    lines, streams = Lines(), arguments.streams.split(",")
    begun = time.monotonic()
    for members in dealt(arguments.groups, arguments.members, arguments.connections, streams):
        line = Line(arguments.address, members)
        lines.add(line)
        line.join()
        lines.until_answered()
        line.begin_to_beat()
    _settle(lines)
    idlers = [member for member in lines.members if not member.owned]
    announce("idle", seconds=time.monotonic() - begun, without_partitions=len(idlers))
    _serve(lines)


def dealt(groups: int, members: int, connections: int, streams: list[str]) -> list[list[Member]]:
    """Return the members of each connection; two of one group are on one only if they must."""
    found: list[list[Member]] = [[] for _ in range(connections)]
    for number in range(members):
        for group in range(groups):
            name = f"idle-{group}"
            where = (group + number * max(1, connections // members)) % connections
            found[where].append(Member(name, f"{name}-{number}", streams))
    return found


def _settle(lines: Lines) -> None:
    """Wait until nothing is new to anybody."""
    deadline = time.monotonic() + SETTLE_SECONDS_MAX
    news, since = -1, time.monotonic()
    while time.monotonic() - since < QUIET_SECONDS:
        if time.monotonic() > deadline:
            raise Unexpected(f"there is still news after {SETTLE_SECONDS_MAX:.0f} s")
        lines.step(0.1)
        now = sum(line.news for line in lines.lines)
        if now != news:
            news, since = now, time.monotonic()


def _serve(lines: Lines) -> None:
    """Beat until standard input ends."""
    while True:
        lines.step(0.05)
        if select.select([sys.stdin], [], [], 0)[0]:
            if not sys.stdin.readline():
                return
            answered = sum(line.answered for line in lines.lines)
            news = sum(line.news for line in lines.lines)
            announce("answered", heartbeats=answered, news=news, cpu_seconds=time.process_time())


if __name__ == "__main__":
    main()
