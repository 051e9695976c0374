"""What the name of a stream tells of partitions."""

import pytest

from envelope.partitions import whole_in


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("orders/2", "orders"),
        ("shop/orders/17", "shop/orders"),
        ("orders", None),
        ("shop/orders", None),
        ("2", None),
        ("orders/²", None),
        ("orders/2x", None),
    ],
)
def test_the_name_of_a_partition_has_that_of_its_stream(name: str, whole: str | None) -> None:
    assert whole_in(name) == whole
