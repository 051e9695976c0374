"""How an option is declared, and the refusal of one that does not exist; pure.

An option is declared once, by its field of `SourceOptions`, `SinkOptions`, `ClusterAccess` or `NatsIdentity`.

Spark's mapping forgets the case of names, so they are compared in lower case and shown as documented.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import field, fields
from difflib import get_close_matches
from typing import Any, Final, Literal, NoReturn, TypeVar

from envelope.spark_errors import InvalidOption

Value = TypeVar("Value")
Default = TypeVar("Default")
Scope = Literal["both", "batch", "stream"]
"""Of reads or writes, those that an option is for."""


def option(
    parsers: Mapping[str, Callable[[str, str], Value]], default: Default, scope: Scope = "both"
) -> Value | Default:
    """Declare a dataclass field as the value of an option.

    Args:
        parsers: a parser for each name as documented, called with the name and the text; of several options
            that are set the first one counts.
        default: of the field, if none is set.
        scope: of these options.
    """
    declared: Value | Default = field(default=default, metadata={"parsers": parsers, "scope": scope})
    return declared


def names_of(options: type, *scopes: Scope) -> tuple[str, ...]:
    """Return the names of the options that a dataclass declares, in these scopes or in all."""
    declared = [each.metadata for each in fields(options) if each.metadata]
    return tuple(
        name for each in declared if not scopes or each["scope"] in scopes for name in each["parsers"]
    )


def parsed(options: type, texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of those fields of a dataclass whose options are in ``texts``, in lower case.

    Raises:
        InvalidOption: a text without a good value.
    """
    return {
        declared.name: parsers[name](name, texts[name.lower()])
        for declared in fields(options)
        for parsers in [declared.metadata.get("parsers", {})]
        for name in [name for name in parsers if name.lower() in texts][:1]
    }


CALLED_HERE: Final = {
    "kafka.bootstrap.servers": "servers, the URLs of NATS, or sockets, host:port of nodes",
    "subscribe": "streams",
    "subscribePattern": "streamPattern",
    "assign": "streams, with partitions by their names: orders/0,orders/2",
    "topic": "stream in the source, and subject in the sink",
    "topics": "streams",
    "kafkaConsumer.pollTimeoutMs": "fetchTimeoutMs",
    "fetchOffset.numRetries": "fetchRetries",
    "fetchOffset.retryIntervalMs": "fetchRetryIntervalMs",
    "kafka.auto.offset.reset": "startingOffsets",
    "kafka.client.rack": "readPreference",
    "kafka.security.protocol": "tls.ca and nats.tls.ca",
    "kafka.ssl.truststore.location": "tls.ca and nats.tls.ca, in PEM",
    "kafka.sasl.mechanism": "token for the nodes, and nats.user or nats.credentials for NATS",
    "kafka.sasl.jaas.config": "token for the nodes, and nats.user or nats.credentials for NATS",
    "maxFilesPerTrigger": "maxOffsetsPerTrigger",
    "path": "stream in the source, and subject in the sink: nothing here has a path",
}
"""Names of Kafka's source and sink, and some of Spark's own ones, with what is meant by them here."""

_NEEDLESS: Final = {
    "groupIdPrefix": "the checkpoint has the offsets, and there is no group",
    "kafka.group.id": "the checkpoint has the offsets, and there is no group",
}


def lowered(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options by their names in lower case.

    Raises:
        InvalidOption: two of them are one then, with different values.
    """
    found: dict[str, str] = {}
    for name, value in options.items():
        if found.setdefault(name.lower(), value) != value:
            raise InvalidOption(f"{name} is given twice, with different values")
    return found


def check_names(
    names: Iterable[str], known: Collection[str], elsewhere: Mapping[str, Collection[str]]
) -> None:
    """Refuse names of options that do not exist here.

    Args:
        names: in any case.
        known: the options that exist here.
        elsewhere: options of other places, by place, for the message: ``{"a batch read": (...)}``.

    Raises:
        InvalidOption: with the name to write instead.
    """
    allowed = {name.lower() for name in known}
    for name in sorted(names):
        if name.lower() not in allowed:
            _refuse(name, known, elsewhere)


def _refuse(name: str, known: Collection[str], elsewhere: Mapping[str, Collection[str]]) -> NoReturn:
    lower = name.lower()
    for place, names in elsewhere.items():
        found = {each.lower(): each for each in names}.get(lower)
        if found is not None:
            raise InvalidOption(f"{found} is an option of {place}, not of this")
    for theirs, ours in CALLED_HERE.items():
        if theirs.lower() == lower:
            raise InvalidOption(f"{theirs}: here it is called {ours}")
    for theirs, reason in _NEEDLESS.items():
        if theirs.lower() == lower:
            raise InvalidOption(f"{theirs} is not needed: {reason}")
    if lower.startswith("kafka."):
        raise InvalidOption(f"{name} is passed on to Kafka, and there is none here")
    shown = {each.lower(): each for each in known}
    near = get_close_matches(lower, shown, n=1)
    hint = f"did you mean {shown[near[0]]}?" if near else f"there are {', '.join(sorted(known))}"
    raise InvalidOption(f"there is no option {name}: {hint}")
