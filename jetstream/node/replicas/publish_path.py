"""The publish path of a stream that this node leads: mailbox → machine → disk → acks.

It decides nothing: `StreamIngest` sequences, refuses and acks, `AppendLoop` appends.
"""

from collections import deque
from collections.abc import Iterable
from functools import partial
from time import perf_counter
from typing import assert_never

from envelope.errors import JetstreamError, StreamReadOnly
from envelope.limits import BATCH_BYTES_MAX, GROUP_MESSAGES_MAX, MAILBOX_BYTES_MAX, MAILBOX_MESSAGES_MAX
from envelope.types import Offset, TimestampUs
from jetstream.ingest.machine import Action, AppendRecords, Count, Publish, StreamIngest
from jetstream.ingest.mailbox import Mailbox
from jetstream.ingest.messages import MessageBlock
from jetstream.node.disk.appends import GroupAppend
from jetstream.node.nats.gaps import Gap
from jetstream.node.replicas.append_loop import AppendLoop
from jetstream.node.replicas.context import NodeServices, ReplicaContext
from jetstream.node.replicas.leadership import LeaderDriver
from metadata.api.responses import GapKind


class PublishPath:
    """The stream's `Publishers` and `GroupSource` for one reign."""

    def __init__(self, context: ReplicaContext, driver: LeaderDriver, services: NodeServices) -> None:
        self._context = context
        self._driver = driver
        self._clock = services.clock
        self._send_acks = services.send_acks
        self._ingest = StreamIngest(
            stream=context.name,
            config=context.config,
            leader_epoch=driver.leader_epoch,
            log_end_offset=context.log.log_end_offset,
            history=context.opened.history,
            binds=services.binds,
        )
        self._mailbox = Mailbox(MAILBOX_MESSAGES_MAX, MAILBOX_BYTES_MAX)
        self._latency = services.publish_latency
        self._begun: deque[tuple[float, float]] = deque()
        """When the first message came of each append in flight, and when the append began."""
        self._uncommitted: deque[tuple[Offset, tuple[float, ...]]] = deque()
        """Where appends end that are stored, and when their first stages did."""
        self.appends = AppendLoop(self, context, driver, services)
        self._lacking: JetstreamError | None = None
        self._read_only: StreamReadOnly | None = None
        self.set_read_only(is_set=context.config.read_only)

    @property
    def waiting(self) -> int:
        """Messages in the mailbox."""
        return self._mailbox.waiting

    @property
    def pending_acks(self) -> int:
        """Publishers that wait for an answer."""
        return self._ingest.pending_acks

    def deliver(self, messages: MessageBlock) -> None:
        """Handle messages that NATS delivered; called from the ingest connection's read loop, never waits."""
        if self.appends.has_ended:
            return
        messages.received_at = perf_counter()
        refused = self._mailbox.offer(messages)
        self.appends.begin_if_wanted()
        if refused is not None:
            now = self._clock.wall()
            silent = sum(1 for reply in refused.replies if not reply)
            if silent:
                self._context.gaps.add(Gap(GapKind.OVERLOAD, now, now, silent))
            self._perform(self._ingest.overflowed(refused))

    def reconfigure(self) -> None:
        """Apply a changed configuration from the next group on.

        Not `read_only`: `set_read_only` may have applied a newer change than this one.
        """
        self._ingest.reconfigure(self._context.config)

    def set_read_only(self, *, is_set: bool) -> None:
        """Refuse messages from now on, or take them again; what is being appended is stored and acked."""
        self._read_only = StreamReadOnly(f"stream {self._context.name} is read-only") if is_set else None
        self._suspend_or_resume()

    # --- its reign's Publishers --------------------------------------------------------------------

    def committed(self, high_watermark: Offset) -> None:
        """See `Publishers.committed`."""
        committed_at = perf_counter()
        self._perform(self._ingest.committed(high_watermark, self._clock.wall()))
        while self._uncommitted and self._uncommitted[0][0] <= high_watermark:
            _, times = self._uncommitted.popleft()
            self._latency.observe((*times, committed_at, perf_counter()))
        if self._mailbox.waiting:
            self.appends.begin_if_wanted()

    def suspend(self, reason: JetstreamError | None) -> None:
        """See `Publishers.suspend`."""
        self._lacking = reason
        self._suspend_or_resume()

    # --- groups (GroupSource) ----------------------------------------------------------------------

    def wants_group(self, others_in_flight: int) -> bool:
        """Return whether the messages in the mailbox are due."""
        waiting = self._mailbox.waiting
        return waiting > 0 and self._ingest.wants_group(waiting, others_in_flight, self._mailbox.size_bytes)

    def begin_group(self, now: TimestampUs) -> AppendRecords | None:
        """Drain the mailbox into one append; None if what waited needs none."""
        messages = self._mailbox.drain(GROUP_MESSAGES_MAX, BATCH_BYTES_MAX)
        times = (messages.received_at, perf_counter())
        append = self._perform(self._ingest.received(messages, now))
        if append is not None:
            self._begun.append(times)
        return append

    def appended(self, append: GroupAppend) -> None:
        """See `GroupSource.appended`."""
        times = (*self._begun.popleft(), append.written_at, perf_counter())
        self._uncommitted.append((append.end, times))
        if actions := self._ingest.appended(append.end):
            self._perform(actions)

    def append_refused(self, error: JetstreamError) -> None:
        """See `GroupSource.append_refused`."""
        self._begun.popleft()
        self._perform(self._ingest.append_refused(error))

    def append_unknown(self, error: JetstreamError) -> None:
        """See `GroupSource.append_unknown`."""
        self._begun.popleft()
        self._perform(self._ingest.append_unknown(error))

    def hurry(self) -> None:
        """Let no message gather from now on."""
        self._ingest.hurry()

    def _suspend_or_resume(self) -> None:
        # The reason that does not pass by itself comes first.
        self._ingest.suspend(self._read_only or self._lacking)
        self.appends.begin_if_wanted()

    def _perform(self, actions: Iterable[Action]) -> AppendRecords | None:
        """Perform the actions in order; return the append, which the caller performs."""
        append: AppendRecords | None = None
        for action in actions:
            match action:
                case Publish(data, count):
                    lost = partial(self._context.counts.update, acks_dropped=count)
                    if self._driver.holds_leadership:
                        self._send_acks(data, lost)
                    else:  # another node may lead this stream by now
                        lost()
                case Count(kind, number):
                    self._context.counts[kind] += number
                case AppendRecords():
                    assert append is None, "one block of messages makes one append"
                    append = action
                case _:
                    assert_never(action)
        return append
