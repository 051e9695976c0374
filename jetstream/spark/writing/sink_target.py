"""The stream that a sink writes to, and the sessions in which it does: one for each of its partitions."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Final, Self

import pyarrow as pa

from envelope.errors import RequestError, SessionExpired, UnavailableError, UnknownStream, Unsupported
from envelope.partition_errors import PartitionsMissing, StreamIsPartitioned
from envelope.partitions import partition_of
from envelope.types import AckPolicy, PartitionBy
from jetstream.client.blocking.client import BlockingClient
from jetstream.client.blocking.session import BlockingSession
from jetstream.spark.options.sink_options import SinkOptions
from jetstream.spark.writing.sink_columns import groups_of

BATCH_SHIFT: Final = 24
"""Bits for the number of an envelope within its micro-batch."""

_RETRY_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class SinkTarget:
    """Where rows go.

    Attributes:
        stream: its name.
        partitions: that share its messages; None: it is not partitioned.
        is_by_key: their keys say which partition takes them; else their subjects.
    """

    stream: str
    partitions: int | None = None
    is_by_key: bool = False

    def stream_of(self, subject: str, key: bytes | None) -> str:
        """Return the stream, or the partition, that stores what is published on ``subject`` with this key."""
        if self.partitions is None:
            return self.stream
        decides = key if self.is_by_key and key is not None else subject.encode()
        return f"{self.stream}/{partition_of(decides, self.partitions)}"


def find_target(client: BlockingClient, options: SinkOptions) -> SinkTarget:
    """Return where the rows go.

    Raises:
        RequestError: the options do not say it: no stream, or several, bind the subject.
        UnknownStream: there is no such stream.
        Unsupported: nothing can be stored there exactly once, as its partitions or acks are.
        UnavailableError: nobody answers.
    """
    name = options.stream if options.stream is not None else _only_stream(client, options.subject)
    try:
        _check_acks(name, client.streams.info(name).config.ack)
    except StreamIsPartitioned:
        return _partitioned(client, name)
    return SinkTarget(name)


def check_remembered(client: BlockingClient, target: SinkTarget, since: datetime) -> None:
    """Check that the stream still knows what sessions have published ``since`` then.

    Raises:
        SessionExpired: it may have forgotten one.
    """
    numbers = range(target.partitions or 0)
    names = [f"{target.stream}/{number}" for number in numbers] or [target.stream]
    window = min(client.streams.info(name).dedupe.effective_session_window for name in names)
    if since < datetime.now(UTC) - window:
        raise SessionExpired(
            f"a micro-batch that was begun at {since:%Y-%m-%d %H:%M:%S} UTC is to be completed, and stream "
            f"{target.stream} knows sessions for {window}: look there whether it has its rows"
        )


def _only_stream(client: BlockingClient, subject: str | None) -> str:
    if subject is None:
        raise RequestError("each row has a subject of its own: the option stream says who stores them")
    found = {each.partition_of or each.name for each in client.streams.lookup(subject)}
    if not found:
        raise UnknownStream(f"no stream is bound to the subject {subject!r}")
    if len(found) > 1:
        streams = ", ".join(sorted(found))
        raise RequestError(
            f"{streams} are bound to the subject {subject!r}: the option stream says whose acks count"
        )
    return found.pop()


def _partitioned(client: BlockingClient, name: str) -> SinkTarget:
    info = client.streams.partitions(name)
    _check_acks(name, info.config.ack)
    by = info.config.partition_by
    if by == PartitionBy.QUEUE:
        raise Unsupported(
            f"stream {name} is partitioned by {by}: what is sent again may go to another partition, and be "
            "stored a second time; the sink writes to partitions by key or by subject"
        )
    if info.effective_partitions == 0:
        raise PartitionsMissing(f"not all partitions of stream {name} are there yet")
    return SinkTarget(name, info.effective_partitions, is_by_key=by == PartitionBy.KEY)


def _check_acks(name: str, ack: str) -> None:
    if ack == AckPolicy.NONE:
        raise Unsupported(f"stream {name} acks nothing (ack: none): what it has stored cannot be known")


@contextmanager
def opened_target(options: SinkOptions) -> Iterator[tuple[BlockingClient, SinkTarget]]:
    """Connect, and find where the rows go, for a ``with`` block; what is away is waited for.

    Raises:
        JetstreamError: as `find_target`; or nobody has answered for ``retryTimeoutMs``.
    """
    deadline = time.monotonic() + options.retry_timeout_s
    while True:
        with ExitStack() as stack:
            try:
                client = stack.enter_context(options.access.open())
                target = find_target(client, options)
            except UnavailableError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_RETRY_S)
                continue
            yield client, target
            return


class SinkSessions:
    """The sessions of one task, or of one micro-batch: opened as they are needed, for a ``with`` block.

    The end of the block waits until all is stored. Envelopes are numbered ``batch << 24 | n`` in each
    session, n from 1 on: an attempt that publishes the same rows adds nothing, and neither does one of an
    earlier batch that comes late.
    """

    def __init__(
        self, client: BlockingClient, target: SinkTarget, options: SinkOptions, name: str, batch: int
    ) -> None:
        self._client = client
        self._target = target
        self._options = options
        self._name = name
        self._first = batch << BATCH_SHIFT | 1
        self._last_possible = (batch + 1 << BATCH_SHIFT) - 1
        self._sessions: dict[str, BlockingSession] = {}
        self._stack = ExitStack()

    def publish(self, piece: pa.RecordBatch, *, first_row: int) -> None:
        """Take rows in.

        Args:
            piece: of `pieces_of`.
            first_row: number of the first row in its task.

        Raises:
            JetstreamError: something was refused, or not acked; what is before it may be stored.
        """
        groups = groups_of(piece, self._options.subject, by_key=self._target.is_by_key, first_row=first_row)
        for subject, rows, key in groups:
            stream = self._target.stream_of(subject, key)
            session, first = self._sessions.get(stream), None
            if session is None:
                session, first = self._open(stream), self._first
                self._sessions[stream] = session
            session.publish_batch(
                subject,
                rows,
                first_sequence=first,
                key=key if self._target.is_by_key else None,
                compress=self._options.compress,
            )
            if session.last_sequence > self._last_possible:
                raise RequestError(
                    f"a task publishes at most {1 << BATCH_SHIFT} envelopes: use more partitions"
                )

    def _open(self, stream: str) -> BlockingSession:
        options = self._options.session_options(stream, self._target.partitions or 1)
        return self._stack.enter_context(self._client.session(self._name, **options))

    def __enter__(self) -> Self:
        self._stack.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)
