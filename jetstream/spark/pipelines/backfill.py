"""*backfill*: what an archive has and what has come since, as one table without gap or overlap.

The archive's border is the exact offset where one ends and the other begins, in each stream.
"""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from envelope.errors import RequestError, StreamRecreated, UnknownStream
from envelope.partitions import whole_in
from jetstream.log.disk.os_disk import OsDisk
from jetstream.spark.options.source_options import parse_source_options
from jetstream.spark.pipelines.archive import COLUMNS, STARTS, local_uri
from jetstream.spark.pipelines.archives.archive_files import ArchiveManifest
from jetstream.spark.pipelines.archives.archive_store import read_manifest
from jetstream.spark.pipelines.settings import FORMAT
from jetstream.spark.reading.cluster import Cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger(__name__)

_TOLD_BY_ARCHIVE: Final = (*STARTS, "stream", "streams", "streampattern")

SCHEMA: Final = (
    "key binary, value binary, stream string, partition int, offset bigint, timestamp timestamp, "
    "subject string, txid bigint, headers array<struct<key: string, value: binary>>"
)
"""Of an archive's files."""


def manifest_of(root: Path) -> ArchiveManifest:
    """Return the manifest of the archive in ``root``, also while another process writes to it.

    Raises:
        RequestError: there is no archive.
        CorruptDataError: its manifest cannot be read.
    """
    if not root.is_dir():
        raise RequestError(f"there is no archive: no directory {root}")
    disk = OsDisk(root)
    try:
        return read_manifest(disk)
    finally:
        disk.close()


def archived(spark: "SparkSession", root: Path, manifest: ArchiveManifest) -> "DataFrame":
    """Return the rows of an archive by its manifest: each once, also while files are merged.

    If files are merged between the reading of the manifest and theirs, Spark reports one as missing.
    """
    if not manifest.files:
        return spark.createDataFrame([], SCHEMA)
    paths = [local_uri(root / file.path) for file in manifest.files]
    return spark.read.schema(SCHEMA).parquet(*paths).select(*COLUMNS)


def backfill(spark: "SparkSession", root: Path, options: Mapping[str, str]) -> "DataFrame":
    """Return all rows of the archived streams: from the archive below its border, from the streams behind it.

    Args:
        spark: session.
        root: the archive's directory.
        options: of a batch read of the source; the archive names the streams, and where they begin.

    Raises:
        RequestError: there is no archive.
        StreamRecreated: the archive is of another life of a stream.
        DataLoss: retention has removed records behind the border (raised by Spark, when it reads).
    """
    from jetstream.spark.source import register  # noqa: PLC0415 - with it comes Spark

    register(spark)
    manifest = manifest_of(root)
    check_lives(manifest, options)
    live = spark.read.format(FORMAT).options(**live_options(manifest, options)).load()
    return archived(spark, root, manifest).unionByName(live.select(*COLUMNS))


def run(spark: "SparkSession", root: Path, options: Mapping[str, str], parquet: Path | None) -> int:
    """Write what `backfill` returns into a new directory, or only read it; return how many rows there are.

    Raises:
        RequestError, StreamRecreated, DataLoss: see `backfill`.
    """
    from pyspark.sql import Observation  # noqa: PLC0415 - an archive's manifest is read without Spark
    from pyspark.sql.functions import count, lit  # noqa: PLC0415 - likewise

    seen = Observation()
    rows = backfill(spark, root, options).observe(seen, count(lit(1)).alias("rows"))
    if parquet is None:
        rows.write.format("noop").mode("overwrite").save()
    else:
        rows.write.parquet(local_uri(parquet))
    found: int = seen.get["rows"]
    return found


def live_options(manifest: ArchiveManifest, texts: Mapping[str, str]) -> dict[str, str]:
    """Return the options that read the records behind an archive's border.

    Raises:
        RequestError: nothing is archived, so that there is no border.
    """
    if not manifest.streams:
        raise RequestError("the archive has no stream yet: nothing is archived")
    border = {name: place.offset for name, place in manifest.border.items()}
    options = {name: value for name, value in texts.items() if name.lower() not in _TOLD_BY_ARCHIVE}
    told = {"streams": ",".join(border), "startingOffsets": json.dumps(border), "includeHeaders": "true"}
    return options | told


def check_lives(manifest: ArchiveManifest, options: Mapping[str, str]) -> None:
    """Compare the archived streams with those of the cluster; warn of partitions that are not archived.

    Raises:
        StreamRecreated: one was deleted and created again since.
        UnknownStream: one is not there any more.
        InvalidOption: the options are wrong.
    """
    told = {
        **live_options(manifest, options),
        "streams": ",".join(sorted({whole_in(name) or name for name in manifest.streams})),
    }
    checked = parse_source_options(told, streaming=False)
    with checked.access.open() as client:
        bounds = Cluster(client, checked).bounds()
    if added := sorted(bounds.keys() - manifest.streams.keys()):
        _log.warning(
            "not archived, and so not read: %s; they are once the archive has them", ", ".join(added)
        )
    for name, kept in manifest.streams.items():
        if name not in bounds:
            raise UnknownStream(f"the archive has {name}, and there is no such stream any more", stream=name)
        if bounds[name].incarnation != kept.incarnation:
            raise StreamRecreated(
                f"the archive has {name} as it was before it was deleted and created again",
                stream=name,
                incarnation=kept.incarnation,
            )
