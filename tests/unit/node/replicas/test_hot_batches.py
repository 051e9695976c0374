"""The newest batches in memory: what is found, what is not, and how much is kept."""

from envelope.types import LeaderEpoch, Offset
from jetstream.log.format.batch import BatchFlags, UnsealedBatch, encode, verified_batches
from jetstream.node.replicas.hot_batches import HotBatches
from tests.support.logs import NOW, values_batch


def sealed(base: int, count: int = 2, size: int = 10) -> UnsealedBatch:
    batch = encode(values_batch([b"x" * size] * count, base, NOW), Offset(base), LeaderEpoch(1))
    batch.seal(BatchFlags(0))
    return batch


def spans(data: object) -> list[tuple[int, int]]:
    assert isinstance(data, bytes | memoryview)
    return [(header.base, header.next) for header, _ in verified_batches(data)]


def test_batches_are_found_from_where_one_begins_to_the_newest() -> None:
    hot = HotBatches(1 << 20, 1 << 20)
    hot.add([sealed(0), sealed(2)])
    hot.add([sealed(4)])
    for base in (0, 2, 4, 2):
        found = hot.find(Offset(base))
        assert found is not None
        end, data = found
        assert (end, spans(data)) == (6, [(at, at + 2) for at in range(base, 6, 2)])
    hot.add([sealed(6)])
    found = hot.find(Offset(2))
    assert found is not None
    assert found[0] == 8, "what came since is there too"


def test_what_is_not_all_in_memory_is_not_found() -> None:
    hot = HotBatches(1 << 20, 1 << 20)
    assert hot.find(Offset(0)) is None
    hot.add([sealed(4), sealed(6)])
    for base in (0, 3, 5, 8, 9):
        assert hot.find(Offset(base)) is None


def test_as_many_are_found_as_fit_and_one_however_large() -> None:
    small, large = sealed(0), sealed(4, size=100_000)
    for base, limit, end in ((0, 2 * small.size, 4), (0, 2 * small.size - 1, 2), (4, 1, 6), (0, 1 << 20, 8)):
        hot = HotBatches(1 << 20, limit)
        hot.add([small, sealed(2), large, sealed(6)])
        found = hot.find(Offset(base))
        assert found is not None
        assert found[0] == end
        assert spans(found[1])[-1][1] == end


def test_what_is_committed_is_forgotten() -> None:
    hot = HotBatches(1 << 20, 1 << 20)
    hot.add([sealed(0), sealed(2), sealed(4)])
    assert hot.find(Offset(0)) is not None
    hot.forget(Offset(2))
    assert hot.find(Offset(0)) is None
    found = hot.find(Offset(2))
    assert found is not None
    assert found[0] == 6
    hot.forget(Offset(6))
    assert hot.find(Offset(4)) is None


def test_the_oldest_are_forgotten_where_they_are_too_many() -> None:
    size = sealed(0).size
    hot = HotBatches(2 * size, 1 << 20)
    hot.add([sealed(0), sealed(2), sealed(4)])
    assert hot.find(Offset(0)) is None
    assert hot.find(Offset(2)) is not None
    hot.add([sealed(6, size=100_000)])
    assert hot.find(Offset(4)) is None
    assert hot.find(Offset(6)) is not None, "one is kept however large"


def test_batches_behind_a_gap_begin_anew() -> None:
    hot = HotBatches(1 << 20, 1 << 20)
    hot.add([sealed(0)])
    hot.add([sealed(4)])
    assert hot.find(Offset(0)) is None
    assert hot.find(Offset(4)) is not None
