import hashlib
from dataclasses import replace

import pytest

from envelope.errors import DamagedBackup, TierUnavailable, UnknownBackup
from jetstream.tier.backups.backup_store import BackupStore
from jetstream.tier.backups.manifest import encode_backup
from tests.support.backup_manifests import backed_up_stream, backup_manifest, backup_object
from tests.support.object_stores import MemoryStore, StoreFault

CONTENT = b"schema" + b"batches" * 100_000
SHA256 = hashlib.sha256(CONTENT).hexdigest()
OBJECT = replace(backup_object(0, 10), sha256=SHA256, size=len(CONTENT))
MANIFEST = backup_manifest(backed_up_stream(OBJECT, end=10))


def test_an_object_is_stored_once_under_its_hash() -> None:
    memory = MemoryStore()
    store = BackupStore(memory.store)
    assert store.put_object([CONTENT[:6], CONTENT[6:]], ()) == (SHA256, True)
    assert store.put_object([CONTENT], ()) == (SHA256, False)
    assert b"".join(bytes(chunk) for chunk in store.chunks(OBJECT)) == CONTENT
    assert store.present(MANIFEST) == {SHA256}


def test_one_that_is_known_is_not_looked_at() -> None:
    memory = MemoryStore()
    assert BackupStore(memory.store).put_object([CONTENT], {SHA256}) == (SHA256, False)
    assert memory.trace == []


@pytest.mark.parametrize("found", [CONTENT[:-1], bytes(len(CONTENT))])
def test_what_an_interrupted_backup_has_left_of_one_is_replaced(found: bytes) -> None:
    memory = MemoryStore()
    store = BackupStore(memory.store)
    store.put_object([CONTENT], ())
    [path] = memory.objects
    memory.objects[path] = found
    assert store.put_object([CONTENT], ()) == (SHA256, True)
    assert memory.objects[path] == CONTENT


def test_a_backup_is_there_with_its_manifest_and_the_newest_is_the_last() -> None:
    store = BackupStore(MemoryStore().store)
    store.put_object([CONTENT], ())
    assert store.names() == []
    with pytest.raises(UnknownBackup):
        store.manifest()
    name = store.put_manifest(MANIFEST)
    assert store.names() == [name]
    assert store.manifest() == store.manifest(name) == MANIFEST
    store.check(MANIFEST)


@pytest.mark.parametrize("found", [CONTENT[:-1], CONTENT[:-1] + b"x", CONTENT + b"x", None])
def test_an_object_that_is_damaged_or_missing_is_told(found: bytes | None) -> None:
    memory = MemoryStore()
    store = BackupStore(memory.store)
    store.put_object([CONTENT], ())
    [path] = memory.objects
    del memory.objects[path]
    if found is not None:
        memory.objects[path] = found
    with pytest.raises(DamagedBackup):
        for _ in store.chunks(OBJECT):
            pass
    if found is None or len(found) != len(CONTENT):
        with pytest.raises(DamagedBackup):
            store.check(MANIFEST)
        assert store.present(MANIFEST) == frozenset()


def test_what_is_wrong_on_the_way_is_told_as_well() -> None:
    memory = MemoryStore()
    store = BackupStore(memory.store)
    store.put_object([CONTENT], ())
    for number in range(len(memory.trace) + 1, len(memory.trace) + 8):
        memory.faults[number] = StoreFault.WRONG
    with pytest.raises((DamagedBackup, TierUnavailable)):
        for _ in store.chunks(OBJECT):
            pass


def test_manifests_that_are_damaged_are_passed_over_for_the_last_one_that_is_not() -> None:
    memory = MemoryStore()
    store = BackupStore(memory.store)
    assert store.newest_readable() == (None, ())
    name = store.put_manifest(MANIFEST)
    torn = encode_backup(MANIFEST)[0].replace("2023", "2033")
    memory.objects[f"bucket/{torn}"] = b"{"
    assert store.names() == [name, torn]
    assert store.newest_readable() == (MANIFEST, (torn,))
    with pytest.raises(DamagedBackup):
        store.manifest()
