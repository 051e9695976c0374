"""What is told of a micro-batch, and of a query that failed."""

import json
from typing import Any

import pytest

from envelope.errors import Fenced, OffsetOutOfRange
from envelope.spark_errors import DataLoss
from jetstream.spark.pipelines.failures import QueryFailed, failure_of
from jetstream.spark.pipelines.progress import BatchProgress, progress_of
from jetstream.spark.reading.offsets import Offsets, StreamOffset, encode_offsets


def told(end: object, latest: object, late: int = 0) -> dict[str, Any]:
    return {
        "batchId": 7,
        "numInputRows": 1200,
        "batchDuration": 2000,
        "stateOperators": [{"numRowsDroppedByWatermark": late}],
        "sources": [{"endOffset": end, "latestOffset": latest}],
    }


def text(**offsets: int | tuple[str, int]) -> str:
    places: Offsets = {
        name: StreamOffset("life 1", place) if isinstance(place, int) else StreamOffset(*place)
        for name, place in offsets.items()
    }
    return json.dumps(encode_offsets(places))


def test_a_batch_is_told_with_its_numbers() -> None:
    found = progress_of(told(text(orders=90), text(orders=100), late=3))
    assert found == BatchProgress(batch=7, rows=1200, rows_per_second=600.0, seconds=2.0, lag=10, late=3)


def test_a_batch_that_took_no_time_has_no_rate() -> None:
    """Spark says NaN or infinity then, which are not JSON."""
    found = progress_of(told(None, None) | {"batchDuration": 0})
    assert (found.seconds, found.rows_per_second) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("end", "latest", "lag"),
    [
        (text(orders=100), text(orders=100), 0),
        (text(orders=101), text(orders=100), 0),
        (text(a=5, b=5), text(a=6, b=15), 11),
        (text(a=5), text(a=5, b=3), 3),
        (text(a=5), text(a=("life 2", 3)), 3),
        (text(a=5), None, None),
        (text(a=5), "", None),
        ("17", "20", None),
        (text(a=5), '{"v":2}', None),
        ("nonsense", text(a=5), None),
    ],
)
def test_the_lag_is_that_of_all_streams_and_unknown_of_others(
    end: str, latest: str | None, lag: int | None
) -> None:
    assert progress_of(told(end, latest)).lag == lag


TRACEBACK = """[STREAM_FAILED] Query [id = 4f] terminated with exception: An exception was raised.
  File "jetstream/spark/reading/planning.py", line 1, in next
envelope.errors.OffsetOutOfRange: offset 3 is below 5

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
envelope.spark_errors.DataLoss: offsets [3, 5) of orders are gone

	at org.apache.spark.api.python.BasePythonRunner
"""


def test_an_error_of_ours_is_found_in_what_spark_says() -> None:
    found = failure_of(TRACEBACK)
    assert isinstance(found, DataLoss)
    assert found.description == "offsets [3, 5) of orders are gone"
    assert isinstance(failure_of("envelope.errors.Fenced: the table is of query 1"), Fenced)
    assert isinstance(failure_of("x envelope.errors.OffsetOutOfRange: 3"), OffsetOutOfRange)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            "[UNRESOLVED_COLUMN] no `x`.; line 1 pos 7;\n'Project ['x]\n+- Relation",
            "[UNRESOLVED_COLUMN] no `x`.; line 1 pos 7;",
        ),
        ("\n first line \n second", "first line"),
        ("envelope.errors.NoSuchClass: oh", "envelope.errors.NoSuchClass: oh"),
        ("", "unknown"),
    ],
)
def test_what_is_not_ours_is_told_in_one_line(said: str, reason: str) -> None:
    found = failure_of(said)
    assert isinstance(found, QueryFailed)
    assert found.description == reason
