"""What Spark queries read, over any streams, limits, growth, crashes and losses."""

import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from envelope.errors import RequestError
from jetstream.protocol.request_base import INTEGER_MAX
from jetstream.spark.options.source_options import SourceOptions, parse_source_options
from jetstream.spark.reading.offsets import (
    INITIAL,
    Offsets,
    StreamOffset,
    decode_offsets,
    encode_offsets,
    is_initial,
)
from jetstream.spark.reading.pieces import pieces_of
from jetstream.spark.reading.planning import (
    Bounds,
    IncarnationRange,
    MicroBatches,
    MicroBatchLimit,
    StreamBounds,
    checked_ranges,
    next_offsets,
    shared_out,
    starting_offsets,
)

NAMES = ("orders/0", "orders/1", "shop", "späti")
offsets = st.integers(0, INTEGER_MAX)
sizes = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 10_000), max_size=8)


# --- the checkpoint ---------------------------------------------------------------------------------------


@st.composite
def places(draw: st.DrawFn) -> StreamOffset:
    start, offset = sorted((draw(offsets), draw(offsets)))
    return StreamOffset(draw(st.text(min_size=1)), offset, draw(st.sampled_from((None, start))))


@given(st.dictionaries(st.text(), places()))
def test_every_checkpoint_is_read_as_it_was_written(written: Offsets) -> None:
    assert decode_offsets(json.loads(json.dumps(encode_offsets(written)))) == written


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(("v", "streams", "id", "offset", "start", "a")), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(("v", "streams", "initial", "a")), values | st.just(1)))
def test_any_other_json_is_refused_or_means_something(told: dict[str, object]) -> None:
    try:
        understood = decode_offsets(told)
    except RequestError:
        return
    assert encode_offsets(understood)["streams"] == told["streams"]


# --- sharing ----------------------------------------------------------------------------------------------


@given(st.integers(0, 30_000), sizes, st.integers(0, 1000))
def test_a_limit_is_given_out_whole_and_fairly(limit: int, wanted: dict[str, int], turn: int) -> None:
    shares = shared_out(limit, wanted, turn)
    total = sum(wanted.values())
    assert sum(shares.values()) == min(limit, total)
    assert all(1 <= share <= wanted[name] for name, share in shares.items())
    if limit >= len(wanted):
        assert shares.keys() == wanted.keys(), "nobody is starved"
        bigger_has_more = sorted(shares, key=lambda name: (wanted[name], shares[name]))
        for smaller, larger in pairwise(bigger_has_more):
            assert shares[smaller] <= shares[larger] + 1


# --- one batch --------------------------------------------------------------------------------------------


@st.composite
def backlogs(draw: st.DrawFn) -> tuple[Offsets, dict[str, StreamBounds]]:
    resumed, bounds = {}, {}
    for stream in draw(st.sets(st.sampled_from(NAMES))):
        start, place, end = sorted(draw(st.tuples(*[st.integers(0, 200)] * 3)))
        bounds[stream] = StreamBounds("x", start, end)
        resumed[stream] = StreamOffset("x", place, draw(st.sampled_from((None, place))))
    return resumed, bounds


maybe_limits = st.none() | st.integers(1, 500)
admissions = st.builds(MicroBatchLimit, maybe_limits, maybe_limits, st.floats(0, 100))


@given(backlogs(), admissions, st.floats(0, 200))
def test_a_batch_stays_within_its_limits(
    backlog: tuple[Offsets, dict[str, StreamBounds]], limit: MicroBatchLimit, waited_s: float
) -> None:
    resumed, bounds = backlog
    ends = next_offsets(resumed, bounds, limit, waited_s=waited_s)
    assert ends.keys() == resumed.keys()
    for stream, end in ends.items():
        assert resumed[stream].offset <= end.offset <= bounds[stream].end
        assert (end.incarnation, end.start) == (resumed[stream].incarnation, resumed[stream].start)
    read = sum(ends[stream].offset - place.offset for stream, place in resumed.items())
    there = sum(bounds[stream].end - place.offset for stream, place in resumed.items())
    is_enough = limit.min_offsets is None or there >= limit.min_offsets or waited_s >= limit.max_delay_s
    wanted = there if limit.max_offsets is None else min(there, limit.max_offsets)
    assert read == (wanted if is_enough else 0)


# --- pieces -----------------------------------------------------------------------------------------------


@st.composite
def ranges(draw: st.DrawFn) -> list[IncarnationRange]:
    found = []
    for stream in draw(st.sets(st.sampled_from(NAMES))):
        start, end = sorted((draw(st.integers(0, 300)), draw(st.integers(0, 300))))
        found.append(IncarnationRange(stream, "x", start, end))
    return found


boundaries = st.dictionaries(st.sampled_from(NAMES), st.lists(st.integers(0, 300), max_size=20).map(sorted))


@given(ranges(), st.none() | st.integers(1, 50), st.none() | st.integers(1, 400), boundaries)
def test_pieces_tile_their_ranges(
    whole: list[IncarnationRange],
    min_partitions: int | None,
    max_records: int | None,
    known: dict[str, list[int]],
) -> None:
    pieces = pieces_of(whole, min_partitions=min_partitions, max_records=max_records, boundaries=known)
    there = [each for each in whole if each.size]
    for each in there:
        own = [piece for piece in pieces if piece.stream == each.stream]
        assert [own[0].start, own[-1].end] == [each.start, each.end]
        assert [piece.end for piece in own[:-1]] == [piece.start for piece in own[1:]]
    assert {piece.stream for piece in pieces} == {each.stream for each in there}
    assert all(piece.size > 0 for piece in pieces)
    assert all(piece.size <= (max_records or piece.size) for piece in pieces)
    assert len(pieces) >= min(min_partitions or 0, sum(each.size for each in there))


# --- a query ----------------------------------------------------------------------------------------------


class Query:
    """Spark: writes an end down, runs the batch, crashes between, and goes on from what it has written."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.batches = MicroBatches(options)
        self.ends: list[str] = []
        self.committed = 0
        self.read: Counter[tuple[str, str, int]] = Counter()
        self.now_s = 0.0

    def start(self, batch: int) -> dict[str, object]:
        """Of a batch: Spark asks for the initial offset again whenever it runs the first one."""
        return json.loads(self.ends[batch - 1]) if batch else dict(INITIAL)

    def plan(self, bounds: Bounds) -> None:
        if len(self.ends) > self.committed:
            return
        start = self.start(len(self.ends))
        joining = starting_offsets(self.options, bounds, {}) if is_initial(start) else None
        self.now_s += 1
        planned = self.batches.next(decode_offsets(start), bounds, self.now_s, joining=joining)
        end = json.dumps(encode_offsets(planned.offsets))
        if not self.ends or end != self.ends[-1]:
            self.ends.append(end)

    def run(self, bounds: Bounds) -> None:
        if len(self.ends) == self.committed:
            return
        start, end = self.start(self.committed), json.loads(self.ends[self.committed])
        found, _ = checked_ranges(
            decode_offsets(start),
            decode_offsets(end),
            bounds,
            fail_on_data_loss=self.options.fail_on_data_loss,
        )
        for each in found:
            assert bounds[each.stream].incarnation == each.incarnation
            assert bounds[each.stream].start <= each.start < each.end <= bounds[each.stream].end
            self.read.update(
                (each.stream, each.incarnation, offset) for offset in range(each.start, each.end)
            )
        self.committed += 1

    def crash(self) -> None:
        self.batches = MicroBatches(self.options)

    def step(self, what: str, bounds: Bounds) -> None:
        if what == "plan":
            self.plan(bounds)
        elif what == "run":
            self.run(bounds)
        elif what == "crash":
            self.crash()

    def finish(self, bounds: Bounds) -> None:
        before = -1
        while before < self.committed:
            before = self.committed
            self.now_s += 1_000
            self.plan(bounds)
            self.run(bounds)


@st.composite
def queries(draw: st.DrawFn, *, fail: bool) -> SourceOptions:
    options = parse_source_options(
        {
            "servers": "nats://one:4222",
            "streamPattern": ".*",
            "startingOffsets": draw(st.sampled_from(("earliest", "latest"))),
        },
        streaming=True,
    )
    return replace(
        options,
        max_offsets=draw(st.none() | st.integers(1, 9)),
        min_offsets=draw(st.none() | st.integers(1, 9)),
        max_delay_s=10.0,
        fail_on_data_loss=fail,
    )


growth = st.tuples(st.just("grow"), st.sampled_from(NAMES), st.integers(0, 20))
spark = st.sampled_from((("plan", "", 0), ("run", "", 0), ("crash", "", 0)))
loss = st.tuples(st.sampled_from(("remove", "cut", "delete")), st.sampled_from(NAMES), st.integers(0, 20))


@given(queries(fail=True), st.lists(growth | spark | spark, max_size=40))
def test_each_record_is_read_once_whatever_crashes(
    options: SourceOptions, steps: list[tuple[str, str, int]]
) -> None:
    query, bounds = Query(options), {"shop": StreamBounds("1", 3, 10)}
    begin: dict[str, int] = {}
    for what, stream, records in [*steps, ("plan", "", 0)]:
        if what == "grow":
            life = bounds.get(stream, StreamBounds("1", 0, 0))
            bounds[stream] = life._replace(end=life.end + records)
        if what == "plan" and not begin:
            begin = {name: place.offset for name, place in starting_offsets(options, bounds, {}).items()}
        query.step(what, bounds)
    query.finish(bounds)
    wanted = {
        (stream, "1", offset)
        for stream, now in bounds.items()
        for offset in range(begin.get(stream, now.start), now.end)
    }
    assert query.read == dict.fromkeys(wanted, 1)


@given(queries(fail=False), st.lists(growth | spark | spark | loss, max_size=40))
def test_after_any_losses_a_query_reads_all_that_is_left_and_comes_to_rest(
    options: SourceOptions, steps: list[tuple[str, str, int]]
) -> None:
    query, bounds, lives = Query(options), {"shop": StreamBounds("1", 3, 10)}, 1
    for what, stream, records in steps:
        now = bounds.get(stream)
        if what == "grow":
            if now is None:
                lives += 1
                now = StreamBounds(str(lives), 0, 0)
            bounds[stream] = now._replace(end=now.end + records)
        elif what == "delete":
            bounds.pop(stream, None)
        elif what == "remove" and now is not None:
            bounds[stream] = now._replace(start=min(now.start + records, now.end))
        elif what == "cut" and now is not None:
            bounds[stream] = now._replace(end=max(now.end - records, now.start))
        query.step(what, bounds)
    query.finish(bounds)
    at_rest = decode_offsets(json.loads(query.ends[-1]))
    assert {stream: (place.incarnation, place.offset) for stream, place in at_rest.items()} == {
        stream: (now.incarnation, now.end) for stream, now in bounds.items()
    }
