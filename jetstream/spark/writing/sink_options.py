"""Parsing of the options of a write."""

from collections.abc import Mapping
from typing import Final

from envelope.spark_errors import InvalidOption
from jetstream.spark.options.access import ClusterAccess
from jetstream.spark.options.option_names import Scope, check_names, names_of, parsed
from jetstream.spark.options.sink_options import SinkOptions
from jetstream.spark.options.source_options import SourceOptions

_SPARKS_OWN: Final = frozenset(("checkpointlocation", "queryname"))
"""Of Spark's own, those that reach every sink."""
_ASYNCHRONOUS_PROGRESS: Final = "asyncprogresstracking"
"""Begins the options with which Spark writes down what a batch is only after it has run."""


def parse_sink_options(options: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Return what the options say; their names in any case.

    Args:
        options: as Spark gives them.
        streaming: of a query that runs on, not of a batch write.

    Raises:
        InvalidOption: one that does not exist or is not for this kind of write, one without a good value, one
            that is missing.
    """
    access, rest = ClusterAccess.from_options(options, publishes=True)
    texts = {name: text for name, text in rest.items() if name not in _SPARKS_OWN}
    _check_names(texts, streaming=streaming)
    return SinkOptions(access=access, **parsed(SinkOptions, texts))


def _check_names(names: Mapping[str, str], *, streaming: bool) -> None:
    for name in names:
        if name.startswith(_ASYNCHRONOUS_PROGRESS):
            raise InvalidOption(
                f"{name}: a batch that Spark has not written down before it runs may be another one when it "
                "is run again, and the sink would take it for the same"
            )
    mine: Scope = "stream" if streaming else "batch"
    known = names_of(SinkOptions, "both", mine)
    others = [name for name in names_of(SinkOptions) if name not in known]
    place = "a batch write" if streaming else "a streaming write"
    elsewhere = {place: others, "the source": names_of(SourceOptions)}
    check_names(names, (*ClusterAccess.option_names(), *known), elsewhere)
