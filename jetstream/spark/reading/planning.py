"""The ranges that a query reads next, and which are gone: decided from the cluster's answers; pure.

`MicroBatches.next` plans a batch before Spark writes its end down; `checked_ranges` returns its ranges when
it runs, and whenever it runs again. Both find losses: the first before anything is written down, so
that the query goes on there once the loss is accepted; the second also in a batch that was planned long ago.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Final, NamedTuple

from envelope.errors import RequestError, UnknownStream
from envelope.spark_errors import DataLoss, InvalidOption
from jetstream.spark.options.places import EARLIEST, LATEST, StreamPlace
from jetstream.spark.options.source_options import SourceOptions
from jetstream.spark.reading.offsets import Offsets, StreamOffset

_ACCEPT: Final = "set failOnDataLoss to false to go on with what is there"


class StreamBounds(NamedTuple):
    """The committed range of a stream, as the cluster reports it."""

    incarnation: str
    start: int
    """The log start offset."""
    end: int
    """The high watermark."""


class IncarnationRange(NamedTuple):
    """``[start, end)`` of one life of one stream."""

    stream: str
    incarnation: str
    start: int
    end: int

    @property
    def size(self) -> int:
        """How many offsets it has."""
        return self.end - self.start


class ReadPiece(NamedTuple):
    """The range of a stream that a task reads."""

    range: IncarnationRange
    may_miss: bool
    """Records that retention removes before they are read are left out, instead of failing the task."""


Bounds = Mapping[str, StreamBounds]


class _Losses:
    """The records that a query cannot read any more: fails, or collects warnings."""

    def __init__(self, *, fail: bool) -> None:
        self._fail = fail
        self.warnings: list[str] = []

    def found(self, stream: str, text: str, **numbers: int | str) -> None:
        """Raise `DataLoss`, or take note.

        Raises:
            DataLoss: the query is to fail.
        """
        if self._fail:
            raise DataLoss(f"{stream}: {text}; {_ACCEPT}", stream=stream, **numbers)
        self.warnings.append(f"{stream}: {text}")


# --- where a query begins, and a batch read ends --------------------------------------------------------


def moments_of(place: StreamPlace, bounds: Bounds) -> dict[str, int]:
    """Return which moment, in microseconds, is to be looked up in each stream; empty if none is.

    Raises:
        InvalidOption: the option does not name exactly the streams that are read.
    """
    return place.of_each(bounds) if place.is_moment else {}


def starting_offsets(options: SourceOptions, bounds: Bounds, timed: Mapping[str, int]) -> Offsets:
    """Return where the query begins, if nothing was read yet.

    An offset that the options name may lie outside of ``bounds``: whoever plans with it finds that.

    Args:
        options: of the query.
        bounds: of all streams that it reads.
        timed: offsets of the first records at or after the moments of `moments_of`, or the high watermark.

    Raises:
        InvalidOption: there is no record at or after a moment, and ``startingOffsetsByTimestampStrategy`` is
            ``error``; or the option does not name exactly the streams that are read.
        UnknownStream: a stream is not in ``timed``: it was deleted between the two questions.
    """
    starting = options.starting
    if not starting.is_moment:
        return _resolved(starting.of_each(bounds), bounds)
    places = _timed(bounds, timed)
    for stream, now in sorted(bounds.items()):
        if timed[stream] >= now.end and options.no_match == "error":
            raise InvalidOption(
                f"{starting.option}: {stream} has no record so late; it has [{now.start}, {now.end}); "
                "startingOffsetsByTimestampStrategy=latest begins behind them"
            )
    return places


def ending_offsets(options: SourceOptions, bounds: Bounds, timed: Mapping[str, int]) -> Offsets:
    """Return where a batch read ends, exclusive; see `starting_offsets`.

    Raises:
        InvalidOption: the option does not name exactly the streams that are read.
        UnknownStream: see `starting_offsets`.
    """
    ending = options.ending
    return _timed(bounds, timed) if ending.is_moment else _resolved(ending.of_each(bounds), bounds)


def batch_ranges(
    options: SourceOptions, bounds: Bounds, starts: Offsets, ends: Offsets
) -> tuple[list[IncarnationRange], list[str]]:
    """Return the ranges of a batch read, and warnings.

    Args:
        options: of the read.
        bounds: of all its streams.
        starts: `starting_offsets`.
        ends: `ending_offsets`.

    Raises:
        InvalidOption: an end is before its start.
        DataLoss: retention has removed records that the options name, or they are not there yet.
    """
    for stream, start in sorted(starts.items()):
        if start.offset > ends[stream].offset:
            raise InvalidOption(
                f"{stream}: from {start.offset} ({options.starting.option}) to {ends[stream].offset} "
                f"({options.ending.option}): the end is before the start; it has "
                f"[{bounds[stream].start}, {bounds[stream].end})"
            )
    return checked_ranges(starts, ends, bounds, fail_on_data_loss=options.fail_on_data_loss)


def latest_offsets(bounds: Bounds) -> Offsets:
    """Return where everything that is committed would be read."""
    return {stream: StreamOffset(now.incarnation, now.end) for stream, now in bounds.items()}


def _timed(bounds: Bounds, timed: Mapping[str, int]) -> Offsets:
    for stream in sorted(bounds.keys() - timed.keys()):
        raise UnknownStream(f"{stream} was deleted while it was asked for a moment", stream=stream)
    return {
        stream: StreamOffset(now.incarnation, min(max(timed[stream], now.start), now.end))
        for stream, now in bounds.items()
    }


def _resolved(places: Mapping[str, int], bounds: Bounds) -> Offsets:
    return {
        stream: StreamOffset(bounds[stream].incarnation, _offset(place, bounds[stream]))
        for stream, place in places.items()
    }


def _offset(place: int, now: StreamBounds) -> int:
    return {EARLIEST: now.start, LATEST: now.end}.get(place, place)


# --- what a batch may read -------------------------------------------------------------------------------


def checked_ranges(
    start: Offsets, end: Offsets, bounds: Bounds, *, fail_on_data_loss: bool
) -> tuple[list[IncarnationRange], list[str]]:
    """Return the ranges of a batch that was planned from ``start`` to ``end``, and warnings; none is empty.

    Args:
        start: the end of the batch before.
        end: of this one; names every stream that it reads.
        bounds: what the cluster says now.
        fail_on_data_loss: raise; otherwise what is lost is left out, with a warning.

    Raises:
        DataLoss: a part of a range is not there any more, or its stream is not, or not in that life.
        RequestError: the two do not belong together.
    """
    losses = _Losses(fail=fail_on_data_loss)
    ranges = []
    for stream, place in sorted(end.items()):
        planned = IncarnationRange(stream, place.incarnation, _begin(stream, start, place), place.offset)
        kept = _kept(planned, bounds.get(stream), losses)
        if kept.size > 0:
            ranges.append(kept)
    return ranges, losses.warnings


def _begin(stream: str, start: Offsets, end: StreamOffset) -> int:
    # The same as before, and so nothing; it may say where it began.
    before = start.get(stream)
    if before == end:
        return end.offset
    if end.start is not None:
        return end.start
    if before is None or before.incarnation != end.incarnation:
        raise RequestError(f"checkpoint: {stream}: a batch that ends at {end.offset} and begins nowhere")
    return before.offset


def _kept(planned: IncarnationRange, now: StreamBounds | None, losses: _Losses) -> IncarnationRange:
    """Return the remaining part of a planned range; if none is left its end is not behind its start."""
    stream, incarnation, start, end = planned
    if start == end:
        return planned
    if end < start:
        losses.found(stream, f"went backwards: a batch from {start} to {end}", start=start, end=end)
        return planned._replace(end=start)
    if now is None or now.incarnation != incarnation:
        _log_gone(stream, StreamOffset(incarnation, start), now, losses, end=end)
        return planned._replace(end=start)
    if now.end < end:
        _log_behind(stream, end, now, losses)
    if now.start > start:
        _log_removed(stream, start, now, losses)
    return planned._replace(start=max(start, now.start), end=min(end, now.end))


def _log_gone(
    stream: str, place: StreamOffset, now: StreamBounds | None, losses: _Losses, **numbers: int
) -> None:
    told: dict[str, int | str] = {"offset": place.offset, "incarnation": place.incarnation, **numbers}
    if now is None:
        text = "it is deleted, or not among the streams that the options name"
    else:
        text = f"it was deleted and created again: that was {place.incarnation}, now it is {now.incarnation}"
        told["current_incarnation"] = now.incarnation
    losses.found(stream, f"the checkpoint is at {place.offset}, and {text}", **told)


def _log_behind(stream: str, offset: int, now: StreamBounds, losses: _Losses) -> None:
    losses.found(
        stream,
        f"offset {offset} is beyond the high watermark {now.end}: the stream went backwards, or never had it",
        offset=offset,
        high_watermark=now.end,
    )


def _log_removed(stream: str, offset: int, now: StreamBounds, losses: _Losses) -> None:
    losses.found(
        stream,
        f"records {offset} to {now.start - 1} are not there any more: retention has removed them",
        offset=offset,
        log_start_offset=now.start,
    )


# --- what comes next -------------------------------------------------------------------------------------


def resumed_offsets(
    start: Offsets, bounds: Bounds, joining: Offsets, *, fail_on_data_loss: bool
) -> tuple[Offsets, list[str]]:
    """Return where the next batch begins in each stream that is there, and warnings.

    A place that is not where the batch before has ended has it in ``start`` too.

    Args:
        start: where the batch before has ended.
        bounds: of all streams that the query reads.
        joining: where streams that are not in ``start`` begin; those in neither begin at the earliest record.
        fail_on_data_loss: raise; otherwise a stream goes on at the nearest record that is there.

    Raises:
        DataLoss: a stream of ``start`` is gone, in another life, or does not have that offset.
    """
    losses = _Losses(fail=fail_on_data_loss)
    for stream in sorted(start.keys() - bounds.keys()):
        _log_gone(stream, start[stream], None, losses)
    places = {}
    for stream, now in sorted(bounds.items()):
        known = start.get(stream)
        wanted = joining.get(stream) if known is None else known
        offset = _resumed(stream, wanted, now, losses)
        goes_on = known is not None and (known.incarnation, known.offset) == (now.incarnation, offset)
        places[stream] = StreamOffset(now.incarnation, offset, None if goes_on else offset)
    return places, losses.warnings


def _resumed(stream: str, place: StreamOffset | None, now: StreamBounds, losses: _Losses) -> int:
    if place is None:
        return now.start
    if place.incarnation != now.incarnation:
        _log_gone(stream, place, now, losses)
        return now.start
    if place.offset < now.start:
        _log_removed(stream, place.offset, now, losses)
    elif place.offset > now.end:
        _log_behind(stream, place.offset, now, losses)
    return min(max(place.offset, now.start), now.end)


@dataclass(frozen=True, slots=True)
class MicroBatchLimit:
    """How much a micro-batch reads; None: no limit."""

    max_offsets: int | None = None
    min_offsets: int | None = None
    """Rather nothing than less, but for ``max_delay_s``."""
    max_delay_s: float = inf


READ_ALL: Final = MicroBatchLimit()


def next_offsets(
    resumed: Offsets, bounds: Bounds, limit: MicroBatchLimit, *, waited_s: float = inf
) -> Offsets:
    """Return where the next batch ends.

    ``max_offsets`` are shared out in proportion to what each stream has, and each that has any gets one at
    least; if there are too few for that, the streams take turns.

    Args:
        resumed: where it begins, of all streams; see `resumed_offsets`.
        bounds: up to where there is something to read.
        limit: of the batch.
        waited_s: seconds since a batch has read something.
    """
    backlog = {stream: bounds[stream].end - place.offset for stream, place in resumed.items()}
    backlog = {stream: size for stream, size in backlog.items() if size > 0}
    total = sum(backlog.values())
    if limit.min_offsets is not None and total < limit.min_offsets and waited_s < limit.max_delay_s:
        return dict(resumed)
    if limit.max_offsets is not None:
        turn = sum(place.offset for place in resumed.values())
        backlog = shared_out(limit.max_offsets, backlog, turn)
    return {
        stream: place._replace(offset=place.offset + backlog.get(stream, 0))
        for stream, place in resumed.items()
    }


def shared_out(limit: int, sizes: Mapping[str, int], turn: int = 0) -> dict[str, int]:
    """Return the share of each in ``limit``: in proportion to its size, at least 1 and at most its size.

    The shares add up to the limit, or to all. If that is less than 1 for each, ``turn`` says which is first;
    if it counts the shares given so far, all have their turn.
    """
    names = sorted(sizes)
    if sum(sizes.values()) <= limit:
        return dict(sizes)
    if limit < len(names):
        return {names[(turn + number) % len(names)]: 1 for number in range(limit)}
    shares: dict[str, int] = {}
    total = sum(sizes.values())
    while small := [name for name in names if (limit - len(shares)) * sizes[name] < total]:
        shares |= dict.fromkeys(small, 1)
        names = [name for name in names if name not in shares]
        total = sum(sizes[name] for name in names)
    # Each takes up to its mark on a common scale, so that rounding loses nothing.
    rest, before = limit - len(shares), 0
    for name in names:
        after = before + sizes[name]
        shares[name] = after * rest // total - before * rest // total
        before = after
    return shares


class Planned(NamedTuple):
    """A decision of `MicroBatches`."""

    offsets: Offsets
    """The end of the next batch; the same as its start if there is nothing to read, or not enough."""
    warnings: list[str]


class MicroBatches:
    """Decides what each micro-batch of one run of a query reads; a machine.

    Invariants:
        No stream goes back in the same life, but where its high watermark does.
        With ``available_now`` nothing is read beyond what was there at the first call.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._limit = MicroBatchLimit(options.max_offsets, options.min_offsets, options.max_delay_s)
        self._fail = options.fail_on_data_loss
        self._available_now = False
        self._target: dict[str, StreamBounds] | None = None
        self._read_s: float | None = None
        """When a batch has read something."""

    def prepare_available_now(self) -> None:
        """Read what is there at the next call, and nothing else."""
        self._available_now = True

    def next(
        self,
        start: Offsets,
        bounds: Bounds,
        now_s: float,
        *,
        joining: Offsets | None = None,
        read_all: bool = False,
    ) -> Planned:
        """Return the end of the next batch.

        Args:
            start: where the batch before has ended.
            bounds: of all streams that the query reads.
            now_s: monotonic seconds.
            joining: of the first batch of a query, where it begins: `starting_offsets`.
            read_all: without any limit.

        Raises:
            DataLoss: see `resumed_offsets`.
        """
        resumed, warnings = resumed_offsets(start, bounds, joining or {}, fail_on_data_loss=self._fail)
        waited_s = inf if self._read_s is None or self._available_now else now_s - self._read_s
        within = self._within(bounds) if self._available_now else bounds
        ends = next_offsets(resumed, within, READ_ALL if read_all else self._limit, waited_s=waited_s)
        if any(ends[stream].offset > place.offset for stream, place in resumed.items()):
            self._read_s = now_s
        elif all(place.start is None for place in resumed.values()) and start.keys() == bounds.keys():
            return Planned(start, warnings)  # just the same: Spark compares what it has written
        return Planned(ends, warnings)

    def _within(self, bounds: Bounds) -> Bounds:
        """Return ``bounds`` without what has come since the first call."""
        if self._target is None:
            self._target = dict(bounds)
        return {stream: _cut(now, self._target.get(stream)) for stream, now in bounds.items()}


def _cut(now: StreamBounds, target: StreamBounds | None) -> StreamBounds:
    is_known = target is not None and target.incarnation == now.incarnation
    return now._replace(end=min(now.end, target.end) if target is not None and is_known else now.start)


# --- bytes -----------------------------------------------------------------------------------------------


def byte_shares(ranges: Iterable[IncarnationRange], max_bytes: int) -> dict[str, int]:
    """Return how many bytes of each range may be read, in proportion to their records; at least 1 of each."""
    sizes = {each.stream: each.size for each in ranges if each.size > 0}
    total = sum(sizes.values())
    return {stream: max(1, max_bytes * size // total) for stream, size in sizes.items()}


def cut_offsets(ends: Offsets, boundaries: Mapping[str, int]) -> Offsets:
    """Return ``ends``, where none is beyond its boundary."""
    return {
        stream: place._replace(offset=min(place.offset, boundaries.get(stream, place.offset)))
        for stream, place in ends.items()
    }
