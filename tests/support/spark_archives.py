"""Archives of a real node's streams by a real Spark, and the records that are in them."""

from collections import Counter
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from jetstream.client.blocking.client import BlockingClient
from jetstream.log.disk.os_disk import OsDisk
from jetstream.spark.pipelines import archive
from jetstream.spark.pipelines.archive import ArchiveSettings
from jetstream.spark.pipelines.archives.archive_store import held_archive
from jetstream.spark.pipelines.settings import stream_of
from tests.support.archives import FailingDisk

Place = tuple[str, int, int]


def settings_of(root: Path, *levels: str) -> ArchiveSettings:
    return ArchiveSettings(root=root, levels=levels or ("date",), once=True)


def run(spark: SparkSession, settings: ArchiveSettings, options: dict[str, str], failing: int = 0) -> None:
    """Archive what is there, on a disk whose call of that number fails."""
    disk = OsDisk(settings.root)
    try:
        with held_archive(FailingDisk(disk, failing)) as store:
            found = archive.source_options(options, store.manifest, settings.checkpoint)
            archive.start(stream_of(spark, found), store, settings).awaitTermination()
    finally:
        disk.close()


def publish(js: BlockingClient, stream: str, numbers: range) -> None:
    js.publish_all([(f"{stream}.{number % 3}.x", b"%d" % number) for number in numbers])


def places(rows: DataFrame) -> Counter[Place]:
    """How often each record is there; exactly once is right."""
    table = rows.select("stream", "partition", "offset").toArrow()
    return Counter(tuple(row.values()) for row in table.to_pylist())


def all_places(js: BlockingClient, stream: str, logs: dict[int, str]) -> Counter[Place]:
    """Every record of a stream, of whose partitions these are the names."""
    return Counter(
        (stream, partition, offset)
        for partition, name in logs.items()
        for offset in range(js.streams.info(name).high_watermark)
    )
