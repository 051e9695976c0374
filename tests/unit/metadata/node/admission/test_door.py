"""Who is let in, and what is left for whom."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.node.admission.descriptors import DescriptorBudget, DescriptorShare
from metadata.node.admission.door import STRANGERS_MAX, AdmissionVerdict, Bounds

BOUNDS = Bounds(connections=10, strangers=4)


@pytest.mark.parametrize(
    ("connected", "strangers", "has_room", "verdict"),
    [
        (0, 0, True, AdmissionVerdict.LET_IN),
        (9, 3, True, AdmissionVerdict.LET_IN),
        (9, 4, True, AdmissionVerdict.DISPLACE),
        (10, 1, True, AdmissionVerdict.DISPLACE),
        (10, 0, True, AdmissionVerdict.REFUSE),
        (5, 1, False, AdmissionVerdict.DISPLACE),
        (5, 0, False, AdmissionVerdict.REFUSE),
    ],
)
def test_one_too_many_takes_the_place_of_who_says_nothing(
    connected: int, strangers: int, has_room: bool, verdict: AdmissionVerdict
) -> None:
    assert BOUNDS.verdict(connected, strangers, has_room=has_room) is verdict


@given(comings=st.lists(st.booleans(), max_size=60), room=st.integers(0, 20))
def test_there_are_never_more_than_the_bounds_say(comings: list[bool], room: int) -> None:
    """True: somebody comes; False: the stranger that came first says who it is."""
    known = strangers = 0
    for comes in comings:
        if not comes:
            known, strangers = known + min(strangers, 1), max(strangers - 1, 0)
            continue
        verdict = BOUNDS.verdict(known + strangers, strangers, has_room=known + strangers < room)
        strangers += verdict is AdmissionVerdict.LET_IN
        assert known + strangers <= min(BOUNDS.connections, room)
        assert strangers <= BOUNDS.strangers
        assert verdict is not AdmissionVerdict.REFUSE or known == min(BOUNDS.connections, room)


@given(limit=st.integers(64, 1 << 30))
def test_what_readers_and_the_node_may_take_leaves_something_for_what_must_go_on(limit: int) -> None:
    budget = DescriptorBudget(limit)
    readers, node = budget.end_of(DescriptorShare.READERS), budget.end_of(DescriptorShare.NODE)
    assert 0 < readers < node < limit
    strangers = min(budget.strangers, STRANGERS_MAX)
    assert readers + 2 * strangers <= limit, "idle peers at the two other ports fit beside all readers"
