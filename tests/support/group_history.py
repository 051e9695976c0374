"""What members of consumer groups saw and did: events, and the checkers that judge a history of them.

Everything here is pure. The harness writes down what members heard, handed out and committed, whoever they
are: it knows nothing of coordinators and shards. Each partition of a group is judged by itself.

A *tenure* is a claim as its member knows it: a partition, and the generation since which it is owned. Times
are seconds of one clock that all events share; an event that ended before another began has a smaller time.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Final, Literal

from envelope.errors import Fenced, registry

_EXAMPLES_MAX: Final = 5

Outcome = Literal["accepted", "superseded", "refused", "unknown"]
"""``refused`` is definite: nothing of the commit is stored, and nothing will be."""


@dataclass(frozen=True, slots=True)
class Granted:
    """A member has heard for the first time that it owns a partition ``since`` a generation."""

    at: float
    group: str
    stream: str
    """The physical one: of a partition, ``orders/3``."""
    member: str
    """One membership; a process that was put out and joins anew is another member."""
    since: int


@dataclass(frozen=True, slots=True)
class AskedFor:
    """A member has heard for the first time that it is to give up a tenure."""

    at: float
    group: str
    stream: str
    member: str
    since: int


@dataclass(frozen=True, slots=True)
class PutOut:
    """A member has heard that it is none any more."""

    at: float
    group: str
    member: str
    code: str


@dataclass(frozen=True, slots=True)
class Delivered:
    """The application has got the next records of a tenure, and has done its work with them."""

    at: float
    group: str
    stream: str
    member: str
    since: int
    first: int
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Committing:
    """A member is about to send a commit of one partition, or sends an earlier one once more (``again``)."""

    at: float
    group: str
    stream: str
    member: str
    since: int
    commit: str
    """The name of this attempt: no other one has it."""
    offset: int
    again: bool = False


@dataclass(frozen=True, slots=True)
class Committed:
    """A member has heard what became of an attempt; one without this has an unknown outcome."""

    at: float
    group: str
    stream: str
    commit: str
    outcome: Outcome
    code: str = ""


@dataclass(frozen=True, slots=True)
class CursorTold:
    """Who asked for the group's cursor at ``asked_at`` was told ``offset``; None: there is none."""

    asked_at: float
    at: float
    group: str
    stream: str
    member: str
    offset: int | None


@dataclass(frozen=True, slots=True)
class Ending:
    """After all is well again the group has come to the end of a stream, which has these values."""

    at: float
    group: str
    stream: str
    values: tuple[str, ...]


GroupEvent = Granted | AskedFor | PutOut | Delivered | Committing | Committed | CursorTold | Ending
_KINDS: Final[dict[str, Callable[..., GroupEvent]]] = {
    kind.__name__: kind
    for kind in (Granted, AskedFor, PutOut, Delivered, Committing, Committed, CursorTold, Ending)
}


def encode_group_event(event: GroupEvent) -> str:
    """Return an event as one line of JSON."""
    parts = {part.name: getattr(event, part.name) for part in fields(event)}
    return json.dumps({"event": type(event).__name__, **parts}, separators=(",", ":"))


def decode_group_event(line: str | bytes) -> GroupEvent:
    """Return the event that `encode_group_event` wrote."""
    parts = json.loads(line)
    kind = parts.pop("event")
    if "values" in parts:
        parts["values"] = tuple(parts["values"])
    return _KINDS[kind](**parts)


@dataclass(frozen=True, slots=True)
class GroupAnomaly:
    """Something that cannot be; ``text`` has the numbers."""

    kind: str
    group: str
    stream: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind} of group {self.group} in {self.stream}: {self.text}"


@dataclass(frozen=True, slots=True)
class Tenure:
    """A claim of one member."""

    since: int
    member: str

    def __str__(self) -> str:
        return f"{self.member} since {self.since}"


@dataclass(frozen=True, slots=True)
class Attempt:
    """A commit, and what is known of its outcome."""

    asked: Committing
    told: Committed | None

    @property
    def is_accepted(self) -> bool:
        """Whether its member knows that the cursor is stored."""
        return self.told is not None and self.told.outcome == "accepted"

    @property
    def may_be_stored(self) -> bool:
        """Whether the cursor is stored, or may be."""
        return self.told is None or self.told.outcome in ("accepted", "unknown")

    @property
    def tenure(self) -> Tenure:
        """For which it was made."""
        return Tenure(self.asked.since, self.asked.member)


@dataclass(slots=True)
class PartitionHistory:
    """The events of one partition of one group, sorted by what checkers look for."""

    group: str
    stream: str
    grants: dict[Tenure, Granted] = field(default_factory=dict)
    delivered: dict[Tenure, list[Delivered]] = field(default_factory=lambda: defaultdict(list))
    asked: list[Committing] = field(default_factory=list)
    told: dict[str, Committed] = field(default_factory=dict)
    cursors: list[CursorTold] = field(default_factory=list)
    endings: list[Ending] = field(default_factory=list)
    delivered_before: dict[str, int] = field(default_factory=dict)
    """By commit, where what its tenure was given ended when it was asked; 0 if it was given nothing."""

    def add(self, event: GroupEvent) -> None:
        """Take in the next event of this partition."""
        match event:
            case Granted():
                self.grants.setdefault(Tenure(event.since, event.member), event)
            case Delivered():
                self.delivered[Tenure(event.since, event.member)].append(event)
            case Committing():
                self.asked.append(event)
                before = self.delivered.get(Tenure(event.since, event.member))
                end = before[-1].first + len(before[-1].values) if before else 0
                self.delivered_before[event.commit] = end
            case Committed():
                self.told[event.commit] = event
            case CursorTold():
                self.cursors.append(event)
            case Ending():
                self.endings.append(event)
            case AskedFor() | PutOut():
                pass

    def attempts(self) -> Iterator[Attempt]:
        """Yield all commits, in the order in which they were asked."""
        for asked in self.asked:
            yield Attempt(asked, self.told.get(asked.commit))

    def stored_before(self, at: float) -> int:
        """Return the largest cursor that is known to have been stored when a grant was heard at ``at``.

        What was asked before that, and accepted, was so before the grant: afterwards it would be refused.
        """
        acked = (each.asked.offset for each in self.attempts() if each.is_accepted and each.asked.at < at)
        told = (cursor.offset or 0 for cursor in self.cursors if cursor.at < at)
        return max((*acked, *told), default=0)


Checker = Callable[[PartitionHistory], Iterator[tuple[str, str]]]
"""Yields what is wrong, as kind and text."""


def shared_tenures(partition: PartitionHistory) -> Iterator[tuple[str, str]]:
    """A partition is granted to one member in one generation."""
    owners: dict[int, set[str]] = defaultdict(set)
    for tenure in partition.grants:
        owners[tenure.since].add(tenure.member)
    for since, members in owners.items():
        if len(members) > 1:
            yield "two-owners", f"since {since} it is owned by {' and '.join(sorted(members))}"


def late_commits(partition: PartitionHistory) -> Iterator[tuple[str, str]]:
    """Once somebody has heard of a grant, nothing is accepted any more for an earlier one."""
    grants = sorted(partition.grants.items(), key=lambda entry: entry[1].at)
    for attempt in partition.attempts():
        if not attempt.is_accepted:
            continue
        for tenure, grant in grants:
            if grant.at < attempt.asked.at and tenure.since > attempt.tenure.since:
                what = f"{attempt.asked.offset} of {attempt.tenure}, asked at {attempt.asked.at:.3f}"
                yield "late-commit", f"{what}, is accepted: {tenure} has owned it from {grant.at:.3f} on"
                break


def regressions(partition: PartitionHistory) -> Iterator[tuple[str, str]]:
    """No cursor is told, and no commit accepted, below one that was known when it was asked."""
    events: list[tuple[float, int, int, str]] = []
    for cursor in partition.cursors:
        told = cursor.offset or 0
        events += [(cursor.at, 1, told, ""), (cursor.asked_at, 0, told, f"{cursor.member} is told {told}")]
    for attempt in partition.attempts():
        if attempt.told is not None and attempt.is_accepted:
            offset = attempt.asked.offset
            events += [
                (attempt.told.at, 1, offset, ""),
                (attempt.asked.at, 0, offset, f"{attempt.tenure} commits {offset}"),
            ]
    known = 0
    for at, is_answer, offset, text in sorted(events):
        if is_answer:
            known = max(known, offset)
        elif offset < known:
            yield "regressed-cursor", f"{text}, asked at {at:.3f}; {known} was known before"


def invented_cursors(partition: PartitionHistory) -> Iterator[tuple[str, str]]:
    """A cursor that is told is one that somebody has tried to commit."""
    for cursor in partition.cursors:
        if cursor.offset and not any(
            asked.offset == cursor.offset and asked.at < cursor.at for asked in partition.asked
        ):
            text = f"{cursor.member} is told {cursor.offset} at {cursor.at:.3f}, which nobody has committed"
            yield "invented-cursor", text


def wrong_starts(partition: PartitionHistory) -> Iterator[tuple[str, str]]:
    """A tenure begins at the cursor: the largest that was acked, or one whose outcome nobody knew then."""
    for tenure, deliveries in partition.delivered.items():
        grant = partition.grants.get(tenure)
        if grant is None:
            yield "not-granted", f"{tenure} gets records and was never granted"
            continue
        least = partition.stored_before(grant.at)
        starts = {least} | {
            attempt.asked.offset
            for attempt in partition.attempts()
            if attempt.asked.at < grant.at and attempt.may_be_stored and attempt.asked.offset > least
        }
        first = deliveries[0].first
        if first not in starts:
            yield "wrong-start", f"{tenure} begins at {first}, the cursor is one of {sorted(starts)}"


def delivery_order(partition: PartitionHistory) -> Iterator[tuple[str, str]]:
    """In one tenure every record comes once, in order."""
    for tenure, deliveries in partition.delivered.items():
        for before, after in pairwise(deliveries):
            expected = before.first + len(before.values)
            if after.first != expected:
                kind = "gap" if after.first > expected else "repeated"
                yield kind, f"{tenure} gets {after.first}, next is {expected}"


def early_commits(partition: PartitionHistory) -> Iterator[tuple[str, str]]:
    """What is committed was delivered before, in the same tenure."""
    for attempt in partition.attempts():
        end = partition.delivered_before[attempt.asked.commit]
        if attempt.asked.offset > end:
            yield "early-commit", f"{attempt.tenure} commits {attempt.asked.offset}, was given {end}"


def unexpected_refusals(partition: PartitionHistory) -> Iterator[tuple[str, str]]:
    """A member that commits one thing after the other is refused only for passing reasons, or fenced."""
    errors = registry()
    for attempt in partition.attempts():
        told = attempt.told
        if told is None or attempt.asked.again:
            continue
        if told.outcome == "superseded":
            yield "superseded", f"{attempt.asked.offset} of {attempt.tenure}, behind which it sent nothing"
        elif told.outcome == "refused":
            error = errors.get(told.code)
            if error is None or not (issubclass(error, Fenced) or error.retriable):
                yield "refused", f"{attempt.asked.offset} of {attempt.tenure}: {told.code}"


def undelivered(partition: PartitionHistory) -> Iterator[tuple[str, str]]:
    """What is in the stream was delivered to somebody in the end, as it is there."""
    values: dict[int, set[str]] = defaultdict(set)
    for deliveries in partition.delivered.values():
        for delivered in deliveries:
            for offset, value in enumerate(delivered.values, delivered.first):
                values[offset].add(value)
    for ending in partition.endings:
        for offset, value in enumerate(ending.values):
            if offset not in values:
                yield "undelivered", f"{value} at {offset}"
            elif values[offset] != {value}:
                yield "misread", f"{value} at {offset} is delivered as {sorted(values[offset])}"


CHECKERS: Final[tuple[Checker, ...]] = (
    shared_tenures,
    late_commits,
    regressions,
    invented_cursors,
    wrong_starts,
    delivery_order,
    early_commits,
    unexpected_refusals,
    undelivered,
)


def by_partition(events: Iterable[GroupEvent]) -> Mapping[tuple[str, str], PartitionHistory]:
    """Sort a history by groups and partitions, each in the order of time."""
    found: dict[tuple[str, str], PartitionHistory] = {}
    for event in sorted(events, key=lambda event: event.at):
        if not isinstance(event, PutOut):
            key = (event.group, event.stream)
            found.setdefault(key, PartitionHistory(*key)).add(event)
    return found


def group_anomalies(events: Iterable[GroupEvent]) -> list[GroupAnomaly]:
    """Judge a history; of many anomalies of one kind the first are told, with their number.

    Events may come in any order: those of several processes are written down as they are heard of.
    """
    found: list[GroupAnomaly] = []
    for (group, stream), partition in by_partition(events).items():
        texts: dict[str, list[str]] = defaultdict(list)
        for checker in CHECKERS:
            for kind, text in checker(partition):
                texts[kind].append(text)
        for kind, those in texts.items():
            found += [GroupAnomaly(kind, group, stream, text) for text in those[:_EXAMPLES_MAX]]
            if len(those) > _EXAMPLES_MAX:
                found.append(GroupAnomaly(kind, group, stream, f"and {len(those) - _EXAMPLES_MAX} more"))
    return found
