"""Which commits are short, and that a log knows which of its appends are nothing but one."""

import contextlib

import hypothesis.strategies as st
import pytest
from hypothesis import given

from envelope.errors import CorruptDataError, DiskFull
from envelope.types import LeaderEpoch, Offset, TimestampUs
from jetstream.log.format.batch import verified_batches
from jetstream.log.inline_commits import (
    ALONE_BYTES_MAX,
    FOLLOWED_BYTES_MAX,
    LOGS_MAX,
    REST_SECONDS,
    SLOW_SECONDS,
    SYNC_SECONDS_MAX,
    InlineCommitPolicy,
)
from jetstream.log.log import Log, LogConfig
from jetstream.log.segments.scan import FOLLOWED_GROUPS_MAX
from tests.support.logs import NOW, SMALL, append, batch_for, begun, filled, opened
from tests.support.memory_disk import Fault, FaultKind, MemoryDisk


def test_short_is_what_is_small_and_goes_to_few_logs() -> None:
    short = InlineCommitPolicy()
    for bytes_max, is_followed in ((ALONE_BYTES_MAX, False), (FOLLOWED_BYTES_MAX, True)):
        assert short.allows(1, bytes_max, 0.0, is_followed=is_followed)
        assert short.allows(LOGS_MAX, bytes_max, 0.0, is_followed=is_followed)
        assert not short.allows(2, bytes_max + 1, 0.0, is_followed=is_followed)
        assert not short.allows(LOGS_MAX + 1, 1, 0.0, is_followed=is_followed)


def test_short_is_what_a_disk_is_expected_to_sync_soon() -> None:
    short = InlineCommitPolicy()
    assert short.allows(1, 1, 0.0, sync_seconds=SYNC_SECONDS_MAX)
    assert not short.allows(1, 1, 0.0, sync_seconds=SYNC_SECONDS_MAX * 1.01)


def test_a_commit_that_took_long_or_failed_is_the_last_one_for_a_while() -> None:
    for seconds, failed in ((SLOW_SECONDS, False), (0.0, True)):
        short = InlineCommitPolicy()
        short.took(seconds, 10.0, failed=failed)
        assert not short.allows(1, 1, 10.0 + REST_SECONDS * 0.99)
        assert short.allows(1, 1, 10.0 + REST_SECONDS)
    quick = InlineCommitPolicy()
    quick.took(SLOW_SECONDS * 0.99, 10.0, failed=False)
    assert quick.allows(1, 1, 10.0)


def appended_calls(log: Log, disk: MemoryDisk, values: list[bytes], now: int) -> tuple[bool, list[str]]:
    """Append to a leader's log; return what it said before, and the calls that the disk got."""
    batch = batch_for(log, values, max(now, log.reader.last_timestamp))
    said = log.writer.only_writes([batch], TimestampUs(now))
    before = disk.calls
    log.writer.append_group((batch,), TimestampUs(now))
    return said, [call.split()[0] for call in disk.trace[before:]]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 700)),
        st.tuples(st.just("age"), st.integers(1, 400)),
        st.tuples(st.just("sync"), st.just(0)),
        st.tuples(st.just("checkpoint"), st.just(0)),
        st.tuples(st.just("reopen"), st.just(0)),
        st.tuples(st.just("epoch"), st.just(0)),
    ),
    max_size=30,
)
AGED = LogConfig(segment_bytes=3000, segment_age_us=1000)


@given(STEPS)
def test_a_leaders_append_that_only_writes_is_one_write(steps: list[tuple[str, int]]) -> None:
    disk, now = MemoryDisk(), int(NOW)
    log = begun(disk, AGED)
    for step, size in steps:
        match step:
            case "append":
                said, calls = appended_calls(log, disk, [b"x" * size], now)
                assert not said or calls == ["write"], calls
            case "age":
                now += size
            case "sync":
                log.writer.sync()
            case "checkpoint":
                log.checkpoint()
            case "reopen":
                log.close()
                log = opened(disk, AGED)
            case _:
                log.writer.begin_epoch(LeaderEpoch(log.reader.last_epoch + 1), TimestampUs(now))


def test_nearly_every_append_of_a_leader_only_writes() -> None:
    disk = MemoryDisk()
    log = begun(disk)
    assert [appended_calls(log, disk, [b"x"], NOW)[0] for _ in range(4)] == [False, True, True, True]
    log.close()
    log = begun(disk)
    assert [appended_calls(log, disk, [b"x"], NOW)[0] for _ in range(4)] == [False, True, True, True], (
        "the first takes back that the log was closed cleanly"
    )


def test_a_log_that_is_closed_writes_nothing() -> None:
    log = filled(MemoryDisk(), 3)
    sealed = verified_batches(filled(MemoryDisk(), 4).reader.read(Offset(3), 1, Offset(4)))
    batch = batch_for(log, [b"x"])
    log.close()
    assert not log.writer.only_writes([batch], NOW)
    assert not log.writer.only_writes_sealed(sealed)


@given(
    st.lists(
        st.one_of(st.integers(1, 700), st.sampled_from(["sync", "epoch", "reopen"])), min_size=1, max_size=24
    ),
    st.lists(st.sampled_from(["fetch", "sync", "reopen", "reset"]), min_size=1, max_size=40),
    st.integers(1, 1500),
)
def test_a_followers_append_that_only_writes_is_one_write(
    led: list[int | str], followed: list[str], fetched_bytes: int
) -> None:
    source = MemoryDisk()
    leader = begun(source, SMALL)
    for step in led:
        match step:
            case int():
                append(leader, [b"x" * step])
            case "sync":
                leader.writer.sync()
            case "reopen":
                leader.close()
                leader = opened(source, SMALL)
            case _:
                leader.writer.begin_epoch(LeaderEpoch(leader.reader.last_epoch + 1), NOW)
    disk = MemoryDisk()
    log = opened(disk, SMALL)
    for action in followed:
        match action:
            case "fetch" if log.log_end_offset < leader.log_end_offset:
                data = leader.reader.read(log.log_end_offset, fetched_bytes, leader.log_end_offset)
                batches = verified_batches(data)
                said, before = log.writer.only_writes_sealed(batches), disk.calls
                with contextlib.suppress(CorruptDataError):
                    log.writer.append_sealed(batches, NOW)
                calls = [call.split()[0] for call in disk.trace[before:]]
                assert not said or calls == ["write"], calls
            case "sync":
                log.writer.sync()
            case "reopen":
                log.close()
                log = opened(disk, SMALL)
            case "reset" if log.log_end_offset and leader.log_end_offset > 1:
                log.reset_to(Offset(leader.log_end_offset - 1), Offset(0))
            case _:
                pass


def fetched(log: Log, disk: MemoryDisk, leader: Log) -> tuple[bool, list[str]]:
    """Append the leader's next batch; return what the log said before, and the calls that the disk got."""
    batches = verified_batches(leader.reader.read(log.log_end_offset, 1, leader.log_end_offset))
    said, before = log.writer.only_writes_sealed(batches), disk.calls
    log.writer.append_sealed(batches, NOW)
    return said, [call.split()[0] for call in disk.trace[before:]]


def two_reigns(config: LogConfig) -> Log:
    """Return a leader's log of six batches, from the fourth on of another epoch."""
    leader = filled(MemoryDisk(), 3, config)
    leader.writer.begin_epoch(LeaderEpoch(2), NOW)
    for value in (b"3", b"4", b"5"):
        append(leader, [value], NOW + 3)
        leader.writer.sync()
    return leader


def test_a_follower_does_more_than_write_where_its_leader_rolled_or_began_to_lead() -> None:
    rolls, rolls_not = [False, True, False, False, False, True], [False, True, True, False, True, True]
    for config, expected in ((SMALL, rolls), (LogConfig(), rolls_not)):
        leader, disk = two_reigns(config), MemoryDisk()
        log = opened(disk, config)
        found = [fetched(log, disk, leader) for _ in range(6)]
        assert [said for said, _ in found] == [calls == ["write"] for _, calls in found]
        assert [said for said, _ in found] == expected


def test_who_led_before_is_on_record_as_a_follower_first() -> None:
    leader, disk = filled(MemoryDisk(), 4, LogConfig()), MemoryDisk()
    log = filled(disk, 2, LogConfig())
    found = [fetched(log, disk, leader) for _ in range(2)]
    assert [said for said, _ in found] == [False, True] == [calls == ["write"] for _, calls in found]


def test_a_segment_that_was_ended_and_goes_on_is_opened_again_first() -> None:
    disk, config = MemoryDisk(), SMALL
    log, leader = opened(disk, config), filled(MemoryDisk(), 4, config)
    fetched(log, disk, leader)
    fetched(log, disk, leader)
    roll = disk.calls + 3  # behind the end of the segment and its sync
    disk.faults = {number: Fault(FaultKind.DISK_FULL) for number in range(roll, roll + 20)}
    with pytest.raises(DiskFull):
        fetched(log, disk, leader)
    disk.faults = {}
    other = filled(MemoryDisk(), 4, LogConfig())
    said, calls = fetched(log, disk, other)
    assert not said
    assert "truncate" in calls
    assert fetched(log, disk, other) == (True, ["write"])


def test_nearly_every_append_of_a_follower_only_writes() -> None:
    leader = filled(MemoryDisk(), FOLLOWED_GROUPS_MAX + 3, LogConfig())
    log = opened(MemoryDisk(), LogConfig())
    said: list[bool] = []
    for offset in range(leader.log_end_offset):
        batches = verified_batches(leader.reader.read(Offset(offset), 1, leader.log_end_offset))
        said.append(log.writer.only_writes_sealed(batches))
        log.writer.append_sealed(batches, NOW)
    assert said[0] is False, "the log is to be known as a follower's first"
    assert all(said[1:FOLLOWED_GROUPS_MAX])
    assert said[FOLLOWED_GROUPS_MAX:] == [False, True, True], "L7: so many groups need a sync"
