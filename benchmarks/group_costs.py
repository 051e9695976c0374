"""What one group of messages costs each process of a system, in counts: how it is taken, and from what."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks import system_calls
from benchmarks.call_counts import CALLS, CallCounts, counters_file
from benchmarks.group_publisher import GroupPublisher
from benchmarks.systems import SUBJECT, System

SIZE_BYTES: Final = 128
"""Of a message."""

PYTHON_CALLS: Final = "Python calls"
C_CALLS: Final = "C calls"
ALLOCATIONS: Final = "allocations"
FUNCTIONS: Final = "functions"
BYTECODE: Final = "bytecode KiB"
FRAMES_SENT: Final = "frames sent"
FRAMES_RECEIVED: Final = "frames received"
BATCHES: Final = "batches"
SYSTEM_CALLS: Final = "system calls"
FUTEXES: Final = "futexes"
LOOP_ITERATIONS: Final = "loop iterations"

_SENDS_FRAME: Final = frozenset({"PeerConnection.send"})
_RECEIVES_FRAME: Final = frozenset({"FetchRequester.received", "FetchResponder.received"})
"""Entered once for each frame of a replication session."""
_FUTEX: Final = "futex"
_POLLS: Final = frozenset({"epoll_wait", "epoll_pwait", "epoll_pwait2"})
"""The event loop makes one of them each time around."""
SUMMED: Final = frozenset({_FUTEX}) | _POLLS
"""System calls that have a count under another name."""
_NATS_SERVER: Final = "nats-server"
_IDLE_SECONDS_MIN: Final = 1.0


@dataclass(frozen=True, slots=True)
class GroupCost:
    """The counts of one process, divided by the groups."""

    counts: dict[str, float]
    functions: Mapping[str, float]
    """Calls of each function that runs in every other group at least."""
    system_calls: Mapping[str, float]
    """By name."""


@dataclass(frozen=True, slots=True)
class GroupCase:
    """Groups of so many messages on a fresh stream of a system whose nodes are `benchmarks.counted_node`."""

    system: System
    directory: Path
    """Of the system."""
    messages: int
    groups: int
    warmup_groups: int

    def measure(self, counted: str) -> tuple[dict[str, GroupCost], str | None]:
        """Publish groups; return the cost by role, and why it does not stand, or None.

        Args:
            counted: what the nodes count, `CALLS` or `ALLOCATIONS`; with the latter system calls are counted
                as well, in groups of their own.
        """
        with (
            self.system.streams(1) as count,
            GroupPublisher(self.system.address, SUBJECT, self.messages, SIZE_BYTES) as publisher,
        ):
            publisher.publish(self.warmup_groups)
            counts = self._counts(publisher)
            if counted == CALLS:
                costs = {role: cost_of_calls(counts[role], self.groups) for role in counts}
            else:
                calls = self._system_calls(publisher)
                costs = {
                    role: cost_of_system(counts[role].allocations, calls[role], self.groups)
                    for role in counts
                }
            holdings = count()
        assert holdings is not None, "our nodes store"
        if counted == CALLS and holdings.batches is not None:
            for cost in costs.values():
                cost.counts[BATCHES] = holdings.batches * self.messages / publisher.acked
        if holdings.records != (publisher.acked,):
            return costs, f"{publisher.acked} acked, {holdings.records} stored"
        return costs, holdings.problem

    def _counts(self, publisher: GroupPublisher) -> dict[str, CallCounts]:
        """Return by role what the nodes count for groups, without what they count in as much idle time."""
        files = {
            role: next(self.directory.rglob(counters_file(self.directory, pid).name))
            for role, pid in self._nodes().items()
        }

        def read() -> dict[str, CallCounts]:
            return {role: CallCounts.read(file) for role, file in files.items()}

        before = read()
        share = _publish_in(publisher, self.groups)
        after = read()
        time.sleep(share.idle_seconds)
        end = read()
        return {
            role: after[role].since(before[role]).without(end[role].since(after[role]), share.of_idle)
            for role in files
        }

    def _system_calls(self, publisher: GroupPublisher) -> dict[str, dict[str, float]]:
        """Return by role the system calls of groups, by name, without those of as much idle time."""
        with system_calls.traced(self._nodes(), self.directory) as busy:
            share = _publish_in(publisher, self.groups)
        with system_calls.traced(self._nodes(), self.directory) as idle:
            time.sleep(share.idle_seconds)
        return {
            role: {name: count - share.of_idle * idle[role].get(name, 0) for name, count in calls.items()}
            for role, calls in busy.items()
        }

    def _nodes(self) -> dict[str, int]:
        return {role: pid for role, pid in self.system.processes.items() if role != _NATS_SERVER}


@dataclass(frozen=True, slots=True)
class _Share:
    """How long to idle after a busy time, and how much of that is to be taken from what was counted then."""

    idle_seconds: float
    of_idle: float


def _publish_in(publisher: GroupPublisher, groups: int) -> _Share:
    begun = time.monotonic()
    publisher.publish(groups)
    seconds = time.monotonic() - begun
    idle_seconds = max(seconds, _IDLE_SECONDS_MIN)
    return _Share(idle_seconds, seconds / idle_seconds)


def cost_of_calls(counts: CallCounts, groups: int) -> GroupCost:
    """Divide the calls of functions by the groups; of functions that most groups run, add up the bytecode."""
    functions = counts.run_each_time(groups)
    named: dict[str, float] = {}
    for function in functions:
        named[function.name] = named.get(function.name, 0.0) + function.calls / groups
    return GroupCost(
        {
            PYTHON_CALLS: counts.python_calls / groups,
            C_CALLS: counts.c_calls / groups,
            FRAMES_SENT: counts.calls_of(_SENDS_FRAME) / groups,
            FRAMES_RECEIVED: counts.calls_of(_RECEIVES_FRAME) / groups,
            FUNCTIONS: len(functions),
            BYTECODE: sum(function.bytecode_bytes for function in functions) / 1024,
        },
        named,
        {},
    )


def cost_of_system(allocations: float, calls: Mapping[str, float], groups: int) -> GroupCost:
    """Divide allocations and system calls by the groups."""
    return GroupCost(
        {
            ALLOCATIONS: allocations / groups,
            SYSTEM_CALLS: sum(calls.values()) / groups,
            FUTEXES: calls.get(_FUTEX, 0.0) / groups,
            LOOP_ITERATIONS: sum(calls.get(name, 0.0) for name in _POLLS) / groups,
        },
        {},
        {name: count / groups for name, count in calls.items()},
    )
