"""Archives of a real node's streams, made, lost, found again and read by a real Spark."""

import shutil
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from envelope.errors import StreamRecreated
from jetstream.client.blocking.client import BlockingClient
from jetstream.log.disk.os_disk import OsDisk
from jetstream.log.disk.state_file import encode_state
from jetstream.spark.pipelines import replay
from jetstream.spark.pipelines.archives import replay_plan
from jetstream.spark.pipelines.archives.archive_files import MANIFEST_PATH
from jetstream.spark.pipelines.archives.archive_merges import final_merges
from jetstream.spark.pipelines.archives.archive_store import held_archive
from jetstream.spark.pipelines.archives.archive_writing import FileSettings, merge_small_files
from jetstream.spark.pipelines.archives.replay_plan import Replay, encode_replay
from jetstream.spark.pipelines.backfill import archived, backfill, manifest_of
from jetstream.spark.pipelines.progress import BatchProgress
from jetstream.spark.pipelines.replay import ReplaySettings
from jetstream.spark.source import register
from tests.spark.conftest import Endpoints
from tests.support.spark_archives import Place, all_places, places, publish, run, settings_of

pytestmark = pytest.mark.usefixtures("source")


pytestmark = pytest.mark.slow("tests/crash/test_archive.py", "tests/property/test_archive.py")


@pytest.fixture
def source(spark: SparkSession) -> None:
    """Our data source, known to the session."""
    register(spark)


def test_an_archive_has_every_record_of_all_partitions_in_its_directory(
    spark: SparkSession, endpoints: Endpoints, js: BlockingClient, tmp_path: Path
) -> None:
    js.streams.create("archived", "archived.>", partitions=2, partition_by="subject")
    publish(js, "archived", range(300))
    js.publish("archived.0.x", None, key="k", headers={"Name": "text"}, txid=7)
    options = {"servers": endpoints.servers, "stream": "archived", "maxOffsetsPerTrigger": "160"}
    settings = settings_of(tmp_path, "date", "hour", "subject:2")
    run(spark, settings, options)
    expected = all_places(js, "archived", {0: "archived/0", 1: "archived/1"})
    assert expected.total() == 301
    assert places(archived(spark, tmp_path, manifest_of(tmp_path))) == expected
    by_listing = ds.dataset(tmp_path, partitioning="hive").to_table()
    assert by_listing.num_rows == 301
    assert set(by_listing["subject_2"].to_pylist()) == {0, 1, 2}
    deleted = by_listing.filter(pc.is_valid(by_listing["txid"])).to_pylist()
    assert [(row["key"], row["value"], row["headers"][0], row["subject"]) for row in deleted] == [
        (b"k", None, {"key": "Name", "value": b"text"}, "archived.0.x")
    ]
    assert places(spark.read.parquet(str(tmp_path))) == expected


def test_an_archive_goes_on_where_it_was_and_its_small_files_are_merged(
    spark: SparkSession, endpoints: Endpoints, js: BlockingClient, tmp_path: Path
) -> None:
    js.streams.create("merged", "merged.>", partitions=2, partition_by="subject")
    options = {"servers": endpoints.servers, "stream": "merged", "maxOffsetsPerTrigger": "160"}
    settings = settings_of(tmp_path, "date", "hour", "subject:2")
    for numbers in (range(300), range(300, 350)):
        publish(js, "merged", numbers)
        run(spark, settings, options)
    expected = all_places(js, "merged", {0: "merged/0", 1: "merged/1"})
    assert expected.total() == 350
    assert places(spark.read.parquet(str(tmp_path))) == expected
    check_merged(spark, tmp_path, expected)


def check_merged(spark: SparkSession, root: Path, expected: Counter[Place]) -> None:
    """Merging makes one file of each directory's, which is read like those before."""
    rows = sorted_rows(root)
    assert rows.schema.field("timestamp").type == pa.timestamp("us", "UTC")
    disk = OsDisk(root)
    with held_archive(disk) as store:
        before = len(store.manifest.files)
        merge_small_files(store, final_merges, FileSettings())
        directories = {file.directory for file in store.manifest.files}
        assert len(directories) == len(store.manifest.files) < before
    disk.close()
    assert places(archived(spark, root, manifest_of(root))) == expected
    assert sorted_rows(root) == rows


def sorted_rows(root: Path) -> pa.Table:
    rows = ds.dataset(root, partitioning="hive").to_table()
    return rows.sort_by([("partition", "ascending"), ("offset", "ascending")])


def test_a_query_that_failed_or_lost_its_checkpoint_brings_no_record_twice(
    spark: SparkSession, endpoints: Endpoints, js: BlockingClient, tmp_path: Path
) -> None:
    js.streams.create("failing", "failing.>")
    publish(js, "failing", range(50))
    options = {"servers": endpoints.servers, "stream": "failing"}
    settings = settings_of(tmp_path)
    disk = OsDisk(tmp_path)
    with held_archive(disk) as store:
        store.begin(settings.levels)
    disk.close()
    with pytest.raises(StreamingQueryException, match="the call that fails"):
        run(spark, settings, options, failing=12)
    run(spark, settings, options)
    expected = all_places(js, "failing", {0: "failing"})
    assert places(archived(spark, tmp_path, manifest_of(tmp_path))) == expected

    (settings.checkpoint / "commits" / "0").unlink()
    (settings.checkpoint / "commits" / ".0.crc").unlink()
    publish(js, "failing", range(50, 60))
    run(spark, settings, options)
    shutil.rmtree(settings.checkpoint)
    publish(js, "failing", range(60, 70))
    run(spark, settings, options)
    expected = all_places(js, "failing", {0: "failing"})
    assert expected.total() == 70
    assert places(archived(spark, tmp_path, manifest_of(tmp_path))) == expected
    assert places(spark.read.parquet(str(tmp_path))) == expected


def test_a_backfill_has_each_record_of_archive_and_stream_once(
    spark: SparkSession, endpoints: Endpoints, js: BlockingClient, tmp_path: Path
) -> None:
    js.streams.create("joined", "joined.>")
    publish(js, "joined", range(40))
    options = {"servers": endpoints.servers, "stream": "joined"}
    run(spark, settings_of(tmp_path), options)
    js.streams.truncate("joined", 30)
    publish(js, "joined", range(40, 45))
    rows = backfill(spark, tmp_path, options)
    assert places(rows) == all_places(js, "joined", {0: "joined"})
    values = {row["offset"]: row["value"] for row in rows.select("offset", "value").toArrow().to_pylist()}
    assert values == {number: b"%d" % number for number in range(45)}

    js.streams.delete("joined")
    js.streams.create("joined", "joined.>")
    with pytest.raises(StreamRecreated, match="as it was before"):
        backfill(spark, tmp_path, options)
    with pytest.raises(StreamingQueryException, match="DataLoss"):
        run(spark, settings_of(tmp_path), options)
    assert (tmp_path / MANIFEST_PATH).is_file()


def test_a_replay_publishes_each_record_once_and_in_order_however_often_it_runs(
    spark: SparkSession,
    endpoints: Endpoints,
    js: BlockingClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replay_plan, "PIECE_OFFSETS", 60)
    js.streams.create("played", "played.>")
    js.streams.create("again", "again.>")
    publish(js, "played", range(90))
    js.publish("played.0.x", None, key="k", headers={"Name": "text"}, txid=7)
    options = {"servers": endpoints.servers, "stream": "played"}
    archiving = settings_of(tmp_path)
    run(spark, archiving, options)
    sink = {"servers": endpoints.servers}
    settings = ReplaySettings(
        root=tmp_path, session="s", subject="again.{subject}", stream="again", sink=sink
    )
    told: list[BatchProgress] = []
    replay.run(spark, settings, told.append)
    assert [(progress.rows, progress.lag) for progress in told] == [(60, 31), (31, 0)]
    check_replayed(js, 91)

    state = tmp_path / settings.replay().path
    forgotten = Replay("s", "again.{subject}", "again", {"played": 91}, {"played": 60})
    state.write_bytes(encode_state(encode_replay(forgotten)))
    publish(js, "played", range(91, 95))
    run(spark, archiving, options)
    replay.run(spark, settings, told.append)
    check_replayed(js, 91)
    replay.run(spark, settings, told.append)
    replay.run(spark, settings, told.append)
    assert [progress.rows for progress in told] == [60, 31, 31, 4]
    check_replayed(js, 95)


def check_replayed(js: BlockingClient, count: int) -> None:
    original, again = (list(js.read(stream)) for stream in ("played", "again"))
    assert len(again) == count
    for old, new in zip(original[:count], again, strict=True):
        assert (new.value, new.key, new.txid, new.subject) == (
            old.value,
            old.key,
            old.txid,
            f"again.{old.subject}",
        )
    assert again[90].headers[0] == ("Name", b"text")


def test_an_archive_of_some_subjects_goes_on_where_nothing_was_for_it(
    spark: SparkSession, endpoints: Endpoints, js: BlockingClient, tmp_path: Path
) -> None:
    js.streams.create("some", "some.>")
    publish(js, "some", range(30))
    options = {"servers": endpoints.servers, "stream": "some", "subject": "some.9.>"}
    run(spark, settings_of(tmp_path), options)
    assert manifest_of(tmp_path).border["some"].offset == 30
    js.publish("some.9.x", b"wanted")
    run(spark, settings_of(tmp_path), options)
    assert places(archived(spark, tmp_path, manifest_of(tmp_path))) == Counter({("some", 0, 30): 1})
