"""*replay*: an archive's records are published again, in the order of their offsets in each stream, once.

A record is published as it was: key, value, headers, txid, and subject, unless the settings name
another one. Offsets and timestamps are those of the stream that stores it now.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from envelope.errors import InvalidConfig
from envelope.headers import MESSAGE_HEADERS
from jetstream.log.disk.os_disk import OsDisk
from jetstream.log.disk.port import Disk, make_directories, parent_of
from jetstream.log.disk.state_file import decode_state, read_whole, write_state
from jetstream.spark.pipelines.archives.replay_plan import Replay, ReplayRange, decode_replay, encode_replay
from jetstream.spark.pipelines.backfill import archived, manifest_of
from jetstream.spark.pipelines.progress import BatchProgress
from jetstream.spark.pipelines.settings import FORMAT

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

OWN_SUBJECT: Final = "{subject}"
"""Stands for the subject that a record was published on."""
_COLUMNS: Final = ("value", "key", "txid")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySettings:
    """The archive that is published again, and the subjects.

    Attributes:
        root: the archive's directory.
        session: a name for this replay: run again under it, after whatever end, it goes on.
        subject: to publish on; may have ``{subject}`` in it, once.
        stream: whose acks are awaited, if several streams, or none of them alone, store all subjects.
        sink: other options of the sink: how to reach the cluster.
    """

    root: Path
    session: str
    subject: str = OWN_SUBJECT
    stream: str | None = None
    sink: Mapping[str, str]

    def replay(self) -> Replay:
        """Return the replay, as it begins.

        Raises:
            InvalidConfig: a subject that cannot be one.
        """
        if not self.session or self.subject.count(OWN_SUBJECT) > 1 or not self.subject:
            raise InvalidConfig(
                f"a replay has a session, and one subject, with {OWN_SUBJECT} at most once in it"
            )
        return Replay(self.session, self.subject, self.stream)


def run(spark: "SparkSession", settings: ReplaySettings, listener: Callable[[BatchProgress], None]) -> None:
    """Publish the archive's records that this replay has not published; returns when all of them are stored.

    Raises:
        RequestError: there is no archive, or the settings are wrong.
        CorruptDataError: its state cannot be read.
        JetstreamError: not all is stored (raised by Spark).
    """
    from jetstream.spark.source import register  # noqa: PLC0415 - with it comes Spark

    register(spark)
    with _replay_disk(settings.root) as disk:
        manifest = manifest_of(settings.root)
        replay = settings.replay()
        replay = replay.resumed(_stored(disk, replay.path), manifest)
        _store(disk, replay)
        number = 0
        while (piece := replay.next_piece()) is not None:
            begun = time.monotonic()
            session = replay.session_of(piece, manifest.streams[piece.stream].incarnation)
            rows = _publish(archived(spark, settings.root, manifest), settings, session, piece)
            replay = replay.after(piece)
            _store(disk, replay)
            seconds = time.monotonic() - begun
            listener(BatchProgress(number, rows, rows / seconds, seconds, replay.left))
            number += 1


def _publish(rows: "DataFrame", settings: ReplaySettings, session: str, piece: ReplayRange) -> int:
    """Publish a piece in one task, in the order of its offsets; return how many rows it has."""
    from pyspark.sql import Observation  # noqa: PLC0415 - settings are made without Spark
    from pyspark.sql.functions import col, count, lit  # noqa: PLC0415 - likewise

    stream, slash, partition = piece.stream.rpartition("/")
    place = (stream, int(partition)) if slash else (piece.stream, 0)
    wanted = (col("stream") == place[0]) & (col("partition") == place[1])
    wanted &= (col("offset") >= piece.start) & (col("offset") < piece.end)
    ordered = rows.where(wanted).coalesce(1).sortWithinPartitions("offset")
    seen = Observation()
    published = ordered.select(*_COLUMNS, _own_headers(), *_subject_column(settings.subject))
    options = {**settings.sink, "sessionName": session}
    if settings.stream is not None:
        options["stream"] = settings.stream
    if OWN_SUBJECT not in settings.subject:
        options["subject"] = settings.subject
    writer = published.observe(seen, count(lit(1)).alias("rows")).write.format(FORMAT)
    writer.options(**options).mode("append").save()
    found: int = seen.get["rows"]
    return found


def _subject_column(template: str) -> "Iterator[Column]":
    """Yield the column of subjects, if they are not all the same."""
    from pyspark.sql.functions import col, concat, lit  # noqa: PLC0415 - likewise

    before, own, after = template.partition(OWN_SUBJECT)
    if own:
        yield concat(lit(before), col("subject"), lit(after)).alias("subject")


def _own_headers() -> "Column":
    """Return the application's headers; those with publish options were for the first time."""
    from pyspark.sql import functions as sql  # noqa: PLC0415 - settings are made without Spark

    headers = sql.filter("headers", lambda header: ~header["key"].isin(*MESSAGE_HEADERS))
    return sql.when(sql.size(headers) > 0, headers).alias("headers")


@contextmanager
def _replay_disk(root: Path) -> Iterator[OsDisk]:
    manifest_of(root)  # before a directory is made for an archive that is none
    disk = OsDisk(root)
    try:
        yield disk
    finally:
        disk.close()


def _stored(disk: Disk, path: str) -> Replay | None:
    return decode_replay(decode_state(read_whole(disk, path))) if disk.exists(path) else None


def _store(disk: Disk, replay: Replay) -> None:
    make_directories(disk, parent_of(replay.path))
    write_state(disk, replay.path, encode_replay(replay))
