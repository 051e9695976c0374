"""Staged micro-batches on real files and a node: each has the rows of one run, wherever one breaks off."""

import pickle
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from envelope.errors import CorruptDataError, SessionExpired, StreamReadOnly
from envelope.spark_errors import InvalidOption
from jetstream.client.blocking.client import BlockingClient
from jetstream.spark.writing.sink import JetstreamStreamWriter, Staged, publish_rows
from jetstream.spark.writing.sink_options import parse_sink_options
from jetstream.spark.writing.staged_files import decoded_manifest, manifest_path
from jetstream.spark.writing.staging import MicroBatch, Staging, open_staging
from jetstream.tier.object_store import ObjectStore
from tests.spark.conftest import Endpoints
from tests.support.failing_store import Broken, FailingStore, When
from tests.support.spark_sinks import schema_of, task

SIZE = 300_000
"""Of a row: so large that each has an envelope of its own."""

Rows = list[list[int]]
"""Of each task."""

FIRST: Rows = [[1, 2, 3], [], [4, 5]]
OTHER: Rows = [[7], [6, 8]]
NEXT: Rows = [[9]]


def table_of(rows: list[int]) -> pa.Table:
    return pa.table({"value": pa.array([b"%08d" % row + bytes(SIZE) for row in rows], pa.binary())})


def published(js: BlockingClient, stream: str) -> list[int]:
    values: list[Any] = js.read(stream).to_table().column("value").to_pylist()
    return [int(value[:8]) for value in values]


class Query:
    """Runs micro-batches as Spark does, the driver and all tasks in this process."""

    def __init__(self, endpoints: Endpoints, stream: str) -> None:
        options = {"servers": endpoints.servers, "stream": stream, "subject": f"{stream}.new", "window": "1"}
        self._options = parse_sink_options(options, streaming=True)

    def run(self, store: ObjectStore, batch: int, tasks: Rows) -> None:
        """Stage and publish a micro-batch; each row that is read to be published counts as a call too."""
        staging = Staging(store)
        found = [
            staging.stage("q", batch, partition, iter(table_of(rows).to_batches(1)))
            for partition, rows in enumerate(tasks)
        ]

        def publish(micro_batch: MicroBatch, rows: Iterator[pa.RecordBatch]) -> None:
            begun_at = micro_batch.manifest.written_at if micro_batch.is_resumed else None
            publish_rows(self._options, counted(store, rows), "spark/q", batch, begun_at)

        staging.publish_once("q", batch, [each for each in found if each is not None], publish)


def counted(store: ObjectStore, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for each in rows:
        if isinstance(store, FailingStore):
            with store.step():
                pass
        yield each


EACH = pytest.mark.slow("tests/spark/test_staging_direct.py")


@pytest.mark.parametrize(
    ("when", "first", "step"),
    [
        ("before", 0, 4),
        ("after", 0, 4),
        ("torn", 0, 1),
        pytest.param("before", 0, 1, marks=EACH),
        pytest.param("after", 0, 1, marks=EACH),
    ],
)
def test_wherever_a_run_breaks_off_the_micro_batch_has_the_rows_of_one_run(
    endpoints: Endpoints, js: BlockingClient, tmp_path: Path, when: When, first: int, step: int
) -> None:
    """At call ``first``, counted from 0, and at every ``step``-th after it."""
    outcomes: list[tuple[int, list[int]]] = []
    while True:
        number = first + len(outcomes) * step
        stream = f"staged_{when}_{step}_{number}"
        js.streams.create(stream, f"{stream}.>")
        query, directory = Query(endpoints, stream), str(tmp_path / str(number))
        try:
            query.run(FailingStore.at(directory).break_at(number, when), 3, FIRST)
        except Broken:
            before = published(js, stream)
            query.run(ObjectStore.at(directory), 3, OTHER)
            outcomes.append((len(before), published(js, stream)))
        else:
            break
        query.run(ObjectStore.at(directory), 3, FIRST)
        query.run(ObjectStore.at(directory), 4, NEXT)
        assert published(js, stream) == [*outcomes[-1][1], 9]
        assert files_below(Path(directory)) == ["q/done-00000000000000000004"]
        js.streams.delete(stream)
    one, other = [1, 2, 3, 4, 5], [7, 6, 8]
    assert all(found in (one, other) for _, found in outcomes)
    # A run that has stored some counts, whether it has stored all or not.
    assert all(found == one for stored, found in outcomes if stored)
    if when != "torn":
        assert {0, 5} < {stored for stored, _ in outcomes}
    assert outcomes[0][1] == other


def files_below(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


class Driver:
    """Drives the writer itself."""

    def __init__(self, endpoints: Endpoints, stream: str, directory: Path, **options: str) -> None:
        given = {
            "servers": endpoints.servers,
            "subject": f"{stream}.new",
            "staging": str(directory),
            **options,
        }
        self._options = parse_sink_options(given, streaming=True)

    def writer(self) -> JetstreamStreamWriter:
        return JetstreamStreamWriter(self._options, schema_of(table_of([])))

    def stage(self, batch: int, tasks: Rows) -> list[Staged]:
        return [self._task(batch, partition, rows) for partition, rows in enumerate(tasks)]

    def _task(self, batch: int, partition: int, rows: list[int]) -> Staged:
        with task(partition, query="q", batch=batch):
            message = self.writer().write(iter(table_of(rows).to_batches(1)))
        unpickled: Staged = pickle.loads(pickle.dumps(message))
        return unpickled


@pytest.fixture
def stream(js: BlockingClient, request: pytest.FixtureRequest) -> str:
    name = f"s{abs(hash(request.node.nodeid))}"
    js.streams.create(name, f"{name}.>")
    return name


def test_nothing_is_published_before_the_micro_batch_is_committed(
    endpoints: Endpoints, js: BlockingClient, stream: str, tmp_path: Path
) -> None:
    driver = Driver(endpoints, stream, tmp_path)
    messages = driver.stage(0, FIRST)
    assert published(js, stream) == []
    driver.writer().commit(messages, 0)
    assert published(js, stream) == [1, 2, 3, 4, 5]
    driver.writer().commit(driver.stage(0, OTHER), 0)
    driver.writer().commit(driver.stage(1, [[], []]), 1)
    driver.writer().commit([], 2)
    assert published(js, stream) == [1, 2, 3, 4, 5]
    assert files_below(tmp_path) == ["q/done-00000000000000000001"]


def test_what_failed_tasks_leave_is_removed(
    endpoints: Endpoints, js: BlockingClient, stream: str, tmp_path: Path
) -> None:
    driver = Driver(endpoints, stream, tmp_path)
    messages = driver.stage(0, FIRST)
    driver.writer().abort([*messages, None], 0)
    assert files_below(tmp_path) == []
    driver.writer().commit(driver.stage(0, OTHER), 0)
    assert published(js, stream) == [7, 6, 8]


def test_what_could_not_be_published_is_kept_and_published_by_the_next_run(
    endpoints: Endpoints, js: BlockingClient, stream: str, tmp_path: Path
) -> None:
    driver = Driver(endpoints, stream, tmp_path)
    messages = driver.stage(0, FIRST)
    js.streams.update(stream, read_only=True)
    with pytest.raises(StreamReadOnly):
        driver.writer().commit(messages, 0)
    driver.writer().abort(list(messages), 0)
    js.streams.update(stream, read_only=False)
    driver.writer().commit(driver.stage(0, OTHER), 0)
    assert published(js, stream) == [1, 2, 3, 4, 5]


def test_a_micro_batch_is_not_completed_in_a_session_that_is_forgotten(
    endpoints: Endpoints, js: BlockingClient, stream: str, tmp_path: Path
) -> None:
    """Its manifest is older than the stream remembers sessions: some of it may be stored."""
    driver = Driver(endpoints, stream, tmp_path)
    messages = driver.stage(0, FIRST)
    js.streams.update(stream, read_only=True)
    with pytest.raises(StreamReadOnly):
        driver.writer().commit(messages, 0)
    js.streams.update(stream, read_only=False)
    path = next(tmp_path.rglob("manifest-*"))
    manifest = decoded_manifest(path.read_bytes())
    aged = replace(manifest, written_at=manifest.written_at - timedelta(days=8))
    path.unlink()
    (tmp_path / manifest_path(aged)).write_bytes(aged.encoded())
    with pytest.raises(SessionExpired, match="knows sessions for 7 days"):
        driver.writer().commit(driver.stage(0, OTHER), 0)
    assert published(js, stream) == []


def test_a_staged_file_that_lacks_rows_is_not_published_as_whole(tmp_path: Path) -> None:
    staging = open_staging(str(tmp_path))
    batches = table_of([1, 2]).to_batches(1)
    found = staging.stage("q", 0, 0, iter(batches))
    assert found is not None
    path = tmp_path / found.path
    path.write_bytes(path.read_bytes()[: -len(memoryview(batches[1].serialize()))])
    with pytest.raises(CorruptDataError, match="has 1 rows, and 2 were staged"):
        staging.publish_once("q", 0, [found], lambda _, rows: [*rows].clear())


@pytest.mark.parametrize("uri", ["nowhere://a/b", "s3://", "relative/path"])
def test_a_staging_directory_that_cannot_be_is_an_invalid_option(endpoints: Endpoints, uri: str) -> None:
    options = {"servers": endpoints.servers, "subject": "s", "staging": uri}
    with pytest.raises(InvalidOption, match="staging: "):
        JetstreamStreamWriter(parse_sink_options(options, streaming=True), schema_of(table_of([])))
