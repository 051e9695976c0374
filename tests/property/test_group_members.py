"""Members and their coordinator, with any of their messages lost, doubled, late or out of order."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from consumer_groups.assignment.partitions import Partition
from consumer_groups.coordinator.events import Tick
from consumer_groups.member.events import Closed, CoordinatorLost, Resumed, Stalled
from envelope.errors import JetstreamError
from envelope.types import StreamName
from tests.support.group_coordination import SESSION
from tests.support.group_membership import Members, Reader, subscribed

NAMES = ("a", "b", "c")
STREAMS = ("orders", "clicks")
Step = Callable[[Members], None]


def of_reader(step: Callable[[Members, Reader], object]) -> st.SearchStrategy[Step]:
    """Draw whom it happens to."""
    return st.sampled_from(range(len(NAMES))).map(lambda number: lambda group: _ignored(step, group, number))


def _ignored(step: Callable[[Members, Reader], object], group: Members, number: int) -> None:
    step(group, group.readers[number])


def with_message(
    step: Callable[[Members, int], object], of: Callable[[Members], list[object]]
) -> st.SearchStrategy[Step]:
    """Draw which of the messages on their way it happens to."""

    def chosen(number: int) -> Step:
        def happen(group: Members) -> None:
            if on_its_way := of(group):
                step(group, number % len(on_its_way))

        return happen

    return st.integers(0, 7).map(chosen)


def requests(group: Members) -> list[object]:
    return list(group.asked)


def answers(group: Members) -> list[object]:
    return list(group.answers)


def be_done_with_one(group: Members, reader: Reader) -> None:
    if reader.stopping:
        group.give(reader, reader.is_done(min(reader.stopping)))


steps: st.SearchStrategy[Step] = st.one_of(
    with_message(Members.ask, requests),
    with_message(Members.answer, answers),
    with_message(Members.ask, requests),
    with_message(Members.answer, answers),
    with_message(lambda group, place: group.asked.pop(place), requests),
    with_message(lambda group, place: group.answers.pop(place), answers),
    with_message(lambda group, place: group.asked.append(group.asked[place]), requests),
    with_message(lambda group, place: group.answers.append(group.answers[place]), answers),
    of_reader(Members.beat),
    of_reader(lambda group, reader: group.give(reader, Tick())),
    of_reader(be_done_with_one),
    of_reader(lambda group, reader: group.give(reader, CoordinatorLost(reader.connection))),
    of_reader(lambda group, reader: group.give(reader, Closed())),
    of_reader(lambda group, reader: group.give(reader, Stalled())),
    of_reader(lambda group, reader: group.give(reader, Resumed())),
    of_reader(lambda group, reader: group.give(reader, subscribed(*STREAMS))),
    st.just(Members.replace_coordinator),
    st.sampled_from((SESSION // 3, SESSION + 1)).map(lambda ns: lambda group: _pass(group, ns)),
    st.builds(
        lambda name, count: lambda group: _told(group, **{name: count}),
        st.sampled_from(STREAMS),
        st.integers(0, 5),
    ),
)


def _pass(group: Members, ns: int) -> None:
    group.group.pass_time(ns)


def _told(group: Members, **counts: int) -> None:
    group.group.partition(**counts)


@given(st.lists(steps, max_size=60))
def test_each_partition_comes_to_one_reader_whatever_happens_on_the_way(happens: list[Step]) -> None:
    """Each reader checks by itself that it reads nothing twice and releases nothing that it holds."""
    group = Members(*map(Reader, NAMES))
    for reader in group.readers:
        group.give(reader, subscribed())
    for happen in happens:
        happen(group)
    for reader in group.readers:
        group.give(reader, Resumed())
    group.settle()

    state = group.group.state
    living = [reader for reader in group.readers if reader.ended is None]
    assert all(reader.machine.rests for reader in living)
    assert {reader.machine.member_id for reader in living} == set(state.members)
    wanted = {
        Partition(StreamName(name), number)
        for name in state.subscribed()
        for number in range(state.streams.get(name, 0))
    }
    reads = [claim.partition for reader in living for claim in reader.reads]
    assert sorted(reads) == (sorted(wanted) if living else [])
    assert not any(reader.stopping for reader in living)


def test_a_refusal_that_nobody_foresaw_ends_the_member_that_asked() -> None:
    reader = Reader()
    reader.join()
    reader.refused(JetstreamError)
    assert reader.ended is not None
    assert reader.ended.refusal is not None
