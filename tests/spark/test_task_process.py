"""What Spark's garbage collections look at, in the processes that it runs tasks in."""

import pickle
import subprocess
import sys
from typing import Final

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from jetstream.spark.writing.sink import JetstreamBatchWriter, JetstreamStreamWriter
from jetstream.spark.writing.sink_options import parse_sink_options
from tests.support.commands import REPOSITORY

_TWO_TASKS: Final = """
import gc
from jetstream.spark.task_process import settle_process

settle_process()
looked_at = len(gc.get_objects())
kept = gc.get_freeze_count()
mine = [[] for _ in range(1000)]
settle_process()
print(looked_at, kept, gc.get_freeze_count() - kept, len(gc.get_objects()) - looked_at)
"""

_ARRIVES: Final = """
import gc, pickle, sys

before = gc.get_freeze_count()
pickle.load(sys.stdin.buffer)
print(before, gc.get_freeze_count())
"""


def test_a_collection_looks_at_what_tasks_have_made_and_not_at_modules() -> None:
    looked_at, kept, kept_later, of_the_next = _numbers_of(_TWO_TASKS)
    assert looked_at < 1000 < kept
    assert kept_later <= 0
    assert of_the_next >= 1000


@pytest.mark.parametrize(
    "writer",
    [
        pytest.param(JetstreamBatchWriter, marks=pytest.mark.slow("tests/spark/test_task_process.py")),
        JetstreamStreamWriter,
    ],
)
def test_a_process_to_which_a_writer_is_sent_is_settled_by_that(
    writer: type[JetstreamBatchWriter | JetstreamStreamWriter],
) -> None:
    options = parse_sink_options({"servers": "nats://127.0.0.1:1", "subject": "s"}, streaming=False)
    sent = pickle.dumps(writer(options, StructType([StructField("value", BinaryType())])))

    before, after = _numbers_of(_ARRIVES, sent)

    assert before == 0
    assert after > 1000


def _numbers_of(program: str, given: bytes = b"") -> list[int]:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(REPOSITORY)},
        input=given,
        capture_output=True,
        check=True,
        timeout=60,
    )
    return [int(number) for number in done.stdout.split()]
