"""Refused offsets, changed by the one who owns them and by those who find damage meanwhile."""

from collections.abc import Callable, Iterator
from typing import SupportsIndex

import pytest

from envelope.errors import CorruptDataError
from envelope.types import Offset
from jetstream.log.segments.corrupt_ranges import CorruptRanges, OffsetRange, above


def ranges(*bounds: tuple[int, int]) -> tuple[OffsetRange, ...]:
    return tuple((Offset(start), Offset(end)) for start, end in bounds)


def found(*bounds: tuple[int, int]) -> CorruptRanges:
    corrupt = CorruptRanges("orders")
    for start, end in ranges(*bounds):
        corrupt.add(start, end)
    return corrupt


def test_what_is_found_is_refused_from_then_on() -> None:
    corrupt = found((4, 6), (1, 2), (4, 6), (5, 8))
    assert corrupt.ranges == ((1, 2), (4, 8))
    for offset in (0, 2, 3, 8):
        corrupt.refuse(Offset(offset))
    with pytest.raises(CorruptDataError) as caught:
        corrupt.refuse(Offset(7))
    assert caught.value.detail == {"offset": 7, "corrupt_start": 4, "corrupt_end": 8}


def test_what_is_found_since_the_owner_looked_is_not_lost() -> None:
    corrupt = found((1, 2))
    wanted = above(corrupt.ranges, Offset(2))
    corrupt.add(Offset(5), Offset(6))
    corrupt.replace(wanted, Offset(2), Offset(9))
    assert corrupt.ranges == ((5, 6),)


def test_what_was_found_before_a_truncation_does_not_come_back_after_it() -> None:
    corrupt = found((1, 3), (5, 6), (8, 9))
    corrupt.replace((), Offset(2), Offset(6))
    assert corrupt.ranges == ((2, 3), (5, 6))
    corrupt.replace((), Offset(6), Offset(9))
    assert not corrupt.ranges


class InterruptibleList(list[OffsetRange]):
    """Lets somebody act when somebody else is about to look at it, or takes from it."""

    before_look: Callable[[], None] | None = None
    around_removal: Callable[[], object] | None = None

    def __iter__(self) -> Iterator[OffsetRange]:
        act, self.before_look = self.before_look, None
        if act is not None:
            act()
        return super().__iter__()

    def __delitem__(self, place: SupportsIndex | slice) -> None:
        assert self.around_removal is not None
        self.around_removal()
        super().__delitem__(place)
        self.around_removal()


def test_whoever_looks_while_the_owner_takes_over_misses_nothing() -> None:
    corrupt = CorruptRanges("orders")
    corrupt._found = found = InterruptibleList()
    corrupt.add(Offset(5), Offset(6))
    seen: list[tuple[OffsetRange, ...]] = []
    found.around_removal = lambda: seen.append(corrupt.ranges)
    found.before_look = lambda: corrupt.replace((), Offset(0), Offset(9))
    assert [corrupt.ranges, *seen] == [((5, 6),)] * 3
