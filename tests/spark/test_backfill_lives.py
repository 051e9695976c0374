"""What a backfill finds out of the streams of its archive, on a real node, without Spark."""

from pathlib import Path

import pytest

from envelope.errors import StreamRecreated, UnknownStream
from jetstream.client.blocking.client import BlockingClient
from jetstream.spark.pipelines.archives.archive_files import ArchivedStream, ArchiveManifest
from jetstream.spark.pipelines.backfill import check_lives
from tests.support.spark_reads import against_a_node


def archive_of(js: BlockingClient, *names: str) -> ArchiveManifest:
    lives = js.ranges(names)
    return ArchiveManifest(
        version=1,
        levels=("date",),
        streams={name: ArchivedStream(lives[name].incarnation, 0, 0, 0) for name in names},
    )


def test_partitions_that_came_since_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def scenario(js: BlockingClient, options: dict[str, str]) -> None:
        js.streams.create("orders", "orders.>", partitions=2, partition_by="key")
        archive = archive_of(js, "orders/0", "orders/1")
        check_lives(archive, options)
        assert "not archived" not in caplog.text
        js.streams.update("orders", partitions=3)
        check_lives(archive, options)
        assert "not archived, and so not read: orders/2;" in caplog.text

    against_a_node(tmp_path, scenario)


@pytest.mark.parametrize("stream", ["orders", "shop/orders"])
def test_streams_of_another_life_and_those_that_are_gone_are_refused(tmp_path: Path, stream: str) -> None:
    def scenario(js: BlockingClient, options: dict[str, str]) -> None:
        js.streams.create(stream, "orders.>")
        archive = archive_of(js, stream)
        check_lives(archive, options)
        js.streams.delete(stream)
        with pytest.raises(UnknownStream, match=f"the archive has {stream}"):
            check_lives(archive, options)
        js.streams.create(stream, "orders.>")
        with pytest.raises(StreamRecreated, match=f"the archive has {stream} as it was before"):
            check_lives(archive, options)

    against_a_node(tmp_path, scenario)
