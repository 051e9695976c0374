"""A publish machine with a shell around it that does nothing but remember."""

from collections import deque
from collections.abc import Sequence
from datetime import timedelta

import pyarrow as pa

from envelope.errors import JetstreamError
from envelope.types import NO_OFFSET, AckPolicy, LeaderEpoch, Offset, StreamName, TimestampUs
from jetstream.ingest.machine import (
    Action,
    AppendRecords,
    StreamIngest,
)
from jetstream.ingest.publishers.dedupe import DedupeWindow, window_us
from jetstream.ingest.publishers.history import PublisherHistory
from jetstream.ingest.publishers.sessions import StoredPlace
from jetstream.log.format.plain_batch_encoder import arrow_records
from metadata.stream_config import StreamConfig
from tests.support.messages import Answer, PublishedMessage, appends, block_of, published

IDS_MAX = 1000
WINDOW = timedelta(seconds=10)
REIGN = LeaderEpoch(3)


def absorb(
    history: PublisherHistory, records: pa.RecordBatch, sessions_from: Offset = NO_OFFSET
) -> Sequence[StoredPlace]:
    """Let ``history`` take in a stored batch, whose offsets are without gaps."""
    base = Offset(records["offset"][0].as_py()) if records.num_rows else history.end
    end = Offset(base + records.num_rows)
    return history.replay(base, end, REIGN, records, sessions_from)


class IngestHarness:
    """Feeds one machine and keeps what it appended; "audit" is another stream on the same subject."""

    def __init__(
        self,
        ack: AckPolicy = AckPolicy.ALL,
        record_bytes_max: int = 1 << 20,
        log_end_offset: int = 0,
        history: PublisherHistory | None = None,
        stream: str = "orders",
        **settings: object,
    ) -> None:
        fields: dict[str, object] = {"name": stream, "subject": f"{stream}.>", "ack": ack}
        fields |= {"record_bytes_max": record_bytes_max, "dedupe_window": WINDOW}
        self.config = StreamConfig.model_validate(fields | settings)
        self.history = history or PublisherHistory(
            DedupeWindow(window_us(WINDOW), IDS_MAX), Offset(log_end_offset)
        )
        self.machine = StreamIngest(
            stream=StreamName(stream),
            config=self.config,
            leader_epoch=REIGN,
            log_end_offset=Offset(log_end_offset),
            history=self.history,
            binds=lambda stream, subject: stream == "audit" and subject.startswith("orders."),
        )
        self.now = TimestampUs(1_000_000)
        self.stored: list[pa.RecordBatch] = []
        self.actions: Sequence[Action] = ()
        self._flying: deque[AppendRecords] = deque()

    def receive(self, *messages: PublishedMessage) -> list[Answer]:
        """Hand over a block; return the answers given at once. One more append is then in flight, or not."""
        self.actions = self.machine.received(block_of(messages), self.now)
        found = appends(self.actions)
        assert len(found) <= 1
        assert not found or self.actions[-1] is found[0], "answers do not wait for the disk"
        self._flying.extend(found)
        return published(self.actions)

    @property
    def in_flight(self) -> list[bytes | None]:
        """Values of the appends in flight."""
        return [
            value for append in self._flying for value in arrow_records(append.records)["value"].to_pylist()
        ]

    def overflow(self, *messages: PublishedMessage) -> list[Answer]:
        """Report messages that found the mailbox full."""
        self.actions = self.machine.overflowed(block_of(messages))
        return published(self.actions)

    def append(self) -> list[Answer]:
        """Let the oldest append succeed."""
        self.stored.append(arrow_records(self._flying.popleft().records))
        self.actions = self.machine.appended(self.log_end)
        return published(self.actions)

    def refuse(self, error: JetstreamError) -> list[Answer]:
        """Let the oldest append fail for certain."""
        self._flying.popleft()
        self.actions = self.machine.append_refused(error)
        return published(self.actions)

    def fail(self, error: JetstreamError) -> list[Answer]:
        """Let the log fail at the oldest append."""
        self._flying.popleft()
        self.actions = self.machine.append_unknown(error)
        return published(self.actions)

    def commit(self, high_watermark: int | None = None) -> list[Answer]:
        """Advance the high watermark, by default to the end of what is stored."""
        end = self.log_end if high_watermark is None else Offset(high_watermark)
        self.actions = self.machine.committed(end, self.now)
        return published(self.actions)

    def store(self, *messages: PublishedMessage) -> list[Answer]:
        """Receive, append and commit; return all answers."""
        answers = self.receive(*messages)
        if self._flying:
            answers += self.append() + self.commit()
        return answers

    @property
    def log_end(self) -> Offset:
        """End of what is stored."""
        if not self.stored:
            return Offset(0)
        return Offset(self.stored[-1]["offset"][-1].as_py() + 1)

    @property
    def values(self) -> list[bytes | None]:
        """Values of everything stored."""
        return [value for records in self.stored for value in records["value"].to_pylist()]

    def column(self, name: str) -> list[object]:
        """One column of everything stored."""
        return [value for records in self.stored for value in records[name].to_pylist()]


def outcomes(answers: list[Answer]) -> list[tuple[str, object]]:
    """Return each answer as (reply, offset), (reply, "dup N") or (reply, "error N")."""
    found: list[tuple[str, object]] = []
    for answer in answers:
        if answer.error_code is not None:
            assert answer.body["seq"] == 0
            found.append((answer.reply, f"error {answer.error_code}"))
            continue
        offset = answer.body["offset"]
        assert isinstance(offset, int)
        assert answer.body["seq"] == offset + 1
        assert answer.body["epoch"] == 3
        assert answer.body["stream"] == "orders"
        found.append((answer.reply, f"dup {offset}" if answer.body.get("duplicate") else offset))
    return found
