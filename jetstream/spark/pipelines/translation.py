"""Errors of Spark as errors of ours."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it has no types
from pyspark.errors import AnalysisException, IllegalArgumentException, PySparkException

from jetstream.spark.pipelines.failures import failure_of

SPARK_ERRORS: Final = (PySparkException, Py4JError)
"""All that Spark raises in this process."""

_REQUEST_ERRORS: Final = (AnalysisException, IllegalArgumentException)
"""What is asked cannot be: a wrong name, type or word."""


@contextmanager
def translated() -> Iterator[None]:
    """Raise what Spark raises as an error of ours, in one line.

    Code that processes a micro-batch needs it too: when a query is stopped in the middle of one, Spark
    searches its error by an expression that recurses at each character, and a traceback overflows the stack.
    """
    try:
        yield
    except SPARK_ERRORS as error:
        raise failure_of(str(error), is_request=isinstance(error, _REQUEST_ERRORS)) from None
