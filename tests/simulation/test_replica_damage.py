"""What the simulated disks do when they lose bits; and each law of damage, broken by hand, is a violation."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from envelope.errors import CorruptDataError
from envelope.types import LeaderEpoch, NodeId, Offset, StreamName
from jetstream.log.segments.segment import PlanAgain
from metadata.catalog.tables import InSyncReplica, Stream
from tests.simulation.replica.checkers.damages import (
    check_filled,
    check_repaired,
    check_served,
    has_intact,
    is_beyond_repair,
)
from tests.simulation.replica.filling import holes_of, misfit
from tests.simulation.replica.log_image import Batch, LogImage
from tests.simulation.replica.reading import damaged_batches, readable, readable_end
from tests.simulation.replica.swarm import draw, with_damage
from tests.simulation.violation import Violation
from tests.support.lone_streams import LONE_ROW

A, B = NodeId("a"), NodeId("b")
END = Offset(6)


def _batch(base: int, epoch: int, *values: str) -> Batch:
    return Batch(Offset(base), LeaderEpoch(epoch), values)


W, X, Y, Z = _batch(0, 1, "w"), _batch(1, 1, "x1", "x2"), _batch(3, 1, "y"), _batch(4, 2, "z1", "z2")


def _log(*damaged: Batch) -> LogImage:
    image = LogImage(StreamName("orders"))
    for batch in (W, X, Y, Z):
        image.append(batch)
    image.sync()
    for batch in damaged:
        image.damage.flip(batch)
    return image


def _found(*damaged: Batch, reads_all: bool = False) -> LogImage:
    image = _log(*damaged)
    image.damage.opened(image.batches_from(image.origin), reads_all=reads_all)
    image.damage.look()
    return image


def _row(*isr: NodeId) -> Stream:
    members = tuple(InSyncReplica(node, f"disk-of-{node}") for node in isr)
    return replace(LONE_ROW, replicas=(A, B), isr=members, leader=A)


# --- disks ------------------------------------------------------------------------------------------------


def test_damage_is_found_by_whoever_reads_it_and_what_lies_before_it_is_read() -> None:
    image = _log(Y)
    assert not image.damage.refused
    with pytest.raises(CorruptDataError):
        readable(image, Offset(0))
    assert image.damage.refused == ((3, 4),)
    assert readable(image, Offset(0)) == [W, X]
    assert readable(image, Offset(4)) == [Z]
    with pytest.raises(CorruptDataError):
        readable(image, Offset(3))
    assert [readable_end(image, Offset(start), END) for start in (0, 3, 4)] == [3, 3, 6]


def test_a_start_forgets_what_was_found_or_reads_everything() -> None:
    image = _found(X)
    image.damage.opened(image.batches_from(image.origin), reads_all=False)
    assert (image.damage.refused, image.damage.missing) == ((), set())
    image.damage.opened(image.batches_from(image.origin), reads_all=True)
    assert (image.damage.refused, image.damage.missing) == (((1, 3),), {1})
    assert set(image.offsets()) == {"w", "y", "z1", "z2"}, "the ids in it are not known"


def test_damage_moves_nothing_and_goes_with_what_is_removed() -> None:
    image = _log()
    before = image.state(), image.records(0, END)
    for batch in (X, Z):
        image.damage.flip(batch)
    image.damage.look()
    assert (image.state(), image.records(0, END)) == before
    image.cut(4)
    assert (damaged_batches(image), image.damage.refused) == ([X], ((1, 3),))
    image.move_start(Offset(3))
    assert image.damage.is_none
    image = _found(X)
    image.reset(Offset(0))
    assert image.damage.is_none


# --- repair -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reads_all", [True, False])
def test_what_is_damaged_is_a_hole_and_only_what_was_there_fits(reads_all: bool) -> None:
    image = _found(X, Y, reads_all=reads_all)
    (hole,) = holes_of(image)
    assert (hole.base, hole.next, hole.rows) == (1, 4, 0 if reads_all else 2)
    assert misfit(image, hole, [X, Y]) is None
    for wrong in ([X], [X, _batch(3, 2, "y")], [X, _batch(3, 1, "other")], [_batch(1, 1, "a", "b", "c")]):
        assert isinstance(misfit(image, hole, wrong), CorruptDataError)
    image.damage.put_back(hole.base, hole.next)
    assert image.damage.is_none
    assert isinstance(misfit(image, hole, [X, Y]), PlanAgain)


def test_what_is_left_damaged_at_the_end_of_a_cut_log_is_a_hole() -> None:
    image = _found(X, reads_all=True)
    image.cut(3)
    (hole,) = holes_of(image)
    assert misfit(image, hole, [X]) is None


def test_a_batch_is_intact_where_it_is_durable_and_as_it_was() -> None:
    assert has_intact(_log(), X)
    assert not has_intact(_log(X), X)
    assert not has_intact(_log(), _batch(1, 2, "x1", "x2"))
    image = LogImage(StreamName("orders"))
    image.append(W)
    assert not has_intact(image, W)


def test_a_stream_is_beyond_repair_if_nobody_who_is_there_has_what_it_needs() -> None:
    hurt = {A: _log(X), B: _log(X)}
    assert is_beyond_repair(_row(A, B), END, hurt)
    assert is_beyond_repair(_row(A), END, {A: _log(Z)})
    assert is_beyond_repair(_row(A), Offset(4), {A: _log(Z), B: _log(Z)}), "who leads keeps it"
    assert not is_beyond_repair(_row(A), Offset(4), {A: _log(Z), B: _log()}), "it comes back"
    assert not is_beyond_repair(_row(B), Offset(4), {B: _log(Z)}), "it may be cut"
    assert not is_beyond_repair(_row(A, B), END, {A: _log(X), B: _log(Y)})
    assert not is_beyond_repair(_row(A), END, {A: _log(X), B: _log()}), "it comes back"


def test_a_minority_of_the_clusters_has_disks_that_lose_bits() -> None:
    swarm = draw(Random(1), frugal=False)
    drawn = [with_damage(swarm, Random(seed)) for seed in range(200)]
    hurt = [each for each in drawn if "flip" in each.faults]
    assert 10 < len(hurt) < 60
    assert {each.verifies for each in hurt} == {True, False}
    assert all(each == swarm for each in drawn if each not in hurt)


# --- the laws ---------------------------------------------------------------------------------------------


def _damage_is_served() -> None:
    check_served("a/orders", _log(X), 0, 2)


def _another_batch_is_put_back() -> None:
    check_filled("orders", _log(X), [_batch(1, 1, "a", "b")])


def _a_batch_of_another_epoch_is_put_back() -> None:
    check_filled("orders", _log(X), [_batch(1, 2, "x1", "x2")])


def _what_was_put_back_is_refused() -> None:
    check_repaired("orders", _found(X), Offset(1), Offset(3))


_BROKEN: list[tuple[Callable[[], None], str]] = [
    (_damage_is_served, r"a/orders: \[0, 2\) is served, and is damaged"),
    (_another_batch_is_put_back, r"'a', 'b'.* is put where .*'x1', 'x2'.* was"),
    (_a_batch_of_another_epoch_is_put_back, r"epoch=2.* is put where .*epoch=1.* was"),
    (_what_was_put_back_is_refused, r"\[1, 3\) is put back, and refused still"),
]


@pytest.mark.parametrize(
    ("breaks", "message"), _BROKEN, ids=[breaks.__name__.strip("_") for breaks, _ in _BROKEN]
)
def test_a_broken_law_of_damage_is_a_violation(breaks: Callable[[], None], message: str) -> None:
    with pytest.raises(Violation, match=message):
        breaks()


def test_what_the_laws_of_damage_permit_is_no_violation() -> None:
    check_served("a/orders", _log(X), 3, 6)
    check_served("a/orders", _log(X), 1, 1)
    check_filled("orders", _log(X), [X])
    check_repaired("orders", _found(X), Offset(3), Offset(4))
