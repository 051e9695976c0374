"""The decider of one stream's publish path: messages in, appends and answers out.

The shell calls `received` only when `wants_group` says so, performs the returned actions in order, and
reports each append, in that order, by exactly one of `appended`, `append_refused` and `append_unknown`. One
`AppendRecords` carries the messages of one `received`: `Mailbox.drain` is where its size is bounded.

Two appends may be in flight, so that the disk finds the next one ready when it has finished the first
(ADR 0002). If one is refused, the one behind it is as well: the shell appends a group only where the log
ends.

Messages also gather while replicas work: a group has its price on every node, whatever its size, and messages
that wait a little longer share it. There is no timer in it: whatever changes the answer asks again.
"""

from collections import deque
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from envelope.acks import AckWriter
from envelope.errors import JetstreamError, Overloaded, StreamOffline
from envelope.limits import MAILBOX_MESSAGES_MAX, MIB
from envelope.types import AckPolicy, LeaderEpoch, Offset, StreamName, TimestampUs
from envelope.values import value
from jetstream.ingest.internal_validators import validator_of
from jetstream.ingest.message_validator import Binds
from jetstream.ingest.messages import MessageBlock
from jetstream.ingest.pending_acks import PendingAcks
from jetstream.ingest.publishers.dedupe import DedupeWindow, window_us
from jetstream.ingest.publishers.history import PublisherHistory
from jetstream.ingest.publishers.sessions import StoredPlace
from jetstream.ingest.sequencer import Duplicate, MessageRefused, SequencedGroup, Sequencer
from jetstream.log.format.plain_batch_encoder import Records
from metadata.stream_config import StreamConfig

PENDING_ACKS_MAX: Final = 2 * MAILBOX_MESSAGES_MAX
"""Publishers waiting for the high watermark; beyond it new messages are refused until it moves."""

APPENDS_IN_FLIGHT_MAX: Final = 2
"""One on the disk, one that waits for it: a third would only wait longer."""

NEXT_GROUP_MESSAGES_MIN: Final = 64
"""A second append in flight has at least so many messages, unless it is full."""

NEXT_GROUP_SHARE: Final = 3 / 4
"""Behind a group that is not committed one is begun when it has so many messages for each one in that."""
UNCOMMITTED_GROUPS_MAX: Final = 3
"""While the publishers of so many groups wait for replicas, no further one is begun."""
FULL_GROUP_MESSAGES: Final = 2_048
FULL_GROUP_BYTES: Final = MIB
"""So many messages, or bytes, gather no further: their share of a group's price is small."""

# --- actions ------------------------------------------------------------------------------------------


@value(frozen=True, slots=True)
class AppendRecords:
    """Append these records, in one piece, and report the outcome."""

    records: Records
    base: Offset
    leader_epoch: LeaderEpoch
    places: Sequence[StoredPlace] = ()
    """Those of them that are of a session."""


@value(frozen=True, slots=True)
class Publish:
    """Send these NATS commands, ``count`` answers, in one piece."""

    data: bytes
    count: int


class CountKind(StrEnum):
    """Outcomes that are counted, answered or not."""

    REFUSED = "refused"
    """Messages not stored, their publishers told."""
    DROPPED_WITHOUT_REPLY = "dropped_without_reply"
    """Messages not stored, nobody told: there is no reply subject, or it is not ours to answer on."""
    DUPLICATES = "duplicates"
    """Messages recognised by their id as stored before."""
    UNKNOWN_OUTCOME = "unknown_outcome"
    """Publishers left without an answer because nobody knows it."""


@value(frozen=True, slots=True)
class Count:
    """Add ``number`` to a counter."""

    kind: CountKind
    number: int


Action = AppendRecords | Publish | Count

# --- the machine --------------------------------------------------------------------------------------


class StreamIngest:
    """Sequences, refuses and acks the messages of one stream during one leader epoch.

    Invariants:
        M1: at most `APPENDS_IN_FLIGHT_MAX` appends are in flight, and end in the order they began.
        M2: high_watermark <= end of the last append that succeeded <= log_end_offset.
        M3: an ack names an offset whose append succeeded; with ``ack: all`` one below the high watermark.
            Held by test_the_machine_does_what_the_model_does.
        M4: a refused message is in no append; a message whose outcome is unknown is never refused.
            Held by test_ingest_machine.py, test_whatever_fails_while_two_are_in_flight_every_answer_is_right.
        M5: behind an append that was refused or whose outcome is unknown none succeeds.
            Held by test_machine_failures.py,
            test_whatever_fails_while_two_are_in_flight_every_answer_is_right.
        G1: groups are begun in the order of their offsets, none of them empty.
    """

    def __init__(
        self,
        stream: StreamName,
        config: StreamConfig,
        leader_epoch: LeaderEpoch,
        log_end_offset: Offset,
        history: PublisherHistory,
        binds: Binds,
    ) -> None:
        """Continue the stream's log, which ends at ``log_end_offset``, under a new ``leader_epoch``."""
        assert history.high_watermark <= log_end_offset, f"M2: {history.high_watermark}, {log_end_offset}"
        self._stream = stream
        self._leader_epoch = leader_epoch
        self._intake = validator_of(stream, config, binds)
        self._history = history
        history.leader_epoch = leader_epoch
        self._sequencer = Sequencer(self._intake, log_end_offset, history)
        self._writer = AckWriter(stream, leader_epoch, config.partition)
        self._pending = PendingAcks(self._writer)
        self._high_watermark = history.high_watermark
        self._appended_end = log_end_offset
        self._in_flight: deque[SequencedGroup] = deque()
        self._begun: deque[tuple[Offset, Offset, int]] = deque()  # uncommitted: base, end, messages of each
        self._hurries = False
        self._doomed = 0  # appends in flight behind one that failed: nobody waits for their outcome
        self._offline: StreamOffline | None = None
        self._suspended: JetstreamError | None = None

    def __str__(self) -> str:
        state = "offline" if self._offline else "online"
        return (
            f"{self._stream} e{self._leader_epoch} {state} hw={self._high_watermark} "
            f"end={self.log_end_offset} pending={self._pending.count} ids={len(self.dedupe)}"
        )

    @property
    def log_end_offset(self) -> Offset:
        """Offset of the next record, an append in flight included."""
        return self._history.end

    @property
    def high_watermark(self) -> Offset:
        """First offset that is not committed, as far as this machine was told."""
        return self._high_watermark

    @property
    def dedupe(self) -> DedupeWindow:
        """The remembered message ids, to be read only."""
        return self._history.dedupe

    @property
    def pending_acks(self) -> int:
        """Publishers that wait for an answer."""
        return self._pending.count

    def wants_group(self, waiting: int, others_in_flight: int, waiting_bytes: int = 0) -> bool:
        """Return whether ``waiting`` messages, one at least, should be received now, or gather (ADR 0002).

        Every other call may change the answer. ``others_in_flight`` appends of other streams keep the disk
        busy, and no second one of this is needed.
        """
        assert waiting, "M1: a group has messages"
        in_flight = len(self._in_flight) + self._doomed
        if in_flight >= APPENDS_IN_FLIGHT_MAX:
            return False
        is_full = waiting >= FULL_GROUP_MESSAGES or waiting_bytes >= FULL_GROUP_BYTES
        if in_flight:
            if self._doomed or others_in_flight:
                return False
            least = max(NEXT_GROUP_MESSAGES_MIN, NEXT_GROUP_SHARE * self._begun[-1][2])
            if waiting < least and not is_full:
                return False
        if is_full or not self._begun or self._hurries:
            return True
        if self._offline or self._suspended or self._intake.policy is not AckPolicy.ALL:
            return True  # where the replicas do not decide, nothing gathers for them
        return len(self._begun) < UNCOMMITTED_GROUPS_MAX and waiting >= NEXT_GROUP_SHARE * self._begun[-1][2]

    def hurry(self) -> None:
        """Begin every group as soon as it can be from now on: few messages come any more."""
        self._hurries = True

    def reconfigure(self, config: StreamConfig) -> None:
        """Follow a changed configuration from the next group on."""
        self._intake.reconfigure(config)
        self.dedupe.resize(window_us(config.dedupe_window), config.dedupe_ids_max)
        self._history.sessions.resize(window_us(config.session_window))

    def suspend(self, reason: JetstreamError | None) -> None:
        """Refuse new messages for ``reason``, from the next group on; with None take them again."""
        self._suspended = reason

    def received(self, messages: MessageBlock, now: TimestampUs) -> Sequence[Action]:
        """Handle messages that left the mailbox, when `wants_group` said so."""
        assert len(self._in_flight) + self._doomed < APPENDS_IN_FLIGHT_MAX, f"M1: {self}"
        reason = self._offline or self._suspended
        if reason is not None:
            return self._turn_away(messages, reason)
        if self._pending.count > PENDING_ACKS_MAX or self._history.dedupe.is_full:
            return self._turn_away(messages, Overloaded(f"stream {self._stream} waits for its replicas"))
        group = self._sequencer.sequence(messages, now)
        actions: list[Action] = []
        if group.refused or group.duplicates:
            actions += self._answer(group.refused, group.duplicates)
        if group.records is not None:
            last = self._begun[-1][1] if self._begun else group.base
            assert last <= group.base < group.end, f"G1: [{group.base}, {group.end}) behind {last}"
            self._in_flight.append(group)
            self._begun.append((group.base, group.end, messages.count))
            self._pending.add(group.leaders, group.commits)
            actions.append(AppendRecords(group.records, group.base, self._leader_epoch, group.places))
        return actions

    def overflowed(self, messages: MessageBlock) -> Sequence[Action]:
        """Handle messages that found the mailbox full."""
        return self._turn_away(messages, Overloaded(f"stream {self._stream} is at its limit"))

    def _answer(self, refused: Sequence[MessageRefused], duplicates: Sequence[Duplicate]) -> list[Action]:
        """Answer what needs no append: refusals, and repeats of committed records; other repeats wait."""
        answers = [self._writer.refusal(message.reply, message.error) for message in refused if message.reply]
        told = len(answers)
        for repeat in duplicates:
            if not repeat.reply:
                continue
            if repeat.original < self._high_watermark:
                original = repeat.original if repeat.is_exact else None
                answers.append(self._writer.duplicate(repeat.reply, original))
            else:
                self._pending.add_duplicate(repeat.original, repeat.reply, is_exact=repeat.is_exact)
        return [
            *_publish(b"".join(answers), len(answers)),
            *_count(CountKind.REFUSED, told),
            *_count(CountKind.DROPPED_WITHOUT_REPLY, len(refused) - told),
            *_count(CountKind.DUPLICATES, len(duplicates)),
        ]

    def _turn_away(self, messages: MessageBlock, error: JetstreamError) -> list[Action]:
        """Refuse messages unseen, except repeats of remembered ones: these need no room (M4)."""
        refused: list[MessageRefused] = []
        duplicates: list[Duplicate] = []
        unanswered = 0
        places = self._intake.places_to_inspect(messages)
        for place in places:
            message = self._intake.inspect(messages, place)
            repeat = self._sequencer.repeat(message)
            if repeat is None:
                refused.append(MessageRefused(message.reply, message.refusal or error))
            elif self._is_answerable(repeat.original):
                duplicates.append(repeat)
            else:
                unanswered += 1
        inspected = set(places)
        plain = [reply for place, reply in enumerate(messages.replies) if place not in inspected]
        heard = [reply for reply in plain if reply] if self._intake.policy is not AckPolicy.NONE else []
        return [
            *_publish(self._writer.refusals(heard, error), len(heard)),
            *_count(CountKind.REFUSED, len(heard)),
            *_count(CountKind.DROPPED_WITHOUT_REPLY, len(plain) - len(heard)),
            *_count(CountKind.UNKNOWN_OUTCOME, unanswered),
            *self._answer(refused, duplicates),
        ]

    def _is_answerable(self, original: Offset) -> bool:
        """Return whether a repeat of the record at ``original`` can be answered, now or later."""
        if original < self._high_watermark:
            return True
        return self._offline is None and self._pending.count <= PENDING_ACKS_MAX

    def appended(self, end: Offset) -> Sequence[Action]:
        """Record that the leader has the records of the oldest append in flight, which end at ``end``.

        They are synced, if the stream syncs always.
        """
        assert not self._doomed, f"M5: {self}"
        assert self._in_flight, "M1: an append was in flight"
        group = self._in_flight.popleft()
        assert self._appended_end < end == group.end <= self._history.end, f"M2: {end}, {group.end}: {self}"
        self._appended_end = end
        return [Publish(*self._pending.appended(group.leaders))] if group.leaders else []

    def append_refused(self, error: JetstreamError) -> Sequence[Action]:
        """Record that none of the records of the oldest append in flight is stored, for certain.

        Everything in flight is refused: what comes after the refused group has no place any more.
        """
        if self._doomed:
            self._doomed -= 1
            return []
        groups, replies = self._give_up_appends()
        asked = sum(len(acks.replies) for group in groups for acks in (*group.leaders, *group.commits))
        unheard = sum(group.messages for group in groups) - asked
        for group in reversed(groups):
            self._sequencer.roll_back(group)
            self._begun.pop()
        assert self.log_end_offset == self._appended_end, f"M2: rolled back to {groups[0].base}: {self}"
        assert len(replies) >= asked, f"M4: {len(replies)} are refused, {asked} have asked"
        return [
            *_publish(self._writer.refusals(replies, error), len(replies)),
            *_count(CountKind.REFUSED, len(replies)),
            *_count(CountKind.DROPPED_WITHOUT_REPLY, unheard),
        ]

    def append_unknown(self, error: JetstreamError) -> Sequence[Action]:
        """Record that the log failed: the records of the oldest append may be stored or not, no others will.

        Nothing is said about what is in flight; its ids stay remembered, so nothing is said about repeats.
        """
        if self._doomed:
            self._doomed -= 1
            return []
        _, replies = self._give_up_appends()
        self._offline = StreamOffline(f"stream {self._stream} is offline: {error.description}")
        return _count(CountKind.UNKNOWN_OUTCOME, len(replies))

    def _give_up_appends(self) -> tuple[list[SequencedGroup], list[bytes]]:
        """Return the groups in flight, the oldest of which has just failed, and who waits for them."""
        groups = list(self._in_flight)
        assert groups, "M1: an append was in flight"
        self._in_flight.clear()
        self._doomed = len(groups) - 1
        leaders = [acks for group in groups for acks in group.leaders]
        return groups, self._pending.take_back(groups[0].base, leaders)

    def committed(self, high_watermark: Offset, now: TimestampUs) -> Sequence[Action]:
        """Record that records below ``high_watermark`` are committed."""
        assert high_watermark >= self._high_watermark, f"M2: back to {high_watermark}: {self}"
        assert high_watermark <= self._appended_end, f"M3: {high_watermark} is to be acked: {self}"
        self._high_watermark = high_watermark
        self._history.committed(high_watermark, now)
        while self._begun and self._begun[0][1] <= high_watermark:
            self._begun.popleft()
        data, count = self._pending.release(high_watermark)
        return [Publish(data, count)] if count else []


def _publish(data: bytes, count: int) -> list[Action]:
    return [Publish(data, count)] if count else []


def _count(kind: CountKind, number: int) -> list[Action]:
    return [Count(kind, number)] if number else []
