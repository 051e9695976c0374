"""What Spark's garbage collections look at, in the processes that it runs tasks in."""

import subprocess
import sys
from typing import Final

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


def test_a_collection_looks_at_what_tasks_have_made_and_not_at_modules() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _TWO_TASKS],
        env={"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )

    looked_at, kept, kept_later, of_the_next = map(int, done.stdout.split())
    assert looked_at < 1000 < kept
    assert kept_later <= 0
    assert of_the_next >= 1000
