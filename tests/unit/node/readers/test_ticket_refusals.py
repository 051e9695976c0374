"""How many refusals of tickets reach the audit, whoever causes how many."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from jetstream.node.readers.ticket_refusals import (
    ALL_AT_ONCE,
    ALL_PER_SECOND,
    HOST_AT_ONCE,
    HOST_PER_SECOND,
    RefusalRates,
)

DAYS, RECORD_BYTES = 90, 512


def test_of_one_host_some_are_admitted_and_another_one_is_told_how_many_were_not() -> None:
    rates = RefusalRates(0)
    assert [rates.admitted("a", 0) for _ in range(1000)] == [0] * HOST_AT_ONCE + [None] * (
        1000 - HOST_AT_ONCE
    )
    assert rates.admitted("b", 0) == 1000 - HOST_AT_ONCE
    assert rates.admitted("a", 1 / HOST_PER_SECOND) == 0


def test_any_number_of_hosts_share_one_bound_and_leave_nothing_behind() -> None:
    rates = RefusalRates(0)
    admitted = [rates.admitted(f"host{number}", 0) for number in range(10_000)]
    assert admitted == [0] * ALL_AT_ONCE + [None] * (10_000 - ALL_AT_ONCE)
    assert len(rates._hosts) == ALL_AT_ONCE
    later = HOST_AT_ONCE / HOST_PER_SECOND
    assert rates.admitted("last", later) == 10_000 - ALL_AT_ONCE
    assert list(rates._hosts) == ["last"]


def test_three_nodes_that_are_flooded_for_ninety_days_do_not_fill_the_audit() -> None:
    assert 3 * RECORD_BYTES * (ALL_AT_ONCE + DAYS * 24 * 3600 * ALL_PER_SECOND) < 1 << 30


@given(st.lists(st.tuples(st.sampled_from("abcdefghijklmn"), st.floats(0, 100)), max_size=400))
def test_no_bound_is_overrun_and_all_are_counted(events: list[tuple[str, float]]) -> None:
    now, rates = 0.0, RefusalRates(0)
    admitted, withheld = Counter[str](), 0
    for host, pause in events:
        now += pause
        before = rates.admitted(host, now)
        if before is not None:
            admitted[host] += 1
            withheld += before
        assert admitted[host] <= HOST_AT_ONCE + now * HOST_PER_SECOND + 1e-6
        assert admitted.total() <= ALL_AT_ONCE + now * ALL_PER_SECOND + 1e-6
    assert admitted.total() + withheld + rates._withheld == len(events)
