"""How long a waiting reader waits: publishes and arrivals joined by offset, as percentiles (pure)."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Published:
    """One message, in nanoseconds since 1970 on the publisher's clock."""

    offset: int
    sent_ns: int
    acked_ns: int


@dataclass(frozen=True, slots=True)
class WakeUps:
    """Times in microseconds, one for each message of the measured part."""

    append_to_reader: tuple[float, ...]
    publish_to_reader: tuple[float, ...]
    ack_to_reader: tuple[float, ...]
    """Negative where the reader had the record before its publisher had the ack."""
    publish_to_ack: tuple[float, ...]
    problem: str | None = None


def joined(published: Sequence[Published], arrivals: Sequence[Sequence[int]], skip: int) -> WakeUps:
    """Join both sides; the first ``skip`` messages are warm-up.

    ``arrivals``: [offset, append time, arrival] each. The problem is set unless the acked offsets and those
    that arrived are 0, 1, 2 … both.
    """
    expected = list(range(len(published)))
    problem = None
    if [message.offset for message in published] != expected:
        problem = "the acked offsets are not 0, 1, 2 …"
    elif [arrival[0] for arrival in arrivals] != expected:
        problem = "the reader did not get every record once and in order"
    pairs = list(zip(published, arrivals, strict=False))[skip:]
    return WakeUps(
        append_to_reader=tuple((arrival[2] - arrival[1]) / 1e3 for _, arrival in pairs),
        publish_to_reader=tuple((arrival[2] - message.sent_ns) / 1e3 for message, arrival in pairs),
        ack_to_reader=tuple((arrival[2] - message.acked_ns) / 1e3 for message, arrival in pairs),
        publish_to_ack=tuple((message.acked_ns - message.sent_ns) / 1e3 for message, _ in pairs),
        problem=problem,
    )


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least ``share`` (0 to 1) of all values do not exceed; 0 of none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    rank = -(-len(ordered) * round(share * 1000) // 1000)
    return ordered[max(0, rank - 1)]
