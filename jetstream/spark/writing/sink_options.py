"""The options of the sink: which there are, their values and what they may not be; pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from envelope.errors import InvalidSubject
from envelope.limits import MIB
from envelope.spark_errors import InvalidOption
from envelope.subjects import validated_subject
from jetstream.client.publish.session_messages import SessionOptions
from jetstream.spark.options.access import ClusterAccess
from jetstream.spark.options.option_names import SINK, SOURCE, check_names
from jetstream.spark.options.option_values import count, flag, milliseconds, size_bytes

WINDOW_DEFAULT: Final = 256
"""Envelopes of each task: large ones are bounded by their bytes, of small ones many are stored together."""

WINDOW_BYTES_DEFAULT: Final = 8 * MIB
"""Of each task: enough for round trips to a node that syncs, little beside what NATS holds for a client."""

ACK_TIMEOUT_MS_DEFAULT: Final = 5_000
RETRY_TIMEOUT_MS_DEFAULT: Final = 120_000
"""Longer than an election, and than NATS needs to come back; Spark then tries the task again."""

_BATCH_ONLY: Final = ("sessionName",)
_STREAM_ONLY: Final = ("staging",)
_SPARKS_OWN: Final = frozenset(("checkpointlocation", "queryname"))
"""Of Spark's own, those that reach every sink."""
_ASYNCHRONOUS_PROGRESS: Final = "asyncprogresstracking"
"""Begins the options with which Spark writes down what a batch is only after it has run."""

_SESSION_BYTES_MAX: Final = 100
"""Of a session's name, which ends with the number of the task, and has 128 in all."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """What the sink is told.

    Attributes:
        access: how to reach the cluster.
        subject: of rows that have none.
        stream: whose acks are awaited; None: the only one that binds ``subject``.
        session_name: of a batch write; None: one that nobody else has.
        staging: where a micro-batch is kept until it is published; None: nowhere.
        window: envelopes that are not acked, of a task.
        window_bytes: what they have together.
        ack_timeout_s: for an ack, before what is not acked is sent again.
        retry_timeout_s: without any progress, before the task fails.
        compress: put envelopes into zstd frames.
    """

    access: ClusterAccess
    subject: str | None = None
    stream: str | None = None
    session_name: str | None = None
    staging: str | None = None
    window: int = WINDOW_DEFAULT
    window_bytes: int = WINDOW_BYTES_DEFAULT
    ack_timeout_s: float = ACK_TIMEOUT_MS_DEFAULT / 1000
    retry_timeout_s: float = RETRY_TIMEOUT_MS_DEFAULT / 1000
    compress: bool = False

    def session_options(self, stream: str, sessions: int) -> SessionOptions:
        """Return how a session with ``stream`` is published, one of so many that share the task's bytes."""
        return SessionOptions(
            stream=stream,
            window=self.window,
            window_bytes=max(1, self.window_bytes // sessions),
            timeout_s=self.ack_timeout_s,
            retry_s=self.retry_timeout_s,
            derived=True,
        )


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
    given = {name: value for name, value in rest.items() if name not in _SPARKS_OWN}
    _check_names(given, streaming=streaming)
    subject, stream = given.get("subject"), given.get("stream")
    for name in ("subject", "stream", "sessionName", "staging"):
        text = given.get(name.lower(), "-")
        if not text or text != text.strip():
            raise InvalidOption(f"{name}: {text!r} is empty, or has blanks at an end")
    if subject is not None:
        try:
            validated_subject(subject)
        except InvalidSubject as error:
            raise InvalidOption(f"subject: {error.description}") from None
    if "," in (stream or ""):
        raise InvalidOption(f"stream: {stream!r}: the sink awaits the acks of one stream")
    session_name = given.get("sessionname")
    if session_name is not None and len(session_name.encode()) > _SESSION_BYTES_MAX:
        raise InvalidOption(f"sessionName: at most {_SESSION_BYTES_MAX} bytes")
    return SinkOptions(
        access=access,
        subject=subject,
        stream=stream,
        session_name=session_name,
        staging=given.get("staging"),
        window=count("window", given.get("window", str(WINDOW_DEFAULT)), most=10_000),
        window_bytes=size_bytes("windowBytes", given.get("windowbytes", str(WINDOW_BYTES_DEFAULT))),
        ack_timeout_s=milliseconds("ackTimeoutMs", given.get("acktimeoutms", str(ACK_TIMEOUT_MS_DEFAULT))),
        retry_timeout_s=milliseconds(
            "retryTimeoutMs", given.get("retrytimeoutms", str(RETRY_TIMEOUT_MS_DEFAULT))
        ),
        compress=flag("compress", given.get("compress", "false")),
    )


def _check_names(given: Mapping[str, str], *, streaming: bool) -> None:
    for name in given:
        if name.startswith(_ASYNCHRONOUS_PROGRESS):
            raise InvalidOption(
                f"{name}: a batch that Spark has not written down before it runs may be another one when it "
                "is run again, and the sink would take it for the same"
            )
    others = _BATCH_ONLY if streaming else _STREAM_ONLY
    elsewhere = {
        "a batch write" if streaming else "a streaming write": others,
        "the source": [name for name in SOURCE if name not in SINK],
    }
    check_names(given, [name for name in SINK if name not in others], elsewhere)
