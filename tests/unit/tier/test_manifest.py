from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envelope.errors import CorruptDataError
from envelope.types import LeaderEpoch, Offset, TimestampUs
from jetstream.log.state.epochs import EpochHistory, EpochStart
from jetstream.tier.manifest import TierManifest, decode_manifest, encode_manifest, name_of
from jetstream.tier.object_names import ManifestName, SegmentName, parsed_name
from metadata.catalog.tables import TierMark
from tests.support.logs import flipped
from tests.support.manifests import WHOLE, manifest, segment


def test_what_is_written_is_read() -> None:
    content = encode_manifest(WHOLE)
    path = f"d/{name_of(WHOLE, content)}"
    assert parsed_name(path) == name_of(WHOLE, content)
    assert decode_manifest(path, content) == WHOLE


@given(st.integers(0, len(encode_manifest(WHOLE)) - 1), st.integers(0, 7))
def test_every_flipped_bit_is_found(position: int, bit: int) -> None:
    content = encode_manifest(WHOLE)
    with pytest.raises(CorruptDataError):
        decode_manifest(f"d/{name_of(WHOLE, content)}", flipped(content, position, bit))


@pytest.mark.parametrize(
    "wrong",
    [
        manifest(segment(0, 10), segment(11, 20), end=20),
        manifest(segment(0, 10), segment(5, 10), end=10),
        manifest(segment(5, 10), start=4, end=10),
        manifest(segment(0, 10), end=11),
        manifest(start=3, end=4),
        manifest(segment(0, 10), start=11, end=10),
    ],
)
def test_a_manifest_with_holes_is_refused(wrong: TierManifest) -> None:
    assert wrong.problem() is not None
    content = encode_manifest(WHOLE)
    forged = content.replace(b'"next":10', b'"next": 9')
    name = ManifestName(3, LeaderEpoch(2), name_of(WHOLE, forged).sha256)
    with pytest.raises(CorruptDataError, match="T1"):
        decode_manifest(str(name), forged)


def test_an_offset_is_found_in_the_first_segment_that_has_it() -> None:
    found = {offset: WHOLE.at(Offset(offset)).base for offset in (0, 9, 10, 24, 25, 29, 30, 39)}
    assert found == {0: 0, 9: 0, 10: 10, 24: 10, 25: 10, 29: 10, 30: 25, 39: 25}
    assert [WHOLE.after(one) for one in WHOLE.segments] == [WHOLE.segments[1], WHOLE.segments[2], None]


def test_the_next_one_leaves_out_what_is_let_go() -> None:
    mark = TierMark(7, Offset(12), Offset(40))
    log = EpochHistory(
        (
            EpochStart(LeaderEpoch(2), Offset(20), TimestampUs(2)),
            EpochStart(LeaderEpoch(5), Offset(41), TimestampUs(3)),
            EpochStart(LeaderEpoch(6), Offset(60), TimestampUs(4)),
        )
    )
    following = WHOLE.advanced(mark, (segment(40, 50, 5),), log)
    assert following.problem() is None
    assert [one.base for one in following.segments] == [10, 25, 40]
    assert (following.version, following.start, following.end) == (8, 12, 50)
    assert [entry[0] for entry in following.epochs] == [1, 2, 5]
    assert following.last_epoch == 5
    gone = WHOLE.advanced(TierMark(7, Offset(45), Offset(45)), (), log)
    assert (gone.segments, gone.start, gone.end, gone.problem()) == ((), 45, 45, None)


def test_the_epochs_are_those_of_the_log_once_all_that_was_listed_is_let_go() -> None:
    log = EpochHistory(
        (
            EpochStart(LeaderEpoch(1), Offset(0), TimestampUs(1)),
            EpochStart(LeaderEpoch(3), Offset(60), TimestampUs(3)),
        )
    )
    gone = WHOLE.advanced(TierMark(7, Offset(45), Offset(45)), (), log)
    assert [entry[0] for entry in gone.epochs] == [1], "epoch 2 was another log's"
    following = gone.advanced(TierMark(8, Offset(45), Offset(45)), (segment(45, 70, 3),), log)
    assert following.problem() is None
    assert [following.history.at(Offset(offset)) for offset in (45, 59, 60)] == [1, 1, 3]


def test_names_tell_what_an_object_is() -> None:
    name = SegmentName(Offset(0), Offset(7), LeaderEpoch(3), "ab" * 32)
    assert parsed_name(f"orders@life/{name}") == name
    for foreign in ("readme.txt", f"{name}.part", str(name).upper(), "manifest-1-2-3.json"):
        assert parsed_name(f"orders@life/{foreign}") is None
    assert replace(name, epoch=LeaderEpoch(4)) != parsed_name(str(name))
