"""Whether a task was given all of its rows, or was ended before.

Spark ends a task whose query is stopped, or whose Java dies, by closing what its Python worker reads. Arrow
takes that for the end of the rows. A last envelope that is published then would be cut short, and
the task that is run again would cut it elsewhere under the same number, and be refused for ever. At a real
end a mark of Spark's own follows the rows.
"""

import inspect
from collections.abc import Iterator
from io import BufferedReader
from typing import Final

import pyarrow as pa

from envelope.errors import UnavailableError

_PLACE: Final = ("pyspark.worker", "main", "infile")
"""Module and function that run a task, and its variable that the rows come from: Spark hands it to nobody."""


def all_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task; outside of Spark's workers just ``batches``.

    Raises:
        UnavailableError: these were not all, instead of their end.
    """
    yield from batches
    source = _source()
    if source is not None and not source.peek(1):
        raise UnavailableError("Spark has ended this task before its last row")


def _source() -> BufferedReader | None:
    """Return what the task that calls reads its rows from; None outside of Spark's workers."""
    module, function, variable = _PLACE
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == function and frame.f_globals.get("__name__") == module:
            found: BufferedReader = frame.f_locals[variable]
            return found
        frame = frame.f_back
    return None
