"""Which options there are, where each belongs, and what one is told who writes another; pure.

Spark's mapping forgets the case of names, so they are compared in lower case and shown as documented.
"""

from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import Final, NoReturn

from envelope.spark_errors import InvalidOption

ACCESS: Final = (
    *("servers", "sockets", "token", "tls.ca", "shortCircuitReads", "apiPrefix"),
    *("nats.user", "nats.password", "nats.token", "nats.credentials", "nats.nkeySeed", "nats.tls.ca"),
)
"""How the cluster is reached: of source and sink."""

_READING: Final = (
    *("stream", "streams", "streamPattern"),
    *("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp"),
    *("startingOffsetsByTimestampStrategy", "minPartitions", "maxRecordsPerPartition", "failOnDataLoss"),
    *("includeHeaders", "subject", "key", "columns", "readPreference"),
    *("fetchTimeoutMs", "fetchRetries", "fetchRetryIntervalMs"),
)
BATCH_ONLY: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
STREAM_ONLY: Final = (
    *("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"),
)
BATCH_SOURCE: Final = (*ACCESS, *_READING, *BATCH_ONLY)
STREAM_SOURCE: Final = (*ACCESS, *_READING, *STREAM_ONLY)
SOURCE: Final = (*BATCH_SOURCE, *STREAM_ONLY)

SINK: Final = (
    *(*ACCESS, "stream", "subject", "sessionName", "staging"),
    *("window", "windowBytes", "ackTimeoutMs", "retryTimeoutMs", "compress"),
)

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
    given: Iterable[str], known: Collection[str], elsewhere: Mapping[str, Collection[str]]
) -> None:
    """Refuse what is none of the ``known`` options.

    Args:
        given: names, in any case.
        known: those that are meant here.
        elsewhere: by where they belong, those that a user may have wanted: ``{"a batch read": (...)}``.

    Raises:
        InvalidOption: it says what to write instead.
    """
    allowed = {name.lower() for name in known}
    for name in sorted(given):
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
