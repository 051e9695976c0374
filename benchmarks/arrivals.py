"""What members of a group saw, joined: who read on after a change, and how long nothing came (pure).

Times are nanoseconds since 1970, on the one clock of a machine.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple


class Arrival(NamedTuple):
    """A record, or an ack, of one member."""

    stream: str
    offset: int
    at_ns: int


def taken_over_ms(arrivals: Iterable[Arrival], streams: Iterable[str], since_ns: int) -> float | None:
    """Return when the last one of ``streams`` had a record again after ``since_ns``; None if one has none."""
    first: dict[str, int] = {}
    for stream, _, at_ns in arrivals:
        if at_ns > since_ns:
            first[stream] = min(at_ns, first.get(stream, at_ns))
    moments = [first.get(stream) for stream in streams]
    known = [at_ns for at_ns in moments if at_ns is not None]
    return (max(known) - since_ns) / 1e6 if known and len(known) == len(moments) else None


def longest_pause_ms(arrivals: Iterable[Arrival], stream: str, begun_ns: int, ended_ns: int) -> float:
    """Return the longest time between two arrivals of ``stream``, both ends of the window among them."""
    inside = (each.at_ns for each in arrivals if each.stream == stream and begun_ns < each.at_ns < ended_ns)
    times = [begun_ns, *sorted(inside), ended_ns]
    return max(later - earlier for earlier, later in pairwise(times)) / 1e6


def outage_ms(times: Sequence[int], struck_ns: int) -> float | None:
    """Return the longest time between two acks that ends after ``struck_ns``; None if there is no such ack.

    Acks may still have come of what was done before the strike, and the pause comes after them.
    """
    ordered = sorted(times)
    before = [at for at in ordered if at <= struck_ns][-1:] or [struck_ns]
    after = [at for at in ordered if at > struck_ns]
    gaps = [later - earlier for earlier, later in pairwise(before + after)]
    return max(gaps) / 1e6 if gaps else None
