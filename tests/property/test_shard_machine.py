"""A shard against a simple model: what was answered is what is durable, in whatever order things happen.

The model has each group's cursors as those who committed were answered, and takes what members are told for
true only if it is what is durable at that moment.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from consumer_groups.assignment.partitions import Generation, GroupName, InstanceId, MemberId, Partition
from consumer_groups.coordinator.events import (
    Assignment,
    Beat,
    ConnectionId,
    Leave,
    Left,
    NewCursor,
    Release,
    StoreCursors,
    Tick,
)
from consumer_groups.coordinator.group_state import Share
from consumer_groups.coordinator.sessions import NEVER
from consumer_groups.cursors import CursorPosition
from consumer_groups.shard.events import (
    Answer,
    Asked,
    Beats,
    ConnectionClosed,
    CursorsCommitted,
    DeleteGroup,
    Done,
    HeartbeatAnswer,
    LookUpCursors,
    QuestionId,
    RequestFailed,
    ResetCursors,
    ShardEvent,
)
from envelope.group_errors import IllegalGeneration
from envelope.types import MonotonicNs, StreamName
from tests.support.example_counts import examples
from tests.support.group_coordination import REBALANCE, SECOND, SESSION
from tests.support.shard_at_work import ShardAtWork, audit, joining

CONNECTION = ConnectionId("x")
GROUPS = st.sampled_from(["g", "h"])
CLIENTS = st.sampled_from(["a", "b", "c"])
STREAMS = st.sampled_from(["orders", "clicks"])
PARTITIONS = st.builds(
    Partition, st.sampled_from([StreamName("orders"), StreamName("clicks")]), st.integers(0, 2)
)
PLACES = st.builds(CursorPosition, st.integers(0, 5), st.sampled_from([None, "one", "two"]))
CURSORS = st.dictionaries(PARTITIONS, PLACES, min_size=1, max_size=2).map(
    lambda places: tuple(NewCursor(*item) for item in places.items())
)


class Watched(ShardAtWork):
    """Looks at every answer the moment it is given."""

    def __init__(self) -> None:
        self.asked: dict[QuestionId, Asked] = {}
        self.cursors: dict[tuple[str, Partition], CursorPosition] = {}
        self.requests: dict[str, int] = {}
        """The newest request of each member that was answered as durable."""
        super().__init__(partitions=3)

    def give(self, event: ShardEvent) -> None:
        if isinstance(event, Asked):
            self.asked[event.question] = event
        before = set(self.answers)
        super().give(event)
        for question, answer in self.answers.items():
            if question not in before:
                self.look_at(question, answer)

    def unanswered(self) -> set[QuestionId]:
        return {question for question in self.asked if question not in self.answers}

    def take_over(self) -> None:
        self.asked = {}
        super().take_over()

    def look_at(self, question: QuestionId, answer: Answer) -> None:
        if isinstance(answer, HeartbeatAnswer):
            for group, assignment in answer.assignments:
                self.is_durable(group, assignment)
            for group, member, refusal in answer.refused:
                assert refusal.error is IllegalGeneration or member not in self.state(group).members
            return
        asked = self.asked[question]
        match asked.request, answer:
            case _, Assignment():
                self.is_durable(asked.group, answer)
            case StoreCursors() as commit, CursorsCommitted(superseded):
                if superseded:
                    assert self.requests[commit.member_id] > commit.request
                else:
                    self.committed(asked.group, commit)
            case ResetCursors(cursors), Done():
                self.cursors |= {(asked.group, at): place for at, place in cursors}
            case DeleteGroup(), Done():
                self.cursors = {key: place for key, place in self.cursors.items() if key[0] != asked.group}
            case _:
                assert isinstance(answer, RequestFailed | Left) or isinstance(asked.request, LookUpCursors)

    def is_durable(self, group: str, assignment: Assignment) -> None:
        state = self.state(group)
        assert assignment.generation == state.generation
        share = state.shares()[assignment.member_id]
        assert (share.keeps, share.gives_up) == (assignment.keeps, assignment.gives_up)

    def committed(self, group: str, commit: StoreCursors) -> None:
        for partition, place in commit.cursors:
            grant = self.state(group).grants[partition]
            assert grant.member_id == commit.member_id
            assert grant.generation <= commit.generation
            known = self.cursors.get((group, partition))
            assert commit.is_reset or known is None or not is_behind(place, known)
            self.cursors[group, partition] = place
        self.requests[commit.member_id] = max(commit.request, self.requests.get(commit.member_id, 0))


def is_behind(place: CursorPosition, known: CursorPosition) -> bool:
    differs = None not in (place[1], known[1]) and place[1] != known[1]
    return not differs and place.offset < known.offset


def stored(work: ShardAtWork) -> dict[tuple[str, Partition], CursorPosition]:
    """Return all cursors as a shard holds them."""
    return {
        (group, at): cursor.place
        for group in work.table
        for at, cursor in work.table.cursors_of(group).items()
    }


class ShardModel(RuleBasedStateMachine):
    """Members that ask rightly and wrongly, operators, a log that commits and refuses, reigns that end."""

    def __init__(self) -> None:
        super().__init__()
        self.work = Watched()
        self.joins = 0

    # --- members -----------------------------------------------------------------------------------------

    @rule(group=GROUPS, client=CLIENTS, streams=st.frozensets(STREAMS, min_size=1), is_static=st.booleans())
    def join(self, group: str, client: str, streams: frozenset[str], is_static: bool) -> None:
        self.joins += 1
        instance = InstanceId("i") if is_static else None
        fresh_id = MemberId(f"{group}.{client}.{self.joins}")
        more = {"request": self.joins, "instance_id": instance, "fresh_id": fresh_id}
        self.work.ask(joining(client, *sorted(streams), **more), group)

    @rule(group=GROUPS, number=st.integers(0, 2), unasked=st.booleans())
    def release(self, group: str, number: int, unasked: bool) -> None:
        state, member = self.work.state(group), self.some_member(group, number)
        share = state.shares().get(member, Share())
        claims = share.keeps[:1] if unasked else share.gives_up
        self.work.ask(Release(CONNECTION, member, claims), group)

    @rule(group=GROUPS, number=st.integers(0, 2))
    def leave(self, group: str, number: int) -> None:
        self.work.ask(Leave(CONNECTION, self.some_member(group, number)), group)

    @rule(group=GROUPS, data=st.data(), request=st.integers(1, 9), is_reset=st.booleans())
    def commit(self, group: str, data: st.DataObject, request: int, is_reset: bool) -> None:
        """Commit for what some member owns, or for anything."""
        state = self.work.state(group)
        owners = [grant.member_id for grant in state.grants.values()]
        member = data.draw(st.sampled_from([*owners, MemberId("nobody")]))
        owned = [partition for partition, grant in state.grants.items() if grant.member_id == member]
        partitions = st.sampled_from(owned) if owned else PARTITIONS
        places = data.draw(st.dictionaries(partitions, PLACES, min_size=1, max_size=2))
        heard = Generation(max(0, state.generation - data.draw(st.sampled_from([0, 0, 0, 1, 2, -1]))))
        cursors = tuple(NewCursor(*item) for item in places.items())
        self.work.ask(
            StoreCursors(
                connection=CONNECTION,
                member_id=member,
                request=request,
                generation=heard,
                cursors=cursors,
                instance_id=None,
                is_reset=is_reset,
            ),
            group,
        )

    @rule(
        connection=st.sampled_from(["x", "y"]),
        members=st.lists(st.tuples(GROUPS, st.integers(0, 2)), min_size=1, max_size=3),
        behind=st.integers(-1, 2),
        wait=st.integers(0, 3),
    )
    def beat(self, connection: str, members: list[tuple[str, int]], behind: int, wait: int) -> None:
        beats = []
        for group, number in members:
            heard = Generation(max(0, self.work.state(group).generation - behind))
            beats.append((GroupName(group), Beat(self.some_member(group, number), heard)))
        question = self.work.new_question()
        self.work.give(Beats(question, ConnectionId(connection), tuple(beats), wait * SECOND))

    @rule(connection=st.sampled_from(["x", "y"]))
    def close(self, connection: str) -> None:
        self.work.give(ConnectionClosed(ConnectionId(connection)))

    def some_member(self, group: str, number: int) -> MemberId:
        members = sorted(self.work.state(group).members)
        return members[number % len(members)] if members else MemberId("nobody")

    # --- operators, streams, time ------------------------------------------------------------------------

    @rule(group=GROUPS, cursors=CURSORS, force=st.booleans())
    def reset(self, group: str, cursors: tuple[NewCursor, ...], force: bool) -> None:
        self.work.ask(ResetCursors(cursors, force), group)

    @rule(group=GROUPS, force=st.booleans())
    def delete(self, group: str, force: bool) -> None:
        self.work.ask(DeleteGroup(force), group)

    @rule(stream=STREAMS, count=st.integers(0, 3), deleted=st.booleans())
    def change_streams(self, stream: str, count: int, deleted: bool) -> None:
        self.work.partition(*[stream] * deleted, **({stream: count} if count or not deleted else {}))

    @rule(seconds=st.sampled_from([1, 3, SESSION // SECOND, REBALANCE // SECOND]))
    def pass_time(self, seconds: int) -> None:
        """Time passes while writes stay where they are."""
        work, end = self.work, MonotonicNs(self.work.now + seconds * SECOND)
        ticks = 0
        while work.timer <= end:
            ticks += 1
            assert ticks < 100, "a timer that is set again and again"
            work.now, work.timer = max(work.now, work.timer), NEVER
            work.give(Tick())
        work.now = end

    # --- the log -----------------------------------------------------------------------------------------

    @precondition(lambda self: self.work.writes)
    @rule(writes=st.integers(1, 3))
    def write(self, writes: int) -> None:
        self.work.commit(writes)

    @precondition(lambda self: self.work.writes)
    @rule()
    def refuse(self) -> None:
        self.work.refuse()

    @rule(unsaid=st.integers(0, 2))
    def take_over(self, unsaid: int) -> None:
        """Another reign begins; some writes of the former one are committed, and nobody has heard of it."""
        work = self.work
        for write in list(work.writes)[:unsaid]:
            work.log += write.records
        work.take_over()
        work.cursors = stored(work)

    @rule()
    def come_to_rest(self) -> None:
        """Whatever was asked is answered once all is written and all waiting is over."""
        self.work.commit()
        self.work.pass_time(4 * SECOND)
        assert self.work.unanswered() == set()
        audit(self.work)

    @invariant()
    def holds_what_was_answered(self) -> None:
        assert stored(self.work) == self.work.cursors
        shard = self.work.shard
        assert shard.members == sum(len(self.work.state(group).members) for group in self.work.table)
        assert shard.cursors == len(self.work.cursors)

    @invariant()
    def says_nothing_that_its_log_does_not_say(self) -> None:
        audit(self.work)


TestShard = ShardModel.TestCase
TestShard.settings = settings(max_examples=examples(60), stateful_step_count=40)
