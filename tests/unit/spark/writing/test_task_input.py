"""A task that was ended before its last row is told from one that has had it."""

import os
from collections.abc import Iterator

import pyarrow as pa
import pytest

from envelope.errors import UnavailableError
from jetstream.spark.writing.task_input import all_rows

BATCHES = [pa.record_batch({"value": [number]}) for number in range(3)]
PROGRAM = "def main(infile):\n    return [*read()]"
"""As the module `pyspark.worker` has it: rows are read far below, but in the same thread."""


def read_in_a_task(mark: bytes) -> Iterator[pa.RecordBatch]:
    """Read three batches where Spark's worker would, of a pipe on which ``mark`` follows and then its end."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as end:
        end.write(mark)
    program = {"__name__": "pyspark.worker", "read": lambda: all_rows(iter(BATCHES))}
    exec(PROGRAM, program)
    with os.fdopen(reading, "rb") as infile:
        yield from program["main"](infile)  # type: ignore[operator] # exec has made it
        assert infile.read() == mark


def test_rows_behind_which_sparks_mark_comes_are_all() -> None:
    assert list(read_in_a_task(b"\xff\xff\xff\xfc")) == BATCHES


def test_rows_behind_which_nothing_comes_are_not_all() -> None:
    with pytest.raises(UnavailableError, match="before its last row"):
        list(read_in_a_task(b""))


def test_every_row_before_the_end_is_given_first() -> None:
    """What is full is published; only what is cut by the end must not be."""
    given: list[pa.RecordBatch] = []
    program = {"__name__": "pyspark.worker", "rows": all_rows(iter(BATCHES)), "given": given}
    exec("def main(infile):\n    for batch in rows:\n        given.append(batch)", program)
    reading, writing = os.pipe()
    os.close(writing)
    with os.fdopen(reading, "rb") as infile, pytest.raises(UnavailableError):
        program["main"](infile)  # type: ignore[operator] # exec has made it
    assert given == BATCHES


def test_outside_of_spark_the_end_is_the_end() -> None:
    assert list(all_rows(iter(BATCHES))) == BATCHES
