"""Messages become records: what is stored at which offset, and who is told what.

A block whose messages carry no headers is sequenced by whole columns. Messages with headers, and those that
cannot be stored, are judged one by one in arrival order, each against the state that those before it leave.
"""

from dataclasses import dataclass, field, replace

from envelope.errors import JetstreamError, TxidDecreasing, WrongLastMessageId, WrongLastSequence
from envelope.types import AckPolicy, Offset, TimestampUs
from jetstream.ingest.dedupe import DedupeWindow
from jetstream.ingest.history import History
from jetstream.ingest.intake import Addressee, InspectedMessage, Intake
from jetstream.ingest.messages import MessageBlock
from jetstream.ingest.pending_acks import NO_ACKS, Acks, acks_of
from jetstream.ingest.records import RecordFields, build_records
from jetstream.log.plain_batch import Records


@dataclass(frozen=True, slots=True)
class Refused:
    """A message that is not stored; ``reply`` is empty if nobody is told."""

    reply: bytes
    error: JetstreamError


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A message that is stored already; ``reply`` is empty if nobody is told."""

    reply: bytes
    original: Offset


@dataclass(slots=True)
class Group:
    """What became of one block; ``records`` (offsets ``[base, end)``) are to be appended together."""

    base: Offset
    end: Offset
    before: "_State"
    records: Records | None = None
    leader: Acks = NO_ACKS
    committed: Acks = NO_ACKS
    refused: list[Refused] = field(default_factory=list)
    duplicates: list[Duplicate] = field(default_factory=list)


@dataclass(slots=True)
class _State:
    """What the next message is judged against."""

    log_end_offset: Offset
    last_timestamp: TimestampUs
    last_txid: int | None
    last_message_id: bytes | None
    last_message_id_offset: Offset
    """Offset of the record with ``last_message_id``: it is the stream's last id only if no record follows."""


class Sequencer:
    """Gives messages offsets, in arrival order, without gaps.

    Invariants:
        S1: the next record's offset is the log end offset.
        S2: timestamps never decrease; neither do txids, where set.
        S3: after `roll_back` the state is what it was before the group was sequenced, except that expired ids
            stay forgotten.
    """

    def __init__(self, intake: Intake, log_end_offset: Offset, history: History) -> None:
        """Continue a log that ends at ``log_end_offset``."""
        self._intake = intake
        self._dedupe = history.dedupe
        self._state = _State(
            log_end_offset,
            history.last_timestamp,
            history.last_txid,
            history.last_message_id,
            Offset(log_end_offset - 1),
        )

    @property
    def log_end_offset(self) -> Offset:
        """Offset of the next record, appends in flight included."""
        return self._state.log_end_offset

    @property
    def dedupe(self) -> DedupeWindow:
        """The ids that are remembered."""
        return self._dedupe

    def sequence(self, messages: MessageBlock, now: TimestampUs) -> Group:
        """Decide about all ``messages``; what is returned is to be appended in the order of the calls."""
        before = replace(self._state)
        state = self._state
        state.last_timestamp = max(now, state.last_timestamp)
        self._dedupe.expire(state.last_timestamp)
        group = Group(state.log_end_offset, state.log_end_offset, before)
        places = self._intake.places_to_inspect(messages)
        fields = RecordFields()
        policies: dict[int, AckPolicy] = {}
        if places:
            messages = self._judge_places(messages, places, group, fields, policies)
        if len(messages):
            self._store(messages, group, fields, policies)
        assert state.log_end_offset == group.end, "S1"
        return group

    def roll_back(self, group: Group) -> None:
        """Take back ``group`` and all after it: their appends stored nothing."""
        self._dedupe.forget_from(group.base)
        self._state = group.before

    def _judge_places(
        self,
        messages: MessageBlock,
        places: list[int],
        group: Group,
        fields: RecordFields,
        policies: dict[int, AckPolicy],
    ) -> MessageBlock:
        """Judge the messages at ``places``; return the messages that are to be stored."""
        dropped: set[int] = set()
        for place in places:
            message = self._intake.inspect(messages, place)
            row = place - len(dropped)
            verdict = self._verdict(message, Offset(group.base + row))
            if verdict is None:
                self._accept(message, Offset(group.base + row))
                policies[row] = message.policy
                fields.add(row, message.headers, message.asked)
                continue
            dropped.add(place)
            if isinstance(verdict, JetstreamError):
                group.refused.append(Refused(message.told, verdict))
            else:
                group.duplicates.append(Duplicate(message.told, verdict))
        if not dropped:
            return messages
        return messages.select([place not in dropped for place in range(len(messages))])

    def _verdict(self, message: InspectedMessage, offset: Offset) -> JetstreamError | Offset | None:
        """Return why not to store a message at ``offset``, or where it is stored already; None: store it."""
        if message.refusal is not None:
            return message.refusal
        asked, state = message.asked, self._state
        if asked.message_id is not None:
            original = self._dedupe.lookup(asked.message_id)
            if original is not None:
                return original
        if message.addressee is Addressee.THIS_STREAM:
            unmet = self._unmet_expectation(message, offset)
            if unmet is not None:
                return unmet
        if asked.txid is not None and state.last_txid is not None and asked.txid < state.last_txid:
            return TxidDecreasing(f"txid {asked.txid} is below the last one, {state.last_txid}")
        return None

    def _unmet_expectation(self, message: InspectedMessage, offset: Offset) -> JetstreamError | None:
        asked, state = message.asked, self._state
        if asked.bad_expectation is not None:
            return asked.bad_expectation
        # The sequence of the last record is its offset + 1: the offset of the next one.
        if asked.expected_last_sequence not in (None, offset):
            return WrongLastSequence(f"wrong last sequence: {offset}", last_sequence=offset)
        last_id = state.last_message_id if state.last_message_id_offset == offset - 1 else None
        if asked.expected_last_message_id not in (None, last_id):
            return WrongLastMessageId(f"wrong last msg ID: {(last_id or b'').decode(errors='replace')}")
        return None

    def _accept(self, message: InspectedMessage, offset: Offset) -> None:
        asked, state = message.asked, self._state
        if asked.message_id is not None:
            self._dedupe.remember(asked.message_id, offset, state.last_timestamp)
            state.last_message_id = asked.message_id
            state.last_message_id_offset = offset
        if asked.txid is not None:
            assert state.last_txid is None or asked.txid >= state.last_txid, "S2: txids never decrease"
            state.last_txid = asked.txid

    def _store(
        self, messages: MessageBlock, group: Group, fields: RecordFields, policies: dict[int, AckPolicy]
    ) -> None:
        """Make records of all ``messages`` and note whom to ack."""
        state = self._state
        group.end = state.log_end_offset = Offset(group.base + len(messages))
        group.records = build_records(
            group.base, state.last_timestamp, messages.subjects, messages.payloads, fields
        )
        offsets = range(group.base, group.end)
        default = self._intake.policy
        if any(policy is not default for policy in policies.values()):
            each = [policies.get(row, default) for row in range(len(messages))]
            group.leader = acks_of(offsets, messages.replies, [policy is AckPolicy.LEADER for policy in each])
            group.committed = acks_of(offsets, messages.replies, [policy is AckPolicy.ALL for policy in each])
        elif default is AckPolicy.LEADER:
            group.leader = acks_of(offsets, messages.replies)
        elif default is AckPolicy.ALL:
            group.committed = acks_of(offsets, messages.replies)
