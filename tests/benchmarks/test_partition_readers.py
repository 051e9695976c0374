"""What is read of partitions is verified, wherever reading begins."""

import pyarrow as pa
import pytest

from benchmarks.meter import Unverified
from benchmarks.partition_readers import Partitions


def batch(first: int, last: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(range(first, last + 1))], ["offset"])


def test_a_partition_is_read_from_anywhere_to_its_end_and_then_from_its_start() -> None:
    partitions = Partitions({"orders/0": 10, "orders/1": 5})

    assert not partitions.take("orders/0", batch(4, 6))
    assert partitions.take("orders/1", batch(0, 4))
    assert partitions.take("orders/0", batch(7, 9))
    assert not partitions.take("orders/0", batch(0, 3))


def test_records_that_are_missing_or_come_twice_are_seen() -> None:
    partitions = Partitions({"orders/0": 10})
    partitions.take("orders/0", batch(0, 3))

    for wrong in (batch(5, 6), batch(3, 4)):
        with pytest.raises(Unverified, match="where 4 comes next"):
            partitions.take("orders/0", wrong)


def test_a_partition_that_comes_back_may_begin_anywhere() -> None:
    partitions = Partitions({"orders/0": 10})
    partitions.take("orders/0", batch(0, 3))
    partitions.begin(["orders/0"])

    assert not partitions.take("orders/0", batch(6, 7))
