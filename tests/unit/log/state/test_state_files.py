import contextlib
from itertools import pairwise

import pytest

from envelope.errors import CorruptDataError, DiskFull
from envelope.types import FilePosition, LeaderEpoch, Offset, TimestampUs
from jetstream.log.disk.state_file import Json, decode_state, encode_state, read_whole, write_state
from jetstream.log.format.checksum import crc32c
from jetstream.log.state.checkpoint import Checkpoint, decode_checkpoint
from jetstream.log.state.epochs import EpochHistory, EpochStart, decode_epochs, is_followed
from tests.support.logs import flipped
from tests.support.memory_disk import Fault, FaultKind, MemoryDisk, PowerLostError, nothing_survives

CHECKPOINT = Checkpoint(
    log_start_offset=Offset(5),
    synced_end=Offset(20),
    segment_base=Offset(10),
    synced_position=FilePosition(900),
    last_epoch=LeaderEpoch(2),
    clean=True,
)


def history(*starts: tuple[int, int]) -> EpochHistory:
    return EpochHistory(
        tuple(EpochStart(LeaderEpoch(epoch), Offset(start), TimestampUs(0)) for epoch, start in starts)
    )


def pairs(found: EpochHistory) -> list[tuple[int, int]]:
    return [(entry.epoch, entry.start) for entry in found.starts]


def test_a_state_file_is_a_line_of_json_and_a_line_of_its_crc() -> None:
    content = encode_state({"b": [1, "x"], "a": None})
    line, checksum, rest = content.split(b"\n")
    assert line == b'{"a":null,"b":[1,"x"]}'
    assert len(checksum) == 8
    assert rest == b""
    assert decode_state(content) == {"a": None, "b": [1, "x"]}


def test_a_flip_in_any_bit_of_a_state_file_is_found() -> None:
    content = encode_state(CHECKPOINT.encode())
    for position in range(len(content)):
        for bit in range(8):
            with pytest.raises(CorruptDataError):
                decode_state(flipped(content, position, bit))
    for length in range(len(content)):
        with pytest.raises(CorruptDataError):
            decode_state(content[:length])


@pytest.mark.parametrize("line", [b"", b"[]", b'"text"', b"{", b"1", b"\xff"])
def test_what_is_not_an_object_is_refused(line: bytes) -> None:
    with pytest.raises(CorruptDataError):
        decode_state(b"%s\n%08x\n" % (line, crc32c(line)))


def test_a_state_file_is_old_or_new_after_a_power_loss_at_any_call() -> None:
    before: dict[str, Json] = {"n": 1}
    after: dict[str, Json] = {"n": 2}
    for number in range(1, 10):
        disk = MemoryDisk()
        write_state(disk, "state", before)
        disk.faults[disk.calls + number] = Fault(FaultKind.POWER_LOSS)
        with contextlib.suppress(PowerLostError):
            write_state(disk, "state", after)
        found = decode_state(read_whole(disk.power_loss(nothing_survives), "state"))
        assert found in (before, after)
        assert number <= 5 or found == after, "it has returned"


def test_a_full_disk_leaves_the_old_state() -> None:
    disk = MemoryDisk()
    write_state(disk, "state", {"n": 1})
    disk.capacity_bytes = 20
    with pytest.raises(DiskFull):
        write_state(disk, "state", {"n": 2})
    disk.capacity_bytes = None
    assert decode_state(read_whole(disk, "state")) == {"n": 1}
    write_state(disk, "state", {"n": 3})
    assert decode_state(read_whole(disk, "state")) == {"n": 3}


def test_a_checkpoint_survives_the_round_trip() -> None:
    assert decode_checkpoint(decode_state(encode_state(CHECKPOINT.encode()))) == CHECKPOINT


@pytest.mark.parametrize(
    "change",
    [
        {"clean": 1},
        {"synced_end": -1},
        {"synced_end": "20"},
        {"synced_end": True},
        {"log_start_offset": 21},
        {"segment_base": 21},
        {"last_epoch": None},
    ],
)
def test_a_checkpoint_that_makes_no_sense_is_refused(change: dict[str, Json]) -> None:
    with pytest.raises(CorruptDataError):
        decode_checkpoint({**CHECKPOINT.encode(), **change})


EPOCHS = history((1, 0), (3, 10), (4, 10), (7, 25))


@pytest.mark.parametrize(("offset", "epoch"), [(0, 1), (9, 1), (10, 4), (24, 4), (25, 7), (1000, 7)])
def test_an_offset_belongs_to_the_newest_epoch_that_began_at_or_before_it(offset: int, epoch: int) -> None:
    assert EPOCHS.at(Offset(offset)) == epoch


@pytest.mark.parametrize(
    ("epoch", "end"), [(1, 10), (3, 10), (4, 25), (7, 40), (0, None), (2, None), (8, None)]
)
def test_an_epoch_ends_where_the_next_one_begins(epoch: int, end: int | None) -> None:
    assert EPOCHS.end_of(LeaderEpoch(epoch), Offset(40)) == end


@pytest.mark.parametrize("followed", [False, True])
def test_an_epoch_without_records_is_kept(followed: bool) -> None:
    state = EPOCHS.encode(followed=followed)
    assert pairs(decode_epochs(state)) == pairs(EPOCHS)
    assert is_followed(state) is followed


def test_an_epochs_file_of_before_there_were_followers_is_of_a_leader() -> None:
    state = EPOCHS.encode(followed=True)
    del state["followed"]
    assert not is_followed(state)


def test_cutting_forgets_epochs_from_the_cut_on() -> None:
    assert pairs(EPOCHS.cut(Offset(25))) == [(1, 0), (3, 10), (4, 10)]
    assert pairs(EPOCHS.cut(Offset(10))) == [(1, 0)]
    assert pairs(EPOCHS.cut(Offset(0))) == []


def test_pruning_keeps_the_epochs_of_kept_records_and_of_the_one_before() -> None:
    assert pairs(EPOCHS.pruned(Offset(10))) == pairs(EPOCHS)
    assert pairs(EPOCHS.pruned(Offset(11))) == [(4, 10), (7, 25)]
    assert pairs(EPOCHS.pruned(Offset(30))) == [(7, 25)]


def test_epochs_that_batches_prove_are_added() -> None:
    written = history((3, 10), (5, 18)).starts
    assert pairs(history((1, 0), (4, 10)).merged(written)) == [(1, 0), (3, 10), (4, 10), (5, 18)]


@pytest.mark.parametrize(
    "entries", [None, [[1, 0]], [[1, 0, "x"]], [[2, 0, 0], [1, 5, 0]], [[1, 5, 0], [2, 4, 0]], [[-1, 0, 0]]]
)
def test_an_epochs_file_that_makes_no_sense_is_refused(entries: Json) -> None:
    with pytest.raises(CorruptDataError):
        decode_epochs({"entries": entries})


def test_epochs_must_increase() -> None:
    with pytest.raises(AssertionError, match="E1"):
        EPOCHS.begun(LeaderEpoch(7), Offset(50), TimestampUs(0))
    assert all(before.epoch < after.epoch for before, after in pairwise(EPOCHS.starts))
