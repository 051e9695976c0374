"""So many stored bytes reach as far as adding up every batch says, whatever has become of the log."""

import pytest
from hypothesis import settings
from hypothesis.stateful import invariant

from envelope.types import Offset
from jetstream.log.search import batches_within
from tests.support.example_counts import examples
from tests.support.log_life import LogLife, added_up, batches_of


class StoredBytesModel(LogLife):
    """The model is `added_up`."""

    @invariant()
    def reaches_as_far_as_adding_up_every_batch_says(self) -> None:
        log = self.log
        batches = batches_of(log)
        start, end = log.log_start_offset, log.log_end_offset
        middle = (start + end) // 2
        whole = sum(batch.bytes for batch in batches)
        for offset in {start, middle} - {end}:
            for stop in {middle, end}:
                for max_bytes in (1, whole // 3 + 1, whole - 1, whole, 2**63 - 1):
                    found = batches_within(log.reader, Offset(offset), max_bytes, Offset(stop))
                    assert found == added_up(batches, offset, max_bytes, stop)


TestStoredBytes = StoredBytesModel.TestCase
TestStoredBytes.settings = settings(max_examples=examples(20), stateful_step_count=15)


@pytest.mark.deep
class TestStoredBytesForLong(StoredBytesModel.TestCase):  # type: ignore[misc,valid-type]  # made by hypothesis
    """The same, longer."""

    settings = settings(max_examples=1000, stateful_step_count=40, deadline=None)
