"""What the readers of the Spark source make of what is lost, late or wrong, without Spark."""

import asyncio
import threading
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from envelope.errors import CorruptDataError, DeadlinePassed, JetstreamError, RequestError
from envelope.spark_errors import DataLoss
from envelope.types import Compression, LeaderEpoch, Offset
from jetstream.client.blocking.client import BlockingClient
from jetstream.log.format.batch import encode_kept, encode_selected, read_header
from jetstream.protocol.requests import Fetch
from jetstream.protocol.responses import FetchResponse
from jetstream.spark.options.source_options import parse_source_options
from jetstream.spark.reading.columns import output_schema
from jetstream.spark.reading.planning import IncarnationRange, ReadPiece
from jetstream.spark.reading.range_reader import LogPiece, read_range
from tests.support.forged_responses import Answer, a_batch, a_response, listening
from tests.support.nodes import run
from tests.support.sockets import records_batch
from tests.support.spark_reads import Query, against_a_node, numbers, values_of


def test_what_retention_has_taken_fails_the_query_or_is_left_out(tmp_path: Path) -> None:
    def scenario(js: BlockingClient, options: dict[str, str]) -> None:
        js.streams.create("orders", "orders.>")
        numbers(js, range(100))
        options = {**options, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "40"}
        with closing(Query(options)) as query:
            query.batch()
            js.streams.truncate("orders", 60)
            with pytest.raises(DataLoss, match="40 to 59 are not there any more") as lost:
                query.batch()
            assert (lost.value.detail["offset"], lost.value.detail["log_start_offset"]) == (40, 60)
            with pytest.raises(DataLoss, match="0 to 59 are not there any more"):
                query.rows(0)
            query.restart(failOnDataLoss="false")
            assert query.rows(0) == []
            assert values_of(query.batch() or []) == list(range(60, 100))

    against_a_node(tmp_path, scenario)


def test_a_stream_that_was_created_again_fails_the_query_or_begins_anew(tmp_path: Path) -> None:
    def scenario(js: BlockingClient, options: dict[str, str]) -> None:
        js.streams.create("orders", "orders.>")
        numbers(js, range(100))
        with closing(Query({**options, "startingOffsets": "earliest"})) as query:
            query.batch()
            js.streams.delete("orders")
            with pytest.raises(DataLoss, match="it is deleted"):
                query.batch()
            js.streams.create("orders", "orders.>")
            numbers(js, range(200, 210))
            with pytest.raises(DataLoss, match="deleted and created again"):
                query.batch()
            query.restart(failOnDataLoss="false")
            assert values_of(query.batch() or []) == list(range(200, 210))

    against_a_node(tmp_path, scenario)


def test_a_checkpoint_beyond_the_end_or_of_something_else_is_refused(tmp_path: Path) -> None:
    def scenario(js: BlockingClient, options: dict[str, str]) -> None:
        incarnation = js.streams.create("orders", "orders.>").incarnation
        numbers(js, range(10))
        with closing(Query(options)) as query:
            query.at = {"v": 1, "streams": {"orders": {"id": incarnation, "offset": 50}}}
            with pytest.raises(DataLoss, match="50 is beyond the high watermark 10"):
                query.batch()
            for wrong in ({"orders": 5}, {"v": 1, "streams": {"orders": {"id": incarnation, "offset": "5"}}}):
                query.at = wrong
                with pytest.raises(RequestError, match="checkpoint"):
                    query.batch()

    against_a_node(tmp_path, scenario)


def a_piece(js: BlockingClient, start: int, end: int, *, may_miss: bool = False) -> LogPiece:
    incarnation = js.streams.info("orders").incarnation
    return LogPiece(
        ReadPiece(IncarnationRange("orders", incarnation, start, end), may_miss), "orders", 0, dense=True
    )


def test_records_that_go_before_they_are_read_are_an_error_or_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def scenario(js: BlockingClient, options: dict[str, str]) -> None:
        js.streams.create("orders", "orders.>")
        numbers(js, range(100))
        checked = parse_source_options(options, streaming=False)
        schema = output_schema(checked.output_columns)
        fails, misses = a_piece(js, 10, 90), a_piece(js, 10, 90, may_miss=True)
        js.streams.truncate("orders", 30)
        with pytest.raises(DataLoss, match=r"\[10, 30\) is gone"):
            list(read_range(fails, checked, schema))
        [batch] = read_range(misses, checked, schema)
        assert values_of(batch.to_pylist()) == list(range(30, 90))
        js.streams.truncate("orders", 95)
        assert list(read_range(misses, checked, schema)) == []
        js.streams.delete("orders")
        js.streams.create("orders", "orders.>")
        numbers(js, range(100))
        with pytest.raises(DataLoss, match=r"\[10, 90\) is gone"):
            list(read_range(fails, checked, schema))
        assert list(read_range(misses, checked, schema)) == []

    against_a_node(tmp_path, scenario)
    assert "[10, 30) is gone, and was not read" in caplog.text


def test_records_that_are_not_there_yet_are_waited_for_and_not_for_ever(tmp_path: Path) -> None:
    def scenario(js: BlockingClient, options: dict[str, str]) -> None:
        js.streams.create("orders", "orders.>")
        numbers(js, range(10))
        impatient = {**options, "fetchTimeoutMs": "100", "fetchRetries": "1", "fetchRetryIntervalMs": "0"}
        checked = parse_source_options(impatient, streaming=False)
        reading = read_range(a_piece(js, 5, 20), checked, output_schema(checked.output_columns))
        with pytest.raises(DeadlinePassed, match=r"from offset 10 on in 0.2 s; what is committed ends at 10"):
            list(reading)

    against_a_node(tmp_path, scenario)


def test_a_task_that_is_given_up_in_its_middle_leaves_nothing_behind(tmp_path: Path) -> None:
    def scenario(js: BlockingClient, options: dict[str, str]) -> None:
        js.streams.create("orders", "orders.>")
        for start in range(0, 30_000, 10_000):
            values = [b"%d" % number for number in range(start, start + 10_000)]
            js.publish_batch("orders.x", pa.table({"value": values}))
        checked = parse_source_options(options, streaming=False)
        before = set(threading.enumerate())
        reading = read_range(a_piece(js, 0, 30_000), checked, output_schema(["value"]))
        assert next(reading).num_rows == 10_000
        assert len(set(threading.enumerate()) - before) == 1
        reading.close()
        assert set(threading.enumerate()) == before

    against_a_node(tmp_path, scenario)


# --- servers that are wrong --------------------------------------------------------------------------


def offsets_from(answer: Answer, *, dense: bool = True, may_miss: bool = False) -> list[int]:
    """Read [0, 100) of a server that answers as the test likes."""

    def read(address: tuple[str, int]) -> list[int]:
        options = parse_source_options(
            {
                "sockets": "{}:{}".format(*address),
                "stream": "s",
                "fetchTimeoutMs": "100",
                "fetchRetries": "0",
            },
            streaming=False,
        )
        piece = LogPiece(ReadPiece(IncarnationRange("s", "i", 0, 100), may_miss), "s", 0, dense)
        batches = read_range(piece, options, output_schema(["offset"]))
        return [offset for batch in batches for offset in batch.column(0).to_pylist() if offset is not None]

    async def test() -> list[int]:
        async with listening(answer) as address:
            return await asyncio.to_thread(read, address[:2])

    return run(test())


def an_answer(fetch: Fetch, offset: int) -> tuple[FetchResponse, bytes]:
    start = offset - offset % 10
    return a_response(fetch, start, start + 10), a_batch(start, 10)


def test_a_hole_between_batches_is_never_passed_over() -> None:
    def answer(fetch: Fetch, offset: int) -> tuple[FetchResponse, bytes]:
        if offset < 40:
            return an_answer(fetch, offset)
        return a_response(fetch, 40, 60), a_batch(40, 5) + a_batch(50, 10)

    assert offsets_from(an_answer) == list(range(100))
    with pytest.raises(JetstreamError, match="45"):
        offsets_from(answer)


def test_a_batch_with_fewer_records_than_it_says_is_a_hole_unless_the_stream_is_compacted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def answer(fetch: Fetch, offset: int) -> tuple[FetchResponse, bytes]:
        start = offset - offset % 10
        few = encode_selected(
            records_batch(start, [b"v"] * 9), Offset(start), Offset(start + 10), LeaderEpoch(1)
        )
        return a_response(fetch, start, start + 10), bytes(few)

    kept = [offset for offset in range(100) if offset % 10 < 9]
    assert offsets_from(answer, dense=False) == kept
    with pytest.raises(CorruptDataError, match="10 records are missing"):
        offsets_from(answer)
    assert offsets_from(answer, may_miss=True) == kept
    assert "10 records are missing" in caplog.text


def test_records_of_another_place_are_refused() -> None:
    def answer(fetch: Fetch, offset: int) -> tuple[FetchResponse, bytes]:
        start = offset - offset % 10
        wrong = encode_kept(
            records_batch(start - start % 20, [b"v"] * 10), read_header(a_batch(start, 10)), Compression.NONE
        )
        return a_response(fetch, start, start + 10), bytes(wrong)

    with pytest.raises(JetstreamError):
        offsets_from(answer)
