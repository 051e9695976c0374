"""A stream taken in by a micro-batch of all that is there, beside a batch read of the same.

Of the query counts what its triggers took, from asking for the end to noting that the batch is done: neither
the start of the query nor its end.
"""

import shutil
from typing import Final

from benchmarks.report import Bar, Report, Settings, new_report
from benchmarks.spark_jobs import Job, interleaved_jobs, missing_rows, to_nowhere
from benchmarks.spark_scene import MASTER, PARTITIONS, SparkScene, StoredRows, filled, spark_scene

SIZE_BYTES: Final = 100
ROWS: Final = 5_000_000
ROWS_QUICK: Final = 500_000

STREAMING: Final = "availableNow"
BATCH: Final = "batch read"
OF_BATCH_MIN: Final = 0.5


def run(settings: Settings) -> Report:
    """Read the same rows both ways."""
    count = ROWS_QUICK if settings.quick else ROWS
    with spark_scene(settings.directory / "spark") as scene:
        stored = filled(scene, "values", count, SIZE_BYTES)
        jobs = [
            Job(
                STREAMING,
                "100 B",
                stored,
                lambda: _stream(scene, stored),
                lambda: None,  # `_stream` looks itself
            ),
            Job(
                BATCH,
                "100 B",
                stored,
                lambda: to_nowhere(scene.read(stored.stream)),
                lambda: missing_rows(scene.read(stored.stream), stored),
            ),
        ]
        rows = interleaved_jobs(jobs, scene.node_pid, settings)
    report = new_report(
        "spark_stream",
        settings,
        rows,
        rate_unit="rows/s",
        master=MASTER,
        partitions=PARTITIONS,
        rows_read=count,
    )
    ratio = report.row(STREAMING, "100 B").rate / report.row(BATCH, "100 B").rate
    return report.model_copy(
        update={"bars": [Bar(requirement="availableNow / batch read", value=ratio, bar=OF_BATCH_MIN)]}
    )


def _stream(scene: SparkScene, stored: StoredRows) -> float:
    """Run one query over all of the stream; return the seconds of its triggers."""
    checkpoint = scene.directory / "checkpoint"
    shutil.rmtree(checkpoint, ignore_errors=True)
    options = {"startingOffsets": "earliest", "minPartitions": str(PARTITIONS)}
    writer = scene.read_stream(stored.stream, **options).writeStream.format("noop")
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    taken = [progress for progress in query.recentProgress if progress.numInputRows]
    read = sum(progress.numInputRows for progress in taken)
    assert read == stored.rows, f"{read} of {stored.rows} rows came"
    return sum(progress.durationMs["triggerExecution"] for progress in taken) / 1000
