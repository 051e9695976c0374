"""What a group commit costs in counts: calls, allocations, system calls and frames of each process.

A publisher sends a group of messages in one write, and the next group when all are acked: a group of the
publisher is a group commit of the node. What is counted between two moments is divided by the groups between
them. Counts hold on any machine, times do not. What timers do meanwhile is in the counts.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Final

from benchmarks import call_counts, counted_node, group_costs, replicated
from benchmarks.call_counts import ALLOCATIONS, CALLS
from benchmarks.clusters import node_cluster
from benchmarks.group_costs import GroupCase, GroupCost
from benchmarks.measurement import tell
from benchmarks.processes import nats_server, node
from benchmarks.replicated import Replicated
from benchmarks.report import Report, Row, Settings, new_report
from benchmarks.systems import OURS_ALWAYS, OURS_OS, Ours, System

MESSAGES: Final = (1, 8, 64, 400)
"""Of a group."""
MESSAGES_QUICK: Final = (8,)
GROUPS: Final = 200
GROUPS_QUICK: Final = 20
NAMED_AT: Final = 8
"""Of groups of so many messages the report has each function by name, and how often a group calls it."""
_NAMED_LEAST: Final = 0.1
"""Of one name in a group: system calls that are rarer are in the sum and in the JSON alone."""

Case = tuple[str, int]
"""A system's name, messages of a group."""


def run(settings: Settings) -> Report:
    """Count what each process does for a group, on one node and on three, with sync and without."""
    call_counts.build()
    groups = GROUPS_QUICK if settings.quick else GROUPS
    costs: dict[Case, list[dict[str, GroupCost]]] = {}
    problems: dict[Case, list[str]] = {}
    for counted in (CALLS, ALLOCATIONS):
        directory = settings.directory / counted
        with _systems(directory, counted) as systems:
            for system, messages in _in_turn(systems, settings):
                case = GroupCase(system, directory, messages, groups, warmup_groups=groups // 3)
                by_role, problem = case.measure(counted)
                costs.setdefault((system.name, messages), []).append(by_role)
                problems.setdefault((system.name, messages), []).extend([] if problem is None else [problem])
                tell(f"{system.name:26} {messages:>4} {_brief(by_role)}")
    rows = [
        row_of(f"{name}: {role}", messages, _of_role(costs[name, messages], role), problems[name, messages])
        for name, messages in costs
        for role in dict.fromkeys(role.split()[0] for role in costs[name, messages][0])
    ]
    return new_report(
        "budget",
        settings,
        rows,
        rate_unit=f"{group_costs.PYTHON_CALLS} a group",
        groups=groups,
        size_bytes=group_costs.SIZE_BYTES,
    )


def row_of(system: str, messages: int, costs: Sequence[GroupCost], problems: Sequence[str]) -> Row:
    """Fold the runs of one process, and those of its like, into a row: medians, and the calls' spread."""
    counts: dict[str, list[float]] = {}
    for cost in costs:
        frequent = [name for name, count in cost.system_calls.items() if count >= _NAMED_LEAST]
        named = {name: cost.system_calls[name] for name in sorted(set(frequent) - group_costs.SUMMED)}
        for name, count in (*cost.counts.items(), *named.items()):
            counts.setdefault(name, []).append(count)
    calls = counts.pop(group_costs.PYTHON_CALLS)
    return Row(
        system=system,
        point=f"{messages} a group",
        rate=statistics.median(calls),
        rate_min=min(calls),
        rate_max=max(calls),
        details={name: statistics.median(values) for name, values in counts.items()},
        problems=sorted(set(problems)),
        runs=[_run(cost, is_named=messages == NAMED_AT and cost is costs[0]) for cost in costs],
    )


def _run(cost: GroupCost, *, is_named: bool) -> dict[str, object]:
    run = asdict(cost)
    ordered = sorted(cost.functions.items(), key=lambda item: (-item[1], item[0]))
    return run | {"functions": {name: round(calls, 2) for name, calls in ordered} if is_named else {}}


@contextmanager
def _systems(directory: Path, counted: str) -> Iterator[list[System]]:
    """Run one node and three, which count; each with a stream that syncs and with one that does not."""
    program = (*counted_node.PROGRAM, counted)
    with ExitStack() as stack:
        address, nats_pid = stack.enter_context(nats_server(directory / "nats"))
        pid = stack.enter_context(node(directory / "node", address, program))
        processes = {"node": pid, "nats-server": nats_pid}
        cluster = stack.enter_context(node_cluster(directory / "cluster", program=program))
        yield [
            Ours(OURS_ALWAYS, address, processes, {"sync": "always"}, directory / "node" / "data"),
            Ours(OURS_OS, address, processes, {"sync": "os"}, directory / "node" / "data"),
            Replicated(replicated.OURS_ALWAYS, cluster, {"sync": "always"}),
            Replicated(replicated.OURS_OS, cluster, {"sync": "os"}),
        ]


def _in_turn(systems: Sequence[System], settings: Settings) -> Iterator[tuple[System, int]]:
    for _ in range(settings.runs):
        for system in systems:
            for messages in MESSAGES_QUICK if settings.quick else MESSAGES:
                yield system, messages


def _of_role(runs: Sequence[Mapping[str, GroupCost]], role: str) -> list[GroupCost]:
    return [cost for costs in runs for name, cost in costs.items() if name.split()[0] == role]


def _brief(costs: Mapping[str, GroupCost]) -> str:
    return "  ".join(f"{role} {next(iter(cost.counts.values())):,.0f}" for role, cost in costs.items())
