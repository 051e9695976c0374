"""Spark on streams: a source, a sink and pipelines. The extra ``spark`` brings what they need.

Nothing of Spark is imported before one of these names is used: planning and options are plain modules.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jetstream.spark.session import end_spark, spark_session
    from jetstream.spark.source import JetstreamDataSource, register

__all__ = ["JetstreamDataSource", "end_spark", "register", "spark_session"]

_HOMES = {
    "JetstreamDataSource": "source",
    "end_spark": "session",
    "register": "source",
    "spark_session": "session",
}


def __getattr__(name: str) -> object:
    """Import a public name from its home on first use (PEP 562).

    Raises:
        UnavailableError: Spark is not installed, with the command that installs it.
    """
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import_module("jetstream.spark.requirement").require_spark()
    value: object = getattr(import_module(f"jetstream.spark.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
