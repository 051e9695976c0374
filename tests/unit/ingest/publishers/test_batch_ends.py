"""How many records a repeat is answered with: known for as many batches as there are ids."""

from envelope.types import Offset
from jetstream.ingest.publishers.batch_ends import BatchEnds
from jetstream.ingest.publishers.dedupe import DedupeWindow


def known(ends: BatchEnds, batches: int) -> list[int]:
    return [number for number in range(batches) if ends.records_ending_at(Offset(3 * number + 2)) == 3]


def test_as_many_are_kept_as_ids_are_remembered_and_at_most_twice_as_many() -> None:
    dedupe = DedupeWindow(1000, 20)
    ends = BatchEnds(dedupe, kept_min=5)
    for number in range(100):
        ends.remember(Offset(3 * number + 2), 3)
        kept = known(ends, number + 1)
        assert kept == list(range(number + 1 - len(kept), number + 1))
        assert min(number + 1, 20) <= len(kept) <= 40
    dedupe.resize(1000, 2)
    ends.remember(Offset(302), 3)
    assert len(known(ends, 101)) == 6
