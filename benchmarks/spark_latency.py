"""From the append of a record to Spark's foreachBatch, beside Spark's own rate source into the same sink.

Both give as many rows at once, once a second, to a query that has nothing else to do. A record of ours is
there from its append on, as its timestamp tells; a row of the rate source from the end of its second on,
which is when that source has it.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

import jetstream
from benchmarks.measurement import tell
from benchmarks.report import Bar, Report, Row, Settings, new_report
from benchmarks.spark_scene import MASTER, SparkScene, spark_scene, values_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

ROWS_AT_ONCE: Final = 50
SIZE_BYTES: Final = 100
SECONDS_QUICK: Final = 10.0
SETTLED_SECONDS: Final = 20.0
"""After the first batch of a query, in which Java still compiles and recompiles what it runs."""
SEEN_SECONDS_MAX: Final = 60.0

OURS: Final = "ours"
RATE: Final = "Spark's rate source"
POINT: Final = f"{ROWS_AT_ONCE} rows once a second"

OF_RATE_MAX: Final = 1.3
BEYOND_RATE_MS: Final = 50.0
OWN_SHARE_MS_MAX: Final = 20.0

_OURS_THERE: Final = "unix_micros(timestamp)"
# Row N's timestamp lies N / 50 seconds behind the source's start; it comes with the others of its second.
_RATE_THERE: Final = (
    f"unix_micros(timestamp) + 1000000 - (value % {ROWS_AT_ONCE}) * {1_000_000 // ROWS_AT_ONCE}"
)


@dataclass(slots=True)
class Sink:
    """What foreachBatch saw: of each row when it was there and when it came, in seconds since 1970."""

    there: str
    """When a row was there, in microseconds, as an expression of Spark's."""
    rows: list[tuple[float, float]] = field(default_factory=list)

    def take(self, frame: "DataFrame", _: int) -> None:
        """Take in one micro-batch."""
        found = frame.selectExpr(f"{self.there} as there").collect()
        now = time.time()
        self.rows += [(row[0] / 1e6, now) for row in found]

    def milliseconds(self, since: float) -> list[float]:
        """Return how long each row took that was there from ``since`` on."""
        return [1000 * (came - there) for there, came in self.rows if there >= since]


@dataclass(frozen=True, slots=True)
class Seen:
    """One query."""

    milliseconds: tuple[float, ...]
    spark_ms: dict[str, float]
    """Medians of what Spark says of triggers that had rows, by its names."""
    own_ms: dict[str, float]
    """Medians of what the source does in a trigger, by the method; empty for Spark's."""
    problem: str | None = None


def run(settings: Settings) -> Report:
    """Follow both sources, one after the other, as often as is asked, and once unmeasured before."""
    seconds = SECONDS_QUICK if settings.quick else 3 * settings.seconds
    seen: dict[str, list[Seen]] = {OURS: [], RATE: []}
    with spark_scene(settings.directory / "spark") as scene:
        for follow in (_follow_ours, _follow_rate):
            follow(scene, 1.0, scene.directory / f"unmeasured-{follow.__name__}")
        for number in range(settings.runs):
            for name, follow in ((OURS, _follow_ours), (RATE, _follow_rate)):
                seen[name].append(follow(scene, seconds, scene.directory / f"{follow.__name__}-{number}"))
                p50 = statistics.median(seen[name][-1].milliseconds)
                tell(f"{number + 1}/{settings.runs}  {name:20} p50 {p50:,.0f} ms")
    rows = [_row(name, each) for name, each in seen.items()]
    report = new_report("spark_latency", settings, rows, rate_unit="rows/s", master=MASTER, partitions=1)
    return report.model_copy(update={"bars": _bars(report)})


def _follow_ours(scene: SparkScene, seconds: float, checkpoint: Path) -> Seen:
    stream, sink, published = checkpoint.name, Sink(_OURS_THERE), 0
    rows = values_table(ROWS_AT_ONCE, SIZE_BYTES, np.random.default_rng(0))

    def tick() -> None:
        nonlocal published
        client.publish_batch(stream, rows)
        published += ROWS_AT_ONCE

    with jetstream.connect_blocking(scene.address.url) as client:
        client.streams.create(stream, stream)
        frame = scene.read_stream(stream, "jetstream_timed", startingOffsets="earliest")
        with _started(frame, sink, checkpoint) as query:
            tick()
            _wait_until(lambda: len(sink.rows) == published, query)
            _each_second(SETTLED_SECONDS, tick)
            scene.times.unlink()
            since = time.time()
            _each_second(seconds, tick)
            _wait_until(lambda: len(sink.rows) >= published, query)
    problem = None if len(sink.rows) == published else f"{len(sink.rows)} rows came, not {published}"
    return _seen(query, sink, since, _medians(scene.times), problem)


def _follow_rate(scene: SparkScene, seconds: float, checkpoint: Path) -> Seen:
    sink = Sink(_RATE_THERE)
    options = {"rowsPerSecond": str(ROWS_AT_ONCE), "numPartitions": "1"}
    frame = scene.spark.readStream.format("rate").options(**options).load()
    with _started(frame, sink, checkpoint) as query:
        _wait_until(lambda: bool(sink.rows), query)
        time.sleep(SETTLED_SECONDS)
        since = time.time()
        time.sleep(seconds)
        _wait_until(lambda: bool(sink.milliseconds(since)), query)
    return _seen(query, sink, since, {}, None)


def _each_second(seconds: float, tick: Callable[[], None]) -> None:
    """Call ``tick`` by the clock, once a second."""
    begun = time.monotonic()
    for number in range(int(seconds)):
        time.sleep(max(0.0, begun + number - time.monotonic()))
        tick()
    time.sleep(max(0.0, begun + seconds - time.monotonic()))


@contextmanager
def _started(frame: "DataFrame", sink: Sink, checkpoint: Path) -> "Iterator[StreamingQuery]":
    """Run a query while the block runs."""
    writer = frame.writeStream.foreachBatch(sink.take)
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    try:
        yield query
    finally:
        query.stop()


def _wait_until(condition: Callable[[], bool], query: "StreamingQuery") -> None:
    """Wait, but neither for ever nor for a query that has failed."""
    deadline = time.monotonic() + SEEN_SECONDS_MAX
    while not condition() and query.isActive and time.monotonic() < deadline:
        time.sleep(0.1)


def _seen(
    query: "StreamingQuery", sink: Sink, since: float, own_ms: dict[str, float], problem: str | None
) -> Seen:
    triggers = [progress.durationMs for progress in query.recentProgress if progress.numInputRows]
    names = triggers[-1] if triggers else {}
    milliseconds = sink.milliseconds(since)
    if not milliseconds:
        problem = f"no row came: {query.exception()}"
    return Seen(
        tuple(milliseconds) or (float("inf"),),
        {name: statistics.median(each.get(name, 0) for each in triggers) for name in names},
        own_ms,
        problem,
    )


def _medians(times: Path) -> dict[str, float]:
    """Return the medians of what `spark_sources` has written down, in milliseconds."""
    taken: dict[str, list[float]] = {}
    for line in times.read_text("ascii").splitlines():
        call, nanoseconds = line.split()
        taken.setdefault(call, []).append(int(nanoseconds) / 1e6)
    return {call: statistics.median(each) for call, each in taken.items()}


def _row(name: str, seen: Sequence[Seen]) -> Row:
    everything = sorted(one for each in seen for one in each.milliseconds)
    details = {
        f"{call} ms": statistics.median(each.spark_ms[call] for each in seen) for call in seen[0].spark_ms
    }
    details |= {
        f"own {call} ms": statistics.median(each.own_ms[call] for each in seen) for call in seen[0].own_ms
    }
    return Row(
        system=name,
        point=POINT,
        rate=ROWS_AT_ONCE,
        rate_min=ROWS_AT_ONCE,
        rate_max=ROWS_AT_ONCE,
        p50_us=1000 * statistics.median(statistics.median(each.milliseconds) for each in seen),
        p99_us=1000 * everything[int(0.99 * (len(everything) - 1))],
        details=details,
        problems=sorted({each.problem for each in seen if each.problem}),
        runs=[asdict(each) for each in seen],
    )


def _bars(report: Report) -> list[Bar]:
    ours, rate = report.row(OURS, POINT), report.row(RATE, POINT)
    own = sum(value for name, value in ours.details.items() if name.startswith("own "))
    allowed = OF_RATE_MAX * rate.p50_us / 1000 + BEYOND_RATE_MS
    return [
        Bar(
            requirement="append to foreachBatch, p50 ms (1.3 of the rate source's + 50)",
            value=ours.p50_us / 1000,
            bar=allowed,
            at_most=True,
        ),
        Bar(
            requirement="the source's own share: latestOffset, partitions and read, p50 ms",
            value=own,
            bar=OWN_SHARE_MS_MAX,
            at_most=True,
        ),
    ]
