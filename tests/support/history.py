"""What clients of streams did and were told, and whether it can all be true: a history and its checkers.

Pure. Whoever runs a workload, on real processes or simulated ones, records one event after the other;
`anomalies` judges them without asking a node. The anomalies are those of Jepsen's Kafka workload, and more
where an uncompacted stream promises more: offsets are contiguous, an ack names the place where its value is
read, what is sent after an ack comes after it, and who asks for the end after an ack is told one behind it.

Values are unique in a stream. Times are seconds of any one clock that all events share; an event that ended
before another began has a smaller time. Streams whose records are removed are not for these checkers.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Final, NamedTuple

DEDUPE_WINDOW_S: Final = 120.0
"""Sends of one id that are further apart may be stored twice."""
_EXAMPLES_MAX: Final = 5


class Seen(NamedTuple):
    """One record as a reader got it."""

    offset: int
    epoch: int
    value: str


@dataclass(frozen=True, slots=True)
class Sent:
    """A publisher is about to send a value, for the first time or again."""

    at: float
    stream: str
    value: str
    attempt: int
    connection: str
    """Whose order NATS keeps."""
    message_id: str | None


@dataclass(frozen=True, slots=True)
class Acked:
    """A publisher has heard that an attempt is stored."""

    at: float
    stream: str
    value: str
    attempt: int
    offset: int
    epoch: int
    duplicate: bool


@dataclass(frozen=True, slots=True)
class Refused:
    """A publisher has heard that an attempt is not stored, and never will be."""

    at: float
    stream: str
    value: str
    attempt: int
    code: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """A publisher waits no more for the answer to an attempt; it may come all the same."""

    at: float
    stream: str
    value: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Read:
    """A reader has got the next records; a reader goes on where it was, over any number of connections."""

    at: float
    reader: str
    stream: str
    records: tuple[Seen, ...]


@dataclass(frozen=True, slots=True)
class ReadFailed:
    """A reader was told that it cannot go on; ``retriable`` if it was told to try again."""

    at: float
    reader: str
    stream: str
    code: str
    retriable: bool


@dataclass(frozen=True, slots=True)
class EndTold:
    """Who asked the leader for the end of a stream at ``asked_at`` was told ``end``, which is exclusive."""

    asked_at: float
    at: float
    reader: str
    stream: str
    end: int


@dataclass(frozen=True, slots=True)
class Drained:
    """After all is well again, and nothing is sent any more, a reader has got a stream from 0 to its end."""

    at: float
    reader: str
    stream: str


@dataclass(frozen=True, slots=True)
class Note:
    """What was done to the cluster, for whoever reads the history."""

    at: float
    text: str


Event = Sent | Acked | Refused | Unknown | Read | ReadFailed | EndTold | Drained | Note
_KINDS: Final[dict[str, Callable[..., Event]]] = {
    kind.__name__: kind for kind in (Sent, Acked, Refused, Unknown, Read, ReadFailed, EndTold, Drained, Note)
}


def encode(event: Event) -> str:
    """Return an event as one line of JSON."""
    parts = {part.name: getattr(event, part.name) for part in fields(event)}
    return json.dumps({"event": type(event).__name__, **parts}, separators=(",", ":"))


def decode(line: str) -> Event:
    """Return the event that `encode` wrote."""
    parts = json.loads(line)
    kind = parts.pop("event")
    if "records" in parts:
        parts["records"] = tuple(Seen(*record) for record in parts["records"])
    return _KINDS[kind](**parts)


@dataclass(frozen=True, slots=True)
class Anomaly:
    """Something that cannot be; ``text`` has the numbers."""

    kind: str
    stream: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind} in {self.stream}: {self.text}"


@dataclass(slots=True)
class StreamHistory:
    """The events of one stream, sorted by what checkers look for."""

    name: str
    window_s: float
    sends: dict[str, list[Sent]] = field(default_factory=lambda: defaultdict(list))
    acks: dict[str, list[Acked]] = field(default_factory=lambda: defaultdict(list))
    refused: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    reads: dict[str, list[Seen]] = field(default_factory=lambda: defaultdict(list))
    """By reader, in the order in which they came."""
    at_offset: dict[int, dict[tuple[int, str], str]] = field(default_factory=lambda: defaultdict(dict))
    """By offset, what was seen there, and the reader who saw it first."""
    offsets_of: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    drained: list[str] = field(default_factory=list)
    failed: list[ReadFailed] = field(default_factory=list)
    ends: list[EndTold] = field(default_factory=list)
    heard: list[tuple[float, int]] = field(default_factory=list)
    """When somebody knew, by an ack or a read, that an offset is committed; in the order of time."""

    def add(self, event: Event) -> None:
        """Take in the next event of this stream."""
        match event:
            case Sent():
                self.sends[event.value].append(event)
            case Acked():
                self.acks[event.value].append(event)
                self.heard.append((event.at, event.offset))
            case Refused():
                self.refused[event.value].add(event.attempt)
            case Read():
                self._read(event)
            case ReadFailed():
                self.failed.append(event)
            case EndTold():
                self.ends.append(event)
            case Drained():
                self.drained.append(event.reader)
            case Unknown() | Note():
                pass

    def _read(self, event: Read) -> None:
        self.reads[event.reader].extend(event.records)
        for offset, epoch, value in event.records:
            self.at_offset[offset].setdefault((epoch, value), event.reader)
            self.offsets_of[value].add(offset)
        if event.records:
            self.heard.append((event.at, max(record.offset for record in event.records)))

    def copies_max(self, value: str) -> int:
        """Return how many records a value may have: more than one only where a repeat cannot be known."""
        sends = self.sends[value]
        if len(sends) < 2:
            return 1
        recognised = all(send.message_id is not None for send in sends)
        return 1 if recognised and sends[-1].at - sends[0].at <= self.window_s else len(sends)


Checker = Callable[[StreamHistory], Iterator[tuple[str, str]]]
"""Yields what is wrong, as kind and text."""


def lost(stream: StreamHistory) -> Iterator[tuple[str, str]]:
    """Every acked value is read by everybody who read the whole stream when all was over."""
    for reader in stream.drained:
        values = {record.value for record in stream.reads[reader]}
        for value, acks in stream.acks.items():
            if value not in values:
                yield "lost", f"{value}, acked at {acks[0].offset}, is not read by {reader}"


def duplicates(stream: StreamHistory) -> Iterator[tuple[str, str]]:
    """A value is stored once, unless it was sent again in a way that nobody can recognise."""
    for value, offsets in stream.offsets_of.items():
        if value in stream.sends and len(offsets) > stream.copies_max(value):
            yield "duplicate", f"{value} is at {sorted(offsets)}, sent {len(stream.sends[value])} times"


def unexpected(stream: StreamHistory) -> Iterator[tuple[str, str]]:
    """Nothing is read that nobody sent."""
    for value, offsets in stream.offsets_of.items():
        if value not in stream.sends:
            yield "unexpected", f"{value} is at {min(offsets)}, and nobody sent it"


def misplaced(stream: StreamHistory) -> Iterator[tuple[str, str]]:
    """An ack names the offset where its value is read; acks of one value agree."""
    for value, acks in stream.acks.items():
        places = {ack.offset for ack in acks}
        if len(places) > stream.copies_max(value):
            yield "contradictory-acks", f"{value} is acked at {sorted(places)}"
        for ack in acks:
            there = stream.at_offset.get(ack.offset)
            if there is not None and all(found != value for _, found in there):
                found = next(iter(there))[1]
                yield "misplaced", f"{value} is acked at {ack.offset}, where {found} is read"
            elif there is None and stream.offsets_of.get(value):
                yield "misplaced", f"{value} is acked at {ack.offset}, read at {stream.offsets_of[value]}"


def misdated(stream: StreamHistory) -> Iterator[tuple[str, str]]:
    """A record has the epoch under which its first ack was given, or an earlier one if it is a repeat's."""
    for value, acks in stream.acks.items():
        for ack in acks:
            for epoch, found in stream.at_offset.get(ack.offset, {}):
                if found == value and (epoch > ack.epoch or (epoch < ack.epoch and not ack.duplicate)):
                    yield "misdated", f"{value} is acked under epoch {ack.epoch}, stored under {epoch}"


def stored_refusals(stream: StreamHistory) -> Iterator[tuple[str, str]]:
    """What was refused, every time it was sent, is nowhere."""
    for value, refused in stream.refused.items():
        if value in stream.offsets_of and refused == {send.attempt for send in stream.sends[value]}:
            yield "stored-refusal", f"{value} was refused, and is at {min(stream.offsets_of[value])}"


def inconsistent(stream: StreamHistory) -> Iterator[tuple[str, str]]:
    """All who read an offset get the same record there."""
    for offset, found in stream.at_offset.items():
        if len(found) > 1:
            told = ", ".join(f"{value} of epoch {epoch} by {who}" for (epoch, value), who in found.items())
            yield "inconsistent-offset", f"at {offset} is read {told}"


def descending_epochs(stream: StreamHistory) -> Iterator[tuple[str, str]]:
    """Epochs do not go back from one offset to the next."""
    for before, after in pairwise(sorted(stream.at_offset)):
        last = max(epoch for epoch, _ in stream.at_offset[before])
        following = min(epoch for epoch, _ in stream.at_offset[after])
        if following < last:
            yield "descending-epoch", f"epoch {last} at {before}, {following} at {after}"


def reading_order(stream: StreamHistory) -> Iterator[tuple[str, str]]:
    """A reader gets every record, in order, once; one who drains the stream begins at 0."""
    for reader, records in stream.reads.items():
        if reader in stream.drained and records and records[0].offset != 0:
            yield "gap", f"{reader} begins at {records[0].offset}"
        for before, after in pairwise(record.offset for record in records):
            if after <= before:
                yield "nonmonotonic-read", f"{reader} gets {after} after {before}"
            elif after > before + 1:
                yield "gap", f"{reader} gets {after} after {before}"


def publishing_order(stream: StreamHistory) -> Iterator[tuple[str, str]]:
    """What one connection sends, and does not send again, is stored in the order in which it was sent."""
    highest: dict[str, Sent] = {}
    for sends in stream.sends.values():
        first = sends[0]
        if len(sends) > 1 or first.value not in stream.offsets_of:
            continue
        before = highest.get(first.connection)
        if before is not None:
            here, there = min(stream.offsets_of[first.value]), min(stream.offsets_of[before.value])
            if here < there:
                yield "disorder", f"{first.value} at {here} was sent after {before.value} at {there}"
                continue
        highest[first.connection] = first


def acks_before(stream: StreamHistory) -> Iterator[tuple[str, str]]:
    """What is sent when another value is known to be stored comes after that, whoever sent it."""
    events: list[tuple[float, int, Acked | Sent]] = [
        *((sends[0].at, 0, sends[0]) for sends in stream.sends.values()),
        *((ack.at, 1, ack) for acks in stream.acks.values() for ack in acks),
    ]
    latest: Acked | None = None
    for _, _, event in sorted(events, key=lambda entry: entry[:2]):
        if isinstance(event, Acked):
            latest = event if latest is None or event.offset > latest.offset else latest
            continue
        offset = min(stream.offsets_of.get(event.value, ()), default=None)
        if latest is not None and offset is not None and offset <= latest.offset:
            text = f"{event.value} at {offset} was sent after the ack of {latest.value} at {latest.offset}"
            yield "too-early", text


def ends_told(stream: StreamHistory) -> Iterator[tuple[str, str]]:
    """Who asks for the end is told one behind all that anybody had heard of before."""
    events: list[tuple[float, int, int, str]] = [
        *((at, 1, offset + 1, "") for at, offset in stream.heard),
        *((told.at, 1, told.end, "") for told in stream.ends),
        *((told.asked_at, 0, told.end, told.reader) for told in stream.ends),
    ]
    known = 0
    for at, is_answer, end, reader in sorted(events):
        if is_answer:
            known = max(known, end)
        elif end < known:
            yield "early-end", f"{reader} asked at {at:.3f} and was told {end}; {known - 1} was known before"


def failed_reads(stream: StreamHistory) -> Iterator[tuple[str, str]]:
    """Nothing that goes wrong ends a reader for good."""
    for failed in stream.failed:
        if not failed.retriable:
            yield "failed-read", f"{failed.reader} was told {failed.code} at {failed.at:.3f}"


CHECKERS: Final[tuple[Checker, ...]] = (
    lost,
    duplicates,
    unexpected,
    misplaced,
    misdated,
    stored_refusals,
    inconsistent,
    descending_epochs,
    reading_order,
    publishing_order,
    acks_before,
    ends_told,
    failed_reads,
)


def by_stream(events: Iterable[Event], window_s: float) -> Mapping[str, StreamHistory]:
    """Sort a history by streams; see `anomalies`."""
    streams: dict[str, StreamHistory] = {}
    for event in events:
        if not isinstance(event, Note):
            streams.setdefault(event.stream, StreamHistory(event.stream, window_s)).add(event)
    return streams


def anomalies(events: Iterable[Event], window_s: float = DEDUPE_WINDOW_S) -> list[Anomaly]:
    """Judge a history; of many anomalies of one kind the first are told, with their number.

    Args:
        events: in the order of time.
        window_s: seconds for which the streams remember message ids.
    """
    found: list[Anomaly] = []
    for stream in by_stream(events, window_s).values():
        texts: dict[str, list[str]] = defaultdict(list)
        for checker in CHECKERS:
            for kind, text in checker(stream):
                texts[kind].append(text)
        for kind, those in texts.items():
            found += [Anomaly(kind, stream.name, text) for text in those[:_EXAMPLES_MAX]]
            if len(those) > _EXAMPLES_MAX:
                found.append(Anomaly(kind, stream.name, f"and {len(those) - _EXAMPLES_MAX} more"))
    return found
