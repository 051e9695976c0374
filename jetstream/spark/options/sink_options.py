"""The options of the sink, and the checks of their values; pure."""

from dataclasses import dataclass
from typing import Final

from envelope.errors import InvalidSubject
from envelope.limits import MIB
from envelope.spark_errors import InvalidOption
from envelope.subjects import validated_subject
from jetstream.client.publish.session_messages import SessionOptions
from jetstream.spark.options.access import ClusterAccess
from jetstream.spark.options.option_names import option
from jetstream.spark.options.option_values import count, flag, milliseconds, size_bytes

_SESSION_BYTES_MAX: Final = 100
"""Of a session's name, which ends with the number of the task, and has 128 in all."""


def _plain(option: str, text: str) -> str:
    if not text or text != text.strip():
        raise InvalidOption(f"{option}: {text!r} is empty, or has blanks at an end")
    return text


def _subject(option: str, text: str) -> str:
    try:
        return validated_subject(_plain(option, text))
    except InvalidSubject as error:
        raise InvalidOption(f"{option}: {error.description}") from None


def _stream(option: str, text: str) -> str:
    if "," in _plain(option, text):
        raise InvalidOption(f"{option}: {text!r}: the sink awaits the acks of one stream")
    return text


def _session_name(option: str, text: str) -> str:
    if len(_plain(option, text).encode()) > _SESSION_BYTES_MAX:
        raise InvalidOption(f"{option}: at most {_SESSION_BYTES_MAX} bytes")
    return text


def _window(option: str, text: str) -> int:
    return count(option, text, most=10_000)


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of the sink, checked.

    Attributes:
        access: how to reach the cluster.
        subject: of rows that have none.
        stream: whose acks are awaited; None: the only one that binds ``subject``.
        session_name: of a batch write; None: a unique one.
        staging: where a micro-batch is kept until it is published; None: nowhere.
        window: envelopes that are not acked, of a task: of small ones many are stored together.
        window_bytes: payload of all of these: enough for round trips to a node that syncs, little beside the
            bytes that NATS holds for a client.
        ack_timeout_s: for an ack, before all that is not acked is sent again.
        retry_timeout_s: without any progress, before the task fails and Spark tries it again; longer than an
            election, and than NATS needs to come back.
        compress: put envelopes into zstd frames.
    """

    access: ClusterAccess
    subject: str | None = option({"subject": _subject}, None)
    stream: str | None = option({"stream": _stream}, None)
    session_name: str | None = option({"sessionName": _session_name}, None, "batch")
    staging: str | None = option({"staging": _plain}, None, "stream")
    window: int = option({"window": _window}, 256)
    window_bytes: int = option({"windowBytes": size_bytes}, 8 * MIB)
    ack_timeout_s: float = option({"ackTimeoutMs": milliseconds}, 5.0)
    retry_timeout_s: float = option({"retryTimeoutMs": milliseconds}, 120.0)
    compress: bool = option({"compress": flag}, default=False)

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
