"""Messages become records: what is stored at which offset, and who is told what.

A block whose messages carry no headers is sequenced by whole columns. Messages with headers, and those that
cannot be stored, are judged one by one in arrival order, each against the state that those before it leave.
A batch envelope is judged as one message and stored as a run of records of its own.
"""

from dataclasses import dataclass, field
from itertools import compress
from typing import Final

import pyarrow as pa

from envelope.acks import EchoingReply
from envelope.envelopes import may_be_batch
from envelope.errors import (
    JetstreamError,
    SequenceGap,
    SequencePassed,
    SessionExpired,
    TxidDecreasing,
    TxidTooFar,
    WrongLastMessageId,
    WrongLastSequence,
)
from envelope.headers import BATCH_RECORDS, SessionPlace
from envelope.limits import MIB
from envelope.types import AckPolicy, Offset, TimestampUs
from jetstream.ingest.batches import BatchContent, joined_records, read_batch
from jetstream.ingest.message_validator import Addressee, InspectedMessage, MessageValidator
from jetstream.ingest.messages import MessageBlock
from jetstream.ingest.pending_acks import Acks
from jetstream.ingest.publishers.dedupe import name_of, names_of
from jetstream.ingest.publishers.history import PublisherHistory, Step
from jetstream.ingest.publishers.sessions import StoredPlace, name_in_window
from jetstream.ingest.records import RecordFields, build_records
from jetstream.log.format.plain_batch_encoder import PlainRecords, Records, Run, Runs

JOINED_BYTES_MAX: Final = MIB
"""Of batch envelopes that share a batch of the log; a larger one has its own."""


@dataclass(frozen=True, slots=True)
class MessageRefused:
    """A message that is not stored; ``reply`` is empty if nobody is told."""

    reply: bytes
    error: JetstreamError


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A message that is stored already; ``reply`` is empty if nobody is told."""

    reply: bytes
    original: Offset
    is_exact: bool = True
    """Whether that is its offset; otherwise the offset is forgotten, and not above this one."""


@dataclass(slots=True)
class SequencedGroup:
    """The outcome of one block; ``records``, if any, are to be appended together, at ``[base, end)``."""

    base: Offset
    end: Offset
    step: Step
    """What was known before it."""
    timestamp: TimestampUs
    messages: int = 0
    """How many the records come from: a batch is one."""
    runs: list[Run] = field(default_factory=list)
    batches: list[BatchContent] = field(default_factory=list)
    """The records behind the last run, to be made one."""
    batches_bytes: int = 0
    leaders: list[Acks] = field(default_factory=list)
    """The acks that are due when the append returns."""
    commits: list[Acks] = field(default_factory=list)
    """The acks that are due when the records are committed."""
    refused: list[MessageRefused] = field(default_factory=list)
    duplicates: list[Duplicate] = field(default_factory=list)
    places: list[StoredPlace] = field(default_factory=list)
    """The records that are of a session."""
    records: Records | None = None
    """All of ``runs``, once there will be no more."""

    def add_batch(self, batch: BatchContent) -> None:
        """Add the records of a batch envelope, which share their batch of the log with their neighbours."""
        if self.batches and self.batches_bytes + batch.size_bytes > JOINED_BYTES_MAX:
            self.join_batches()
        self.batches.append(batch)
        self.batches_bytes += batch.size_bytes
        self.messages += 1
        self.end = Offset(self.end + batch.records)

    def join_batches(self) -> None:
        """Make the newest batches a run."""
        base = Offset(self.end - sum(batch.records for batch in self.batches))
        self.runs.append(joined_records(self.batches, base, self.timestamp))
        self.batches, self.batches_bytes = [], 0


class Sequencer:
    """Gives messages offsets, in arrival order, without gaps.

    Invariants:
        S1: the next record's offset is the log end offset.
        S2: timestamps never decrease, unless `follow_time` lets the time fall; neither do
            txids, where set, from the last one on that an operator has said.
        S3: after `roll_back` the state is what it was before the group was sequenced, except that expired ids
            stay forgotten.
            Held by test_a_refused_append_refuses_every_message_and_is_as_if_it_never_was.
    """

    def __init__(
        self, validator: MessageValidator, log_end_offset: Offset, history: PublisherHistory
    ) -> None:
        """Continue a log that ends at ``log_end_offset``, and its ``history``."""
        self._validator = validator
        self._history = history
        self._dedupe = history.dedupe
        self._sessions = history.sessions
        self._batch_ends = history.batch_ends
        history.end = log_end_offset

    def sequence(self, messages: MessageBlock, now: TimestampUs) -> SequencedGroup:
        """Decide about all ``messages``; what is returned is to be appended in the order of the calls."""
        history = self._history
        step = history.begin_step(history.end)
        history.last_timestamp = max(now, history.last_timestamp)
        assert history.last_timestamp >= step.last_timestamp, f"S2: {now} after {step.last_timestamp}"
        history.expire(history.last_timestamp)
        group = SequencedGroup(history.end, history.end, step, history.last_timestamp)
        start = 0
        for place in messages.cookies:
            if may_be_batch(messages.payloads[place]):
                if start < place:
                    self._sequence_run(messages.part(start, place), group)
                self._sequence_batch(messages, place, group)
                start = place + 1
        self._sequence_run(messages.part(start, messages.count) if start else messages, group)
        if group.batches:
            group.join_batches()
        if group.runs:
            group.records = group.runs[0] if len(group.runs) == 1 else Runs(tuple(group.runs))
        history.end = group.end
        return group

    def _sequence_run(self, messages: MessageBlock, group: SequencedGroup) -> None:
        """Sequence messages each of which is a record."""
        fields: RecordFields | None = None  # every record is plain
        policies: dict[int, AckPolicy] = {}
        odd_places, ids = self._validator.odd_places(messages), None
        if messages.has_headers and not odd_places:
            ids = self._validator.only_identified(messages)
        if ids is not None and self._dedupe.are_new(names := names_of(ids)):
            self._dedupe.remember_new(names, group.end, self._history.last_timestamp)
            self._history.last_id(ids[-1], Offset(group.end + len(ids) - 1))
            fields = RecordFields(message_ids=ids)
        elif messages.has_headers or odd_places:
            fields = RecordFields()
            messages = self._judge_each(messages, group, fields, policies)
        if messages.count:
            self._store(messages, group, fields, policies)

    def _sequence_batch(self, messages: MessageBlock, place: int, group: SequencedGroup) -> None:
        """Sequence the message at ``place``, which is a batch unless its checksum says otherwise."""
        message = self._validator.inspect(messages, place)
        if message.envelope is None:
            self._sequence_run(messages.part(place, place + 1), group)
            return
        verdict = self._verdict(message, group.end)
        if verdict is not None:
            self._turn_down(message, verdict, group)
            return
        added = message.headers or ()
        if added:  # so that who reads the log knows which records a repeat is answered with
            added = [*added, (BATCH_RECORDS, b"%d" % message.records)]
        subject, bytes_max = messages.subjects[place], self._validator.record_bytes_max
        try:
            content = read_batch(message.envelope, subject, added, bytes_max)
        except JetstreamError as error:
            self._turn_down(message, error, group)
            return
        unfit = (
            self._validator.key_problem(message, content)
            or self._txid_problem(content.first_txid)
            or self._validator.step_problem(content)
        )
        if unfit is not None:
            self._turn_down(message, unfit, group)
            return
        self._store_batch(message, content, group)

    def roll_back(self, group: SequencedGroup) -> None:
        """Take back the newest ``group`` that was not: its append stored nothing."""
        history = self._history
        history.forget_from(group.base)
        assert history.end == group.base, f"S3: {history.end}, not {group.base}"
        assert history.last_timestamp == group.step.last_timestamp, f"S3: time {history.last_timestamp}"

    def _judge_each(
        self,
        messages: MessageBlock,
        group: SequencedGroup,
        fields: RecordFields,
        policies: dict[int, AckPolicy],
    ) -> MessageBlock:
        """Judge the messages that are not plain one by one; return the messages that are to be stored."""
        dropped: set[int] = set()
        for place in self._validator.places_to_inspect(messages):
            message = self._validator.inspect(messages, place)
            row = place - len(dropped)
            verdict = self._verdict(message, Offset(group.end + row))
            if verdict is None and (message.envelope is not None or message.content is not None):
                verdict = self._unpack(message, messages, place)
            if verdict is not None:
                dropped.add(place)
                self._turn_down(message, verdict, group)
                continue
            self._accept(message, Offset(group.end + row), group)
            policies[row] = message.policy
            fields.add(row, message.headers, message.asked)
        if not dropped:
            return messages
        return messages.select([place not in dropped for place in range(messages.count)])

    def _unpack(self, message: InspectedMessage, messages: MessageBlock, place: int) -> JetstreamError | None:
        """Put what is stored, and whom an envelope says to answer, in its place; return why that fails."""
        content: bytes | memoryview | None = message.content
        if content is None:
            assert message.envelope is not None, "otherwise there is nothing to unpack"
            try:
                content = message.envelope.content(self._validator.record_bytes_max)
            except JetstreamError as error:
                return error
        messages.payloads[place], messages.replies[place] = bytes(content), message.reply
        return None

    def _turn_down(
        self, message: InspectedMessage, verdict: JetstreamError | Duplicate, group: SequencedGroup
    ) -> None:
        """Note that a message is refused, or stored already."""
        if isinstance(verdict, JetstreamError):
            group.refused.append(MessageRefused(message.reply, verdict))
        else:
            group.duplicates.append(verdict)

    def repeat(self, message: InspectedMessage) -> Duplicate | None:
        """Return what to answer if a message is stored already, or on its way there; None if it is not."""
        asked = message.asked
        if asked.message_id is not None:
            original = self._dedupe.lookup(name_of(asked.message_id))
            return None if original is None else self._repeat_of(message, original)
        if asked.session is None:
            return None
        session = self._sessions.find(asked.session.session)
        if session is None:
            # Others may have pushed it out; one that has expired may begin anew with the same numbers.
            is_known = self._sessions.window_us >= self._dedupe.window_us
        else:
            is_known = asked.session.sequence <= session.sequence
        if not is_known:
            return None
        original = self._dedupe.lookup(name_in_window(asked.session))
        if original is not None:
            return self._repeat_of(message, original)
        if session is None or not session.is_gapless:
            return None
        return Duplicate(message.reply, session.offset, is_exact=False)

    def _repeat_of(self, message: InspectedMessage, original: Offset) -> Duplicate:
        """Return how to answer a repeat of what ends at ``original``: with all the offsets it has."""
        reply, records = message.reply, self._batch_ends.records_ending_at(original)
        correlation_id = None if message.envelope is None else message.envelope.correlation_id
        asks_for_count = isinstance(reply, EchoingReply) and reply.records is not None
        if reply and (records > 1 or asks_for_count or correlation_id is not None):
            reply = EchoingReply(reply, records if records > 1 or asks_for_count else None, correlation_id)
        return Duplicate(reply, original)

    def _verdict(self, message: InspectedMessage, offset: Offset) -> JetstreamError | Duplicate | None:
        """Return why not to store a message at ``offset``, or where it is stored already; None: store it."""
        if message.refusal is not None:
            return message.refusal
        asked = message.asked
        repeat = self.repeat(message)
        if repeat is not None:
            return repeat
        if asked.session is not None:
            misplaced = self._misplaced(asked.session, is_asked=message.addressee is Addressee.THIS_STREAM)
            if misplaced is not None:
                return misplaced
        if message.addressee is Addressee.THIS_STREAM:
            unmet = self._unmet_expectation(message, offset)
            if unmet is not None:
                return unmet
        return self._txid_problem(asked.txid)

    def _misplaced(self, place: SessionPlace, *, is_asked: bool) -> JetstreamError | None:
        """Return why a message that is no repeat has no place in its session; None: it is the next.

        That the message before it must be stored is asked of the stream that answers; others may have missed
        it, and take what comes.
        """
        session = self._sessions.find(place.session)
        last = 0 if session is None else session.sequence
        if place.sequence <= last:
            return SequencePassed(
                f"sequence {place.sequence} of its session comes too late: {last} is stored, and whether "
                "this one ever was is not known",
                last_sequence=last,
            )
        if not is_asked or place.after is None or place.after == last:
            return None
        if session is None:
            return SessionExpired(
                f"the session is not known: no record of it for so long, or none at all; sequence "
                f"{place.sequence} comes after {place.after}"
            )
        return SequenceGap(
            f"wrong last sequence of the session: {last}, and {place.sequence} comes after {place.after}",
            last_sequence=last,
        )

    def _txid_problem(self, txid: int | None) -> TxidDecreasing | TxidTooFar | None:
        last_txid = self._history.last_txid
        if txid is None or last_txid is None:
            return None
        if txid < last_txid:
            return TxidDecreasing(f"txid {txid} is below the last one, {last_txid}")
        step_max = self._validator.txid_max_step
        if step_max is not None and txid - last_txid > step_max:
            return TxidTooFar(f"txid {txid} is more than {step_max} above the last one, {last_txid}")
        return None

    def _unmet_expectation(self, message: InspectedMessage, offset: Offset) -> JetstreamError | None:
        asked = message.asked
        if asked.bad_expectation is not None:
            return asked.bad_expectation
        # The sequence of the last record is its offset + 1: the offset of the next one.
        if asked.expected_last_sequence not in (None, offset):
            return WrongLastSequence(f"wrong last sequence: {offset}", last_sequence=offset)
        last_id = self._history.id_before(offset)
        if asked.expected_last_message_id not in (None, last_id):
            return WrongLastMessageId(f"wrong last msg ID: {(last_id or b'').decode(errors='replace')}")
        return None

    def _accept(self, message: InspectedMessage, offset: Offset, group: SequencedGroup) -> None:
        asked, history = message.asked, self._history
        if asked.session is not None:
            stored = StoredPlace(asked.session, offset, history.last_timestamp)
            group.places.append(stored)
            history.store(stored, group.step)
            self._dedupe.remember(name_in_window(asked.session), offset, history.last_timestamp)
        if asked.message_id is not None:
            self._dedupe.remember(name_of(asked.message_id), offset, history.last_timestamp)
            history.last_id(asked.message_id, offset)
        if asked.txid is not None:
            assert history.last_txid is None or asked.txid >= history.last_txid, f"S2: txid {asked.txid}"
            history.store_txid(asked.txid, offset)

    def _store(
        self,
        messages: MessageBlock,
        group: SequencedGroup,
        fields: RecordFields | None,
        policies: dict[int, AckPolicy],
    ) -> None:
        """Make records of all ``messages`` and note whom to ack."""
        base, end = group.end, Offset(group.end + messages.count)
        columns = base, self._history.last_timestamp, messages.subjects, messages.payloads
        run = PlainRecords(*columns) if fields is None else build_records(*columns, fields)
        count = run.num_rows if isinstance(run, pa.RecordBatch) else len(run.payloads)
        assert count == messages.count, f"S1: {count} records in [{base}, {end})"
        if group.batches:
            group.join_batches()
        group.runs.append(run)
        group.messages += count
        group.end = end
        offsets, policy = range(base, end), self._validator.policy
        if policies or b"" in messages.replies:
            self._note_acks(offsets, messages.replies, policies, group)
        elif policy is not AckPolicy.NONE:
            due = group.leaders if policy is AckPolicy.LEADER else group.commits
            due.append(Acks(offsets, messages.replies))

    def _note_acks(
        self, offsets: range, replies: list[bytes], policies: dict[int, AckPolicy], group: SequencedGroup
    ) -> None:
        """Note whom to ack when, where not all have asked alike."""
        default = self._validator.policy
        echoing = any(isinstance(replies[row], EchoingReply) for row in policies)
        for policy, due in ((AckPolicy.LEADER, group.leaders), (AckPolicy.ALL, group.commits)):
            asked = [reply and policies.get(row, default) is policy for row, reply in enumerate(replies)]
            if all(asked):
                due.append(Acks(offsets, replies, echoing))
            elif any(asked):
                chosen = list(compress(offsets, asked)), list(compress(replies, asked))
                due.append(Acks(*chosen, echoing))

    def _store_batch(self, message: InspectedMessage, content: BatchContent, group: SequencedGroup) -> None:
        """Store what a batch envelope held, and note whom to ack: once, when its last record is."""
        group.add_batch(content)
        last = Offset(group.end - 1)
        self._accept(message, last, group)
        if message.headers and content.records > 1:
            self._batch_ends.remember(last, content.records)
        if content.last_txid is not None:
            before = self._history.last_txid
            assert before is None or content.last_txid >= before, f"S2: {content.last_txid} after {before}"
            self._history.store_txid(content.last_txid, last)
        if message.reply:
            acks = group.leaders if message.policy is AckPolicy.LEADER else group.commits
            acks.append(Acks((last,), (message.reply,), echoing=True))
