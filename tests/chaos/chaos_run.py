"""One run: a cluster, its clients, faults for a while, everything mended, and the verdict."""

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import nats
from nats.aio.client import Client

import jetstream
from envelope.partitions import partition_of
from jetstream.client.nodes.replica_choice import ReadFrom
from tests.chaos.administrator import Administrator
from tests.chaos.aftermath import (
    problems_of_churned,
    problems_of_draining,
    problems_of_files,
    problems_of_keyed_files,
    problems_of_recovery,
    problems_of_voters,
    traces,
    whole_seconds,
)
from tests.chaos.cluster import ChaosCluster, chaos_cluster, until_answered
from tests.chaos.faults import KINDS, Nemesis, drawn
from tests.chaos.host_faults import HostFaults
from tests.chaos.member_faults import MemberFaults
from tests.chaos.publishers import Plan, Publisher
from tests.chaos.readers import EndAsker, Follower
from tests.chaos.recorder import Recorder
from tests.chaos.workforce import MEMBERS, PARTITIONED, SHARD, SUBSCRIBED, Workforce
from tests.support.group_history import Committed, Committing, Granted, PutOut, group_anomalies
from tests.support.history import Acked, Read, Refused, Sent, Unknown, anomalies
from tests.support.node_cluster import NAMES

_STREAMS: Final[dict[str, dict[str, Any]]] = {
    "orders": {"subject": "orders.>", "replicas": 3, "segment_bytes": 1 << 18},
    "numbers": {"subject": "numbers.>", "replicas": 3, "segment_bytes": 1 << 16},
    "pairs": {"subject": "pairs.>", "replicas": 2, "min_insync_replicas": 1, "segment_bytes": 1 << 16},
} | {
    name: {
        "subject": f"{name}.>",
        "replicas": 3,
        "segment_bytes": 1 << 16,
        "partitions": count,
        "partition_by": "subject",
    }
    for name, count in PARTITIONED.items()
}
_DEDUPE_WINDOW: Final = "P1D"
"""Longer than all that clocks jump: a repeat is recognised at any time of the log's clock."""
_PARTITIONS: Final = [(name, number) for name, count in PARTITIONED.items() for number in range(count)]
_PHYSICAL: Final = [
    *(name for name in _STREAMS if name not in PARTITIONED),
    *(f"{name}/{number}" for name, number in _PARTITIONS),
]
"""The streams in which records are."""
_DONE_BY_GROUP: Final = [name for name in _PHYSICAL if name.partition("/")[0] in SUBSCRIBED]


def _subject_of(stream: str, number: int) -> str:
    """Return a subject whose messages go to this partition."""
    subjects = (f"{stream}.{word}" for word in itertools.count())
    return next(each for each in subjects if partition_of(each.encode(), PARTITIONED[stream]) == number)


_PLANS: Final = (
    Plan("orders", "orders.eu", 30),
    Plan("orders", "orders.us", 30),
    Plan("orders", "orders.none", 40, window=8, has_ids=False),
    Plan("numbers", "numbers.all", 80, window=16),
    Plan("pairs", "pairs.left", 30),
    Plan("pairs", "pairs.none", 20, window=4, has_ids=False),
    *(Plan(f"{name}/{number}", _subject_of(name, number), 20) for name, number in _PARTITIONS),
)
"""At most 290 messages a second in all."""
_FULL_SECONDS: Final = 300.0
"""So much is published at most: a longer run goes slower, as nodes that start read all of it back."""
_READ_FROM: Final[tuple[ReadFrom, ...]] = ("auto", "any", "leader")
_SMALL_DISK_BYTES: Final = 192 << 20
_BYTES_PER_SECOND: Final = 1 << 19
"""More than all that is stored in a second."""
_START_SECONDS: Final = 60.0
_AFTERMATH_SECONDS: Final = 120.0


@dataclass(frozen=True, slots=True)
class Options:
    """What is to be run.

    Attributes:
        nodes: 3 or 5.
        seed: decides the faults and what clients do.
        seconds: how long faults go on.
        rounds: after so many rounds of faults they end too.
        kinds: of faults.
        hold_seconds: at most between one fault and the next.
    """

    nodes: int = 3
    seed: int = 0
    seconds: float = 60.0
    rounds: int = 1 << 30
    kinds: tuple[str, ...] = KINDS
    hold_seconds: float = 5.0


@dataclass
class Verdict:
    """What came of a run; it is good if ``problems`` is empty."""

    problems: list[str]
    counts: dict[str, int]
    faults: dict[str, int]
    silence_s: float
    """The longest time without any ack."""
    refusals: dict[str, int] = field(default_factory=dict)
    group: dict[str, int] = field(default_factory=dict)
    """What the members of the group did and heard, and how often."""


@dataclass
class ChaosRun:
    """The parts of one run."""

    options: Options
    directory: Path
    say: Callable[[str], None]

    async def run(self) -> Verdict:
        """Do it; the directory has the history, the nodes' logs and their files afterwards."""
        chance = random.Random(f"cluster {self.options.seed}")
        stored_bytes = int(min(self.options.seconds, _FULL_SECONDS) * _BYTES_PER_SECOND)
        small = chance.choice(NAMES[: self.options.nodes]), _SMALL_DISK_BYTES + stored_bytes
        with Recorder(self.directory / "history.jsonl") as recorder:
            async with chaos_cluster(self.directory, self.options.nodes, small, MEMBERS) as cluster:
                client = await nats.connect(
                    cluster.nats.url, max_reconnect_attempts=-1, reconnect_time_wait=0.1, error_cb=_quiet
                )
                try:
                    problems, nemesis = await self._with_clients(recorder, cluster, client)
                finally:
                    await client.close()
                    cluster.keep_small_disk()
            problems += [str(anomaly) for anomaly in anomalies(recorder.events)]
            problems += [str(anomaly) for anomaly in group_anomalies(recorder.group_events)]
        for name in cluster.nodes:
            problems += traces(cluster.nodes[name].log)
        return _verdict(recorder, problems, nemesis.counts)

    async def _with_clients(
        self, recorder: Recorder, cluster: ChaosCluster, client: Client
    ) -> tuple[list[str], Nemesis]:
        seed, url = self.options.seed, cluster.nats.url
        await self._create_streams(cluster, client)
        async with AsyncExitStack() as stack:
            publishers = [
                Publisher(recorder, f"p{number}", f"publisher {seed} {number}", url)
                for number in range(len(_PLANS) + 1)
            ]
            for publisher in publishers:
                await publisher.open()
                stack.push_async_callback(publisher.close)
            js = await stack.enter_async_context(
                jetstream.connect(
                    url,
                    max_reconnect_attempts=-1,
                    reconnect_time_wait=0.1,
                    error_cb=_quiet,
                    request_timeout=2.0,
                )
            )
            over, watched = asyncio.Event(), asyncio.Event()
            chance = random.Random(f"administrator {seed}")
            moved = [(name, 2 if name == "pairs" else 3) for name in (*_PHYSICAL, SHARD)]
            administrator = Administrator(
                recorder=recorder,
                client=client,
                publisher=publishers[-1],
                nodes=list(cluster.nodes),
                moved=moved,
                chance=chance,
            )
            workforce = Workforce(cluster, recorder, client)
            nemesis = Nemesis(
                cluster=cluster,
                recorder=recorder,
                client=client,
                members=MemberFaults(workforce),
                hosts=HostFaults(cluster, client, administrator, _PHYSICAL),
                streams=[*_PHYSICAL, SHARD],
                chance=random.Random(f"nemesis {seed}"),
                over=over,
            )
            async with asyncio.TaskGroup() as tasks:
                stack.push_async_callback(workforce.close)
                await workforce.start(self.directory, tasks)
                tasks.create_task(cluster.watch(watched))
                tasks.create_task(workforce.watch(over))
                followers = [
                    tasks.create_task(follower.run(js, over)) for follower in _followers(recorder, seed)
                ]
                async with asyncio.TaskGroup() as work:
                    pace = min(1.0, _FULL_SECONDS / self.options.seconds)
                    for plan, publisher in zip(_PLANS, publishers, strict=False):
                        paced = replace(plan, per_second=pace * plan.per_second)
                        work.create_task(publisher.run(paced, over))
                    asker = EndAsker(recorder, "asker", tuple(_PHYSICAL), random.Random(f"asker {seed}"))
                    work.create_task(asker.run(js, over))
                    work.create_task(administrator.run(over))
                    work.create_task(workforce.ask(random.Random(f"watcher {seed}"), over))
                    problems = await self._strike(nemesis)
                    over.set()
                for follower in followers:
                    follower.cancel()
                problems += await self._aftermath(cluster, administrator, workforce)
                await workforce.close()
                watched.set()
        return problems + cluster.ended, nemesis

    async def _create_streams(self, cluster: ChaosCluster, client: Client) -> None:
        async with asyncio.timeout(_START_SECONDS):
            await until_answered(
                client, lambda answer: len(answer.get("nodes", ())) == len(cluster.nodes), "cluster.info"
            )
            for name, fields in _STREAMS.items():
                await until_answered(
                    client,
                    lambda answer: "created" in answer,
                    "stream.create",
                    name=name,
                    dedupe_window=_DEDUPE_WINDOW,
                    rewrite_after="PT0S",  # a node whose clock is hours ahead would rewrite its files alone
                    **fields,
                )

    async def _strike(self, nemesis: Nemesis) -> list[str]:
        """Have rounds of faults until it is time; stop at once if the cluster does not recover."""
        options, recorder = self.options, nemesis.recorder
        chance = random.Random(f"faults {options.seed}")
        begun, problems = recorder.now(), list[str]()
        await recorder.more_acks(100, options.hold_seconds)
        for number in range(options.rounds):
            elapsed = recorder.now() - begun
            if elapsed >= options.seconds or problems:
                break
            round_ = drawn(chance, options.kinds, options.hold_seconds)
            self.say(
                f"{elapsed:6.1f} s  round {number}  acked {recorder.acked}  "
                f"{', '.join(fault.kind for fault in round_.faults)}"
            )
            await nemesis.strike(round_)
            problems += nemesis.hosts.problems
            if round_.recovers:
                problems += await problems_of_recovery(
                    nemesis.client, nemesis.streams, whole_seconds(recorder.acked)
                )
            else:
                await recorder.more_acks(20, options.hold_seconds)
        return problems

    async def _aftermath(
        self, cluster: ChaosCluster, administrator: Administrator, workforce: Workforce
    ) -> list[str]:
        """Look at everything once it is mended, and stop the nodes."""
        self.say("all is mended: reading, stopping, comparing files")
        recorder = workforce.recorder
        existing = [stream for stream in administrator.churned if stream.exists]
        names = [*_PHYSICAL, SHARD, *(stream.name for stream in existing)]
        problems = await problems_of_recovery(administrator.client, names, whole_seconds(recorder.acked))
        problems += await problems_of_voters(cluster)
        if problems:
            return problems
        seconds = _AFTERMATH_SECONDS + min(self.options.seconds, _FULL_SECONDS) / 10
        keys = {name: name for name in _PHYSICAL} | {stream.key: stream.name for stream in existing}
        try:
            async with asyncio.timeout(seconds):
                problems += await self._use(administrator)
                problems += await problems_of_draining(recorder, cluster.nats.url, keys)
                infos = {
                    name: await until_answered(
                        administrator.client, lambda info: "isr" in info, "stream.info", name=name
                    )
                    for name in (*_PHYSICAL, SHARD)
                }
                ends = {name: infos[name]["high_watermark"] for name in _DONE_BY_GROUP}
                problems += await workforce.problems(ends)
        except TimeoutError:
            return [*problems, f"no end in {seconds:.0f} s after all was mended"]
        workforce.record_endings(_DONE_BY_GROUP)
        for name in cluster.nodes:
            code = await cluster.stop(name)
            if code != 0:
                problems.append(f"{name} stopped with exit code {code}")
        replicas = {name: info["replicas"] for name, info in infos.items()}
        problems += problems_of_keyed_files(cluster, SHARD, replicas.pop(SHARD))
        return problems + problems_of_files(recorder, cluster, replicas)

    async def _use(self, administrator: Administrator) -> list[str]:
        """Publish once more to every stream that must be there."""
        problems = await problems_of_churned(
            administrator.client, administrator.publisher, administrator.churned
        )
        subjects = {plan.stream: plan.subject for plan in _PLANS}
        for name in _PHYSICAL:
            if not await administrator.publisher.put(name, subjects[name]):
                problems.append(f"{name} takes no message after all was mended")
        return problems


def _followers(recorder: Recorder, seed: int) -> list[Follower]:
    return [
        Follower(
            recorder,
            f"{read_from} reader of {stream}",
            stream,
            read_from,
            random.Random(f"{stream} {read_from} {seed}"),
        )
        for stream in _STREAMS
        if stream not in PARTITIONED
        for read_from in _READ_FROM
    ]


def _verdict(recorder: Recorder, problems: list[str], faults: dict[str, int]) -> Verdict:
    counts = Counter(type(event).__name__ for event in recorder.events)
    counts["records read"] = sum(len(event.records) for event in recorder.events if isinstance(event, Read))
    refusals = Counter(event.code for event in recorder.events if isinstance(event, Refused))
    acked_at = [event.at for event in recorder.events if isinstance(event, Acked)]
    silence_s = max((after - before for before, after in itertools.pairwise(acked_at)), default=0.0)
    wanted = {kind.__name__ for kind in (Sent, Acked, Unknown)} | {"records read"}
    return Verdict(
        problems=problems,
        counts={name: count for name, count in sorted(counts.items()) if name in wanted},
        faults=faults,
        silence_s=silence_s,
        refusals=dict(refusals),
        group=_told_by_members(recorder),
    )


def _told_by_members(recorder: Recorder) -> dict[str, int]:
    counts = Counter[str]()
    for event in recorder.group_events:
        match event:
            case Granted():
                counts["grants"] += 1
            case PutOut():
                counts["put out"] += 1
            case Committing(again=True):
                counts["commits sent again"] += 1
            case Committed(outcome=outcome, code=code):
                counts[f"commits {outcome} {code}".strip()] += 1
            case _:
                pass
    return dict(sorted(counts.items()))


async def _quiet(error: Exception) -> None:
    """The outages are the chaos's own doing."""
