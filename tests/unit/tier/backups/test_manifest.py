import hashlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envelope.errors import DamagedBackup
from envelope.types import Incarnation, Offset, TimestampUs
from jetstream.tier.backups.manifest import BackedUpStream, decode_backup, encode_backup, is_manifest
from tests.support.backup_manifests import CREATED, WHOLE, backed_up_stream, backup_manifest, backup_object
from tests.support.logs import flipped

PATH, CONTENT = encode_backup(backup_manifest(WHOLE))


def test_what_is_written_is_read() -> None:
    assert is_manifest(PATH)
    assert decode_backup(PATH, CONTENT) == backup_manifest(WHOLE)


def test_names_are_in_the_order_of_time() -> None:
    later = replace(backup_manifest(WHOLE), created_at=TimestampUs(CREATED + 1))
    assert encode_backup(later)[0] > PATH
    assert not is_manifest(f"{PATH}.new")


@given(st.integers(0, len(CONTENT) - 1), st.integers(0, 7))
def test_every_flipped_bit_is_found(position: int, bit: int) -> None:
    with pytest.raises(DamagedBackup):
        decode_backup(PATH, flipped(CONTENT, position, bit))


@given(st.integers(0, len(CONTENT) - 1))
def test_a_part_is_no_manifest(length: int) -> None:
    with pytest.raises(DamagedBackup):
        decode_backup(PATH, CONTENT[:length])


@pytest.mark.parametrize(
    "wrong",
    [
        backed_up_stream(backup_object(0, 10), backup_object(11, 20), end=20),
        backed_up_stream(backup_object(0, 10), backup_object(5, 20), end=20),
        backed_up_stream(backup_object(0, 10), backup_object(10, 10), end=10),
        backed_up_stream(backup_object(0, 10), end=11),
        backed_up_stream(backup_object(5, 10), start=4, end=10),
        backed_up_stream(backup_object(0, 10), backup_object(10, 20), start=10, end=20),
        backed_up_stream(start=3, end=4),
        backed_up_stream(start=-1, end=-1),
        backed_up_stream(backup_object(0, 10), backup_object(10, 20, epoch=2), end=20),
        backed_up_stream(replace(backup_object(0, 10), epochs=()), end=10),
        replace(backed_up_stream(), incarnation=Incarnation("../life")),
    ],
)
def test_a_stream_with_holes_has_a_problem(wrong: BackedUpStream) -> None:
    assert wrong.problem() is not None


def test_a_stream_without_records_has_none() -> None:
    assert backed_up_stream(start=7, end=7).problem() is None


@pytest.mark.parametrize(
    ("written", "forged"),
    [(b'"format":1', b'"format":2'), (b'"next":10', b'"next":11'), (b'"end"', b'"END"')],
)
def test_a_manifest_that_makes_no_sense_is_refused_under_its_own_hash(written: bytes, forged: bytes) -> None:
    content = CONTENT.replace(written, forged)
    assert content != CONTENT
    path = f"{PATH.partition('-')[0]}-{hashlib.sha256(content).hexdigest()}.json"
    assert is_manifest(path)
    with pytest.raises(DamagedBackup):
        decode_backup(path, content)


def test_the_history_has_each_epoch_from_its_first_batch_on() -> None:
    objects = backup_object(0, 10), backup_object(10, 20), backup_object(20, 30, epoch=5)
    history = backed_up_stream(*objects, end=30).history
    assert [(entry.epoch, entry.start) for entry in history.starts] == [(3, 0), (5, 20)]


def test_equal_objects_are_counted_once() -> None:
    twice = replace(WHOLE, objects=(*WHOLE.objects, backup_object(0, 10)), end=Offset(30))
    assert len(backup_manifest(WHOLE, twice).objects) == 3
