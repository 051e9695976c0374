"""A metadata group with real files and real connections: elections, restarts, full and failing disks."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from envelope.errors import FsyncFailed, NotLeader
from metadata.node.storage.port import Storage
from metadata.raft.state import Entry
from tests.support.faulty_storage import FaultyStorage
from tests.support.metadata_members import Members, members, named
from tests.support.sockets import run


def words(group: Members) -> list[list[bytes]]:
    return [member.words.words for member in group.running]


@pytest.mark.parametrize("names", ["a", "ab", "abc", "abcde"])
def test_a_group_elects_a_leader_and_all_members_apply_the_same(names: str, tmp_path: Path) -> None:
    async def test() -> None:
        async with members(names, tmp_path) as group:
            sent = [b"w%d" % number for number in range(20)]
            await group.add(*sent)
            assert words(group) == [sent] * len(names)

    run(test())


def test_what_was_applied_is_there_after_all_have_stopped_and_started(tmp_path: Path) -> None:
    async def test() -> None:
        async with members("abc", tmp_path) as group:
            await group.add(b"1", b"2")
            terms = [member.voter.term for member in group.all]
            for member in group.all:
                await member.stop()
            for member in group.all:
                group.start(member)
            await group.add(b"3")
            assert words(group) == [[b"1", b"2", b"3"]] * 3
            assert max(member.voter.term for member in group.all) > max(terms), "a restart is a new reign"

    run(test())


def test_the_others_go_on_without_the_leader_and_it_catches_up_when_it_is_back(tmp_path: Path) -> None:
    async def test() -> None:
        async with members("abc", tmp_path) as group:
            await group.add(b"1")
            old = await group.until_led()
            await old.stop()
            await group.add(b"2", b"3")
            group.start(old)
            await group.add(b"4")
            assert words(group) == [[b"1", b"2", b"3", b"4"]] * 3

    run(test())


def test_nothing_is_applied_without_a_majority_and_everything_once_there_is_one(tmp_path: Path) -> None:
    async def test() -> None:
        async with members("abc", tmp_path) as group:
            leader = await group.until_led()
            await group.until(lambda: leader.words.index > 0)  # its term's own entry is on its way at first
            others = [member for member in group.all if member is not leader]
            for member in others:
                await member.stop()
            index = leader.words.index
            proposed = leader.voter.propose((named(b"alone"),))
            assert proposed.first > index
            await group.until(lambda: leader.voter.leader is None)  # it notices that nobody answers
            assert leader.words.index == index
            with pytest.raises(NotLeader) as caught:
                leader.voter.propose((named(b"refused"),))
            assert "leader" not in caught.value.detail
            for member in others:
                group.start(member)
            await group.add(b"together")
            assert leader.words.words in ([b"alone", b"together"], [b"together"])

    run(test())


def test_a_follower_says_who_leads(tmp_path: Path) -> None:
    async def test() -> None:
        async with members("abc", tmp_path) as group:
            leader = await group.until_led()
            follower = next(member for member in group.all if member is not leader)
            with pytest.raises(NotLeader) as caught:
                follower.voter.propose((named(b"x"),))
            assert caught.value.detail == {"leader": leader.node_id}
            with pytest.raises(NotLeader) as caught:
                await follower.voter.read()
            assert caught.value.detail == {"leader": leader.node_id}

    run(test())


def test_a_read_names_an_index_with_everything_applied_that_was_committed_before_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with members("abc", tmp_path) as group:
            await group.add(b"1", b"2", b"3")
            leader = await group.until_led()
            reads = await asyncio.gather(*(leader.voter.read() for _ in range(50)))
            assert set(reads) == {leader.words.index}

    run(test())


def test_what_a_member_forwards_is_looked_at_before_it_is_in_the_log(tmp_path: Path) -> None:
    async def test() -> None:
        async with members("abc", tmp_path) as group:
            leader = await group.until_led()
            follower = next(member for member in group.all if member is not leader)
            for payloads in ((b"",), (b"short",), (named(b"good"), b"short")):
                follower.member.forward(payloads)
            follower.member.forward((named(b"1"), named(b"2")))
            await group.until(lambda: all(b"2" in member.words.words for member in group.all))
            assert words(group) == [[b"1", b"2"]] * 3

    run(test())


def test_leadership_is_handed_over(tmp_path: Path) -> None:
    async def test() -> None:
        async with members("abc", tmp_path) as group:
            leader = await group.until_led()
            target = next(member for member in group.all if member is not leader)
            leader.voter.transfer(target.node_id)
            await group.until(lambda: group.leader is target)
            await group.add(b"after")

    run(test())


def test_a_member_that_was_away_for_too_long_gets_a_snapshot(tmp_path: Path) -> None:
    async def test() -> None:
        async with members("abc", tmp_path, snapshot_log_bytes_min=2000) as group:
            await group.add(b"first")
            leader = await group.until_led()
            away = next(member for member in group.all if member is not leader)
            await away.stop()
            sent = [b"w%d" % number for number in range(100)]
            await group.add(*sent)
            group.start(away)
            await group.add(b"last")
            assert away.words.restored == 1
            assert words(group) == [[b"first", *sent, b"last"]] * 3
            for member in group.all:
                await member.stop()
            for member in group.all:
                group.start(member)
            await group.add(b"again")
            assert words(group) == [[b"first", *sent, b"last", b"again"]] * 3

    run(test())


async def with_faulty(group: Members, name: str) -> FaultyStorage:
    """Restart one member behind a disk with faults, and make it the leader."""
    made: list[FaultyStorage] = []

    def wrapped(storage: Storage) -> Storage:
        made.append(FaultyStorage(storage))
        return made[0]

    await group.until_led()
    member = next(member for member in group.all if member.node_id == name)
    await member.stop()
    group.start(member, wrapped)
    leader = await group.until_led()
    while leader is not member:
        await group.until(lambda: member.words.index == (group.leader or member).words.index)
        leader.voter.transfer(member.node_id)
        leader = await group.until_led(other_than=leader)
    return made[0]


def test_a_leader_whose_disk_is_full_hands_over_and_catches_up_when_there_is_space(tmp_path: Path) -> None:
    async def test() -> None:
        async with members("abc", tmp_path) as group:
            storage = await with_faulty(group, "a")
            full = group.all[0]
            storage.full = True
            full.voter.propose((named(b"while full"),))
            await group.until(lambda: group.leader not in (None, full))
            healthy = group.all[1:]
            (await group.until_led()).voter.propose((named(b"elsewhere"),))
            await group.until(lambda: all(b"elsewhere" in member.words.words for member in healthy))
            assert storage.refused
            assert b"elsewhere" not in full.words.words, "nothing is applied that is not on its disk"
            storage.full = False
            await group.add(b"after")
            assert words(group) == [healthy[0].words.words] * 3
            assert {b"elsewhere", b"after"} <= set(full.words.words)

    run(test())


def test_a_disk_that_fails_ends_the_member_and_nobody_else(tmp_path: Path) -> None:
    async def test() -> None:
        async with members("abc", tmp_path) as group:
            storage = await with_faulty(group, "a")
            failing = group.all[0]
            storage.broken = True
            read = asyncio.gather(failing.voter.read(), return_exceptions=True)
            failing.voter.propose((named(b"lost"),))
            assert failing.task is not None
            await asyncio.wait([failing.task])
            error = failing.task.exception()
            assert isinstance(error, ExceptionGroup)
            assert [type(inner) for inner in error.exceptions] == [FsyncFailed]
            with pytest.raises(NotLeader):
                failing.voter.propose((named(b"after its end"),))
            [answer] = await read
            assert isinstance(answer, int | NotLeader)
            await failing.stop()
            await group.add(b"without it")

    run(test())


def test_an_error_of_ours_ends_the_member_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with members("a", tmp_path) as group:
            member = await group.until_led()

            def broken(_: Sequence[Entry]) -> None:
                raise ZeroDivisionError

            monkeypatch.setattr(member.words, "apply", broken)
            member.voter.propose((named(b"x"),))
            assert member.task is not None
            await asyncio.wait([member.task])
            error = member.task.exception()
            assert isinstance(error, ExceptionGroup)
            assert isinstance(error.exceptions[0], ZeroDivisionError)

    run(test())
