"""Sets of offsets as sorted, disjoint, half-open ranges."""

from envelope.types import Offset

OffsetRange = tuple[Offset, Offset]


def with_range(ranges: tuple[OffsetRange, ...], start: Offset, end: Offset) -> tuple[OffsetRange, ...]:
    """Return ``ranges`` with ``[start, end)`` added; ranges that touch become one."""
    if start >= end:
        return ranges
    apart = [found for found in ranges if found[1] < start or found[0] > end]
    joined = [found for found in ranges if found not in apart]
    start = min([start, *(found[0] for found in joined)])
    end = max([end, *(found[1] for found in joined)])
    return tuple(sorted([*apart, (start, end)]))


def above(ranges: tuple[OffsetRange, ...], start: Offset) -> tuple[OffsetRange, ...]:
    """Return the part of ``ranges`` from ``start`` on."""
    return tuple((max(found[0], start), found[1]) for found in ranges if found[1] > start)


def below(ranges: tuple[OffsetRange, ...], end: Offset) -> tuple[OffsetRange, ...]:
    """Return the part of ``ranges`` before ``end``."""
    return tuple((found[0], min(found[1], end)) for found in ranges if found[0] < end)


def without_range(ranges: tuple[OffsetRange, ...], start: Offset, end: Offset) -> tuple[OffsetRange, ...]:
    """Return ``ranges`` without ``[start, end)``."""
    return (*below(ranges, start), *above(ranges, end)) if start < end else ranges
