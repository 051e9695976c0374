"""How long a stream had no leader, from what its publisher saw and what the nodes logged (pure).

All times are nanoseconds since 1970: logs, publisher and whoever killed the leader share one machine's clock.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final, NamedTuple

STAMP: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3})Z ")
"""At the beginning of a node's log line."""


class Ack(NamedTuple):
    """What a publisher knows of one message."""

    sent_ns: int
    acked_ns: int
    sequence: int
    epoch: int | None
    """The leader's; None where acks do not tell it."""


@dataclass(frozen=True, slots=True)
class Strike:
    """When a leader was struck: the signal left at ``begun_ns``, and at ``ended_ns`` it did nothing more."""

    begun_ns: int
    ended_ns: int


@dataclass(frozen=True, slots=True)
class Outage:
    """One change of leaders, in milliseconds."""

    whole_ms: float
    """From the last ack of the old leader to the first one of the new."""
    seen_ms: float | None
    """From the signal until a survivor logged that the leader is gone; None where logs do not say."""
    elected_ms: float | None
    """From then until a survivor logged that it leads."""
    acked_ms: float | None
    """From then to the first ack."""
    problem: str | None = None


def outage(
    strike: Strike, acks: Sequence[Ack], seen_ns: int | None, led_ns: int | None, problem: str | None = None
) -> Outage:
    """Return the parts of one outage; ``problem`` is what the stream itself showed.

    It is the longest time without an ack, up to the first ack of a message that left after the strike: that
    one can only be a new leader's. A new leader of JetStream's also acks messages that the old one had taken.
    """
    again = min(ack.acked_ns for ack in acks if ack.sent_ns > strike.ended_ns)
    times = sorted(ack.acked_ns for ack in acks if ack.acked_ns <= again)
    before = [at for at in times if at <= strike.begun_ns][-1:] or [strike.begun_ns]
    times = before + [at for at in times if at > strike.begun_ns]
    last, first = max(pairwise(times), key=lambda pair: pair[1] - pair[0])
    return Outage(
        whole_ms=(first - last) / 1e6,
        seen_ms=_ms(strike.begun_ns, seen_ns),
        elected_ms=_ms(seen_ns, led_ns),
        acked_ms=_ms(led_ns, first),
        problem=problem or _problem(strike, acks),
    )


def first_logged(lines: Iterable[str], pattern: re.Pattern[str], since_ns: int) -> int | None:
    """Return the time of the first line that fits, not before ``since_ns``; None if there is none.

    Stamps are whole milliseconds, cut off: a line of the same millisecond counts.
    """
    times = (stamp_ns(line) for line in lines if pattern.search(line))
    return min((at for at in times if at is not None and at >= since_ns - 1_000_000), default=None)


def stamp_ns(line: str) -> int | None:
    """Return when a log line was written; None without milliseconds."""
    found = STAMP.match(line)
    if found is None:
        return None
    moment = datetime.strptime(found[1], "%Y-%m-%dT%H:%M:%S.%f").replace(tzinfo=UTC)
    return int(moment.timestamp()) * 1_000_000_000 + moment.microsecond * 1000


def _ms(begun_ns: int | None, ended_ns: int | None) -> float | None:
    return None if begun_ns is None or ended_ns is None else (ended_ns - begun_ns) / 1e6


def _problem(strike: Strike, acks: Sequence[Ack]) -> str | None:
    """Say what must not be: an offset given to two messages, or an old leader that acks after a new one."""
    if len({ack.sequence for ack in acks}) != len(acks):
        return "two messages were acked with the same sequence"
    old = {ack.epoch for ack in acks if ack.sent_ns < strike.begun_ns} - {None}
    new = {ack.epoch for ack in acks if ack.sent_ns > strike.ended_ns} - {None}
    if old & new:
        return f"messages from before and after were acked under the same epochs: {old & new}"
    ordered = [ack.epoch for ack in sorted(acks, key=lambda ack: ack.sequence) if ack.epoch is not None]
    return None if ordered == sorted(ordered) else "epochs do not rise with the sequences"
