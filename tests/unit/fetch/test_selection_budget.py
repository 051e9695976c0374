"""The budget of selected answers: bounded, in turns, and never held for ever."""

from hypothesis import given, settings
from hypothesis import strategies as st

from envelope.limits import MIB
from envelope.types import MonotonicNs
from jetstream.fetch.selection_budget import (
    GRACE_NS,
    HOLD_NS,
    STEP_BYTES,
    WAIT_NS,
    SelectionBudget,
)
from tests.support.example_counts import examples

Budget = SelectionBudget[str, str]
START = MonotonicNs(0)


def at(nanoseconds: int) -> MonotonicNs:
    return MonotonicNs(nanoseconds)


def holding(budget: Budget, holder: str, size: int, now: int = 0) -> None:
    """Let an answer of ``size`` bytes be made and wait for its reader."""
    assert budget.begin(holder, f"{holder} 0", size, at(now))
    budget.made(holder, size, at(now))


def test_one_answer_is_made_at_a_time() -> None:
    budget = Budget(100)
    assert budget.begin("a", "a 1", 10, START)
    assert not budget.begin("b", "b 1", 10, START)
    assert budget.next(START) == []
    budget.made("a", 12, START)
    assert (budget.held_bytes, budget.waiting) == (12, 1)
    assert budget.next(START) == ["b 1"]
    assert budget.begin("b", "b 1", 10, START)


def test_an_answer_waits_until_there_is_memory_and_one_that_is_too_large_until_it_is_alone() -> None:
    budget = Budget(100)
    holding(budget, "a", 60)
    assert not budget.begin("b", "b 1", 500, START)
    assert budget.next(START) == []
    budget.release("a")
    assert budget.next(START) == ["b 1"]
    assert budget.begin("b", "b 1", 500, START)
    budget.made("b", 500, START)
    budget.forget("b")
    assert (budget.held_bytes, budget.is_idle) == (0, True)


def test_a_small_answer_does_not_overtake_a_large_one() -> None:
    budget = Budget(100)
    holding(budget, "a", 60)
    assert not budget.begin("large", "l", 50, START)
    assert not budget.begin("small", "s", 1, START)
    assert not budget.begin("small", "s2", 1, START)
    budget.release("a")
    assert budget.next(START) == ["l"]
    assert budget.begin("large", "l", 50, START)
    budget.made("large", 50, START)
    assert budget.next(START) == ["s", "s2"]


def test_a_connection_with_many_fetches_has_one_turn_as_others_have() -> None:
    budget = Budget(100)
    holding(budget, "a", 100)
    many = [f"m{number}" for number in range(100)]
    assert not any(budget.begin("many", token, 60, START) for token in many)
    assert not budget.begin("other", "o", 60, START)
    budget.release("a")
    assert budget.next(START) == many
    assert budget.begin("many", "m0", 60, START)
    budget.made("many", 60, START)
    budget.release("many")
    assert not budget.begin("many", "m1", 60, START), "the other's turn"
    assert budget.next(START) == ["o"]


def test_a_fetch_that_waited_for_long_is_returned_and_its_connection_keeps_its_place() -> None:
    budget = Budget(100)
    holding(budget, "a", 100)
    assert not budget.begin("first", "f1", 60, at(1))
    assert not budget.begin("second", "s1", 60, at(2))
    assert budget.expire(at(WAIT_NS)) == []
    assert budget.expire(at(WAIT_NS + 1)) == ["f1"]
    assert not budget.begin("first", "f2", 60, at(WAIT_NS + 1))
    budget.release("a")
    assert budget.next(at(WAIT_NS + 1)) == ["f2"]
    assert budget.waiting == 1


def test_those_behind_one_that_was_answered_with_nothing_wait_until_it_asks_again() -> None:
    budget = Budget(100)
    holding(budget, "a", 60)
    assert not budget.begin("large", "l", 50, at(0))
    assert not budget.begin("small", "s", 1, at(1))
    assert budget.expire(at(WAIT_NS)) == ["l"]
    last = at(WAIT_NS + GRACE_NS - 1)
    assert budget.next(last) == []
    assert not budget.begin("new", "n", 1, last)
    assert not budget.has_spare(1, last)
    assert not budget.begin("large", "l2", 50, last)
    budget.release("a")
    assert budget.next(last) == ["l2"]


def test_one_that_asks_no_more_holds_up_nobody_for_longer_than_its_grace_and_only_once() -> None:
    budget = Budget(100)
    holding(budget, "a", 60)
    assert not budget.begin("late", "l", 50, at(0))
    assert not budget.begin("small", "s", 1, at(1))
    assert budget.expire(at(WAIT_NS)) == ["l"]
    back = WAIT_NS + GRACE_NS
    assert not budget.begin("late", "l2", 50, at(back))
    assert budget.next(at(back)) == [], "it has kept its place"
    assert budget.expire(at(back)) == ["s"]
    assert not budget.begin("small", "s2", 1, at(back))
    assert budget.expire(at(back + WAIT_NS - 1)) == []
    assert budget.expire(at(back + WAIT_NS)) == ["l2", "s2"]
    assert budget.begin("small", "s3", 1, at(back + WAIT_NS))


def test_one_that_reads_may_have_another_while_nobody_waits_and_half_is_free() -> None:
    budget = Budget(100)
    holding(budget, "reads", 25)
    assert not budget.has_spare(26, START)
    assert budget.has_spare(25, START)
    assert budget.begin("reads", "r 1", 25, START)
    assert not budget.has_spare(1, START), "one is made at a time"
    budget.release("reads")
    assert (budget.held_bytes, budget.is_idle) == (25, False)
    budget.made("reads", 20, START)
    assert budget.has_spare(30, START)
    assert budget.begin("reads", "r 2", 30, START)
    budget.made("reads", 30, START)
    assert budget.held_bytes == 50
    assert not budget.begin("waits", "w", 60, START)
    assert not budget.has_spare(0, START)
    budget.release("reads")
    assert budget.held_bytes == 0


def test_a_fetch_that_is_dropped_holds_nobody_up_and_its_connection_keeps_its_place() -> None:
    budget = Budget(100)
    holding(budget, "a", 60)
    assert not budget.begin("large", "l1", 50, at(0))
    assert not budget.begin("small", "s", 1, at(1))
    budget.drop("l1")
    budget.drop("never was")
    assert budget.waiting == 1
    assert budget.next(START) == ["s"]
    assert not budget.begin("large", "l2", 50, at(2))
    assert not budget.begin("small", "s", 1, at(3)), "the large one is the first again"
    budget.release("a")
    assert budget.next(START) == ["l2"]


def test_a_holder_that_takes_nothing_is_overdue_only_while_another_needs_its_memory() -> None:
    budget = Budget(100)
    holding(budget, "stopped", 60)
    assert budget.overdue(lambda _: 0, at(9 * HOLD_NS)) is None
    assert not budget.begin("waits", "w", 60, at(10 * HOLD_NS))
    assert budget.overdue(lambda _: 0, at(10 * HOLD_NS)) is None, "its time begins when it is looked at"
    assert budget.overdue(lambda _: 0, at(11 * HOLD_NS - 1)) is None
    assert budget.overdue(lambda _: None, at(11 * HOLD_NS)) is None, "there was nothing to take"
    assert budget.overdue(lambda _: 0, at(11 * HOLD_NS)) is None, "and from then on it has its time"
    assert budget.overdue(lambda _: 0, at(12 * HOLD_NS)) == "stopped"
    budget.forget("stopped")
    assert budget.overdue(lambda _: 0, at(99 * HOLD_NS)) is None
    assert budget.next(START) == ["w"]


def test_a_holder_that_takes_a_step_has_its_time_anew_and_a_crumb_is_no_step() -> None:
    budget = Budget(MIB)
    holding(budget, "slow", MIB)
    assert not budget.begin("waits", "w", 1, START)
    assert budget.overdue(lambda _: 0, START) is None
    assert budget.overdue(lambda _: STEP_BYTES, at(HOLD_NS)) is None
    assert budget.overdue(lambda _: 2 * STEP_BYTES - 1, at(2 * HOLD_NS)) == "slow"


def test_the_one_longest_overdue_is_closed_first_and_no_more_than_needed() -> None:
    budget = Budget(100)
    taken = dict.fromkeys("abc", 0)
    for name in taken:
        holding(budget, name, 30)
    assert not budget.begin("waits", "w", 35, START)
    assert budget.overdue(taken.__getitem__, START) is None
    taken["a"] = STEP_BYTES
    assert budget.overdue(taken.__getitem__, at(1)) is None
    assert budget.overdue(taken.__getitem__, at(9 * HOLD_NS)) == "b"
    budget.forget("b")
    assert budget.overdue(taken.__getitem__, at(9 * HOLD_NS)) is None


def test_a_connection_whose_answer_is_being_made_is_not_overdue() -> None:
    budget = Budget(100)
    assert budget.begin("a", "a 1", 70, START)
    assert not budget.begin("b", "b 1", 70, START)
    assert budget.overdue(lambda _: 0, START) is None
    assert budget.overdue(lambda _: 0, at(9 * HOLD_NS)) is None


def test_an_answer_made_for_one_that_left_counts_until_it_is_made() -> None:
    budget = Budget(100)
    assert budget.begin("a", "a 1", 70, START)
    budget.forget("a")
    assert budget.held_bytes == 70
    budget.made("a", 0, START)
    assert budget.is_idle


LIMIT = 16 * STEP_BYTES
MANNERS = ("reads", "crawls", "drips", "stops")


class Readers:
    """Connections that ask again and again: half of a holder's time passes in each round."""

    def __init__(self, manners: dict[str, str], sizes: dict[str, int], delays: dict[str, int]) -> None:
        self.manners = manners
        self.sizes = sizes
        self.delays = delays
        self.budget = Budget(LIMIT)
        self.now = 0
        self.taken = dict.fromkeys(manners, 0)
        self.left: dict[str, int] = {}
        self.asking: dict[str, str] = {}
        self.since: dict[str, int] = {}
        """Since which round a connection waits for its next answer."""
        self.answers = dict.fromkeys(manners, 0)

    def round(self, number: int) -> None:
        self.now += HOLD_NS // 2
        for name in self.manners:
            if name not in self.budget.holders and name not in self.asking:
                self.since[name] = number
                self.ask(name, f"{name} {number}")
        expired = [token.split()[0] for token in self.budget.expire(at(self.now))]
        for name in expired:
            del self.asking[name]
        while (late := self.budget.overdue(self.taken.__getitem__, at(self.now))) is not None:
            assert self.manners[late] in ("drips", "stops")
            self.budget.forget(late)
        for name in self.budget.holders:
            self.take(name)
        self.hand_on()
        begun = self.now
        for name in sorted(expired, key=self.delays.__getitem__):
            self.now = begun + self.delays[name]
            self.ask(name, f"{name} {number} again")
            self.hand_on()
        self.now = begun
        self.check()

    def ask(self, name: str, token: str) -> None:
        self.asking[name] = token
        if self.budget.begin(name, token, self.sizes[name], at(self.now)):
            self.make(name)

    def make(self, name: str) -> None:
        del self.asking[name], self.since[name]
        self.check()
        self.budget.made(name, self.sizes[name], at(self.now))
        self.left[name] = self.sizes[name]
        self.answers[name] += 1

    def take(self, name: str) -> None:
        step = {"reads": self.left[name], "crawls": STEP_BYTES, "drips": STEP_BYTES // 4, "stops": 0}
        count = min(self.left[name], step[self.manners[name]])
        self.taken[name] += count
        self.left[name] -= count
        if not self.left[name]:
            self.budget.release(name)

    def hand_on(self) -> None:
        while tokens := self.budget.next(at(self.now)):
            for token in tokens:
                name = token.split()[0]
                assert self.budget.begin(name, token, self.sizes[name], at(self.now)), "F13"
                self.make(name)

    def check(self) -> None:
        held = [hold.size for hold in self.budget._holds.values()]
        held += [self.budget._making_bytes] if self.budget._maker is not None else []
        assert self.budget.held_bytes == sum(held)
        assert self.budget.held_bytes <= LIMIT or len(held) == 1, "F11"
        assert len(self.budget._order) <= len(self.manners)


@settings(max_examples=examples(100))
@given(
    manners=st.lists(st.sampled_from(MANNERS), min_size=1, max_size=12),
    data=st.data(),
)
def test_the_budget_is_kept_and_nobody_starves(manners: list[str], data: st.DataObject) -> None:
    """Of readers of any manners each has its next answer after as many rounds as all before it can hold one.

    Each asks again some time after it was answered with nothing, within its grace.

    Those that stop or drip are closed, and come again.
    """
    named = {f"r{number}": manner for number, manner in enumerate(manners)}
    size = st.integers(1, LIMIT + STEP_BYTES)
    delay = st.integers(0, GRACE_NS - 1)
    readers = Readers(
        named,
        {name: data.draw(size, f"size of {name}") for name in named},
        {name: data.draw(delay, f"delay of {name}") for name in named},
    )
    longest = len(named) * (LIMIT // STEP_BYTES + 5)
    for number in range(3 * longest):
        readers.round(number)
        starved = [name for name, since in readers.since.items() if number - since >= longest]
        assert not starved


def test_a_large_answer_does_not_starve_beside_small_ones() -> None:
    """Its fetch is answered with nothing again and again, and at each time others wait behind it."""
    sizes = {
        "large": LIMIT,
        "a": 4 * STEP_BYTES,
        "b": 4 * STEP_BYTES,
        "c": 6 * STEP_BYTES,
        "d": 5 * STEP_BYTES,
    }
    manners = {name: "reads" if name == "large" else "crawls" for name in sizes}
    readers = Readers(manners, sizes, dict.fromkeys(sizes, 0) | {"large": GRACE_NS - 1})
    for number in range(150):
        readers.round(number)
    assert readers.answers["large"] >= 5
