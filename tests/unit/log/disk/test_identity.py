from pathlib import Path

import pytest

from envelope.errors import CorruptDataError, StorageError
from jetstream.log.disk.identity import IDENTITY_FILE, DirectoryIdentity
from jetstream.log.disk.os_disk import OsDisk
from jetstream.log.disk.port import Disk
from tests.support.logs import file_content, flipped, overwrite
from tests.support.memory_disk import MemoryDisk, nothing_survives


@pytest.fixture(params=["memory", "real"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    return MemoryDisk() if request.param == "memory" else OsDisk(tmp_path)


def test_an_empty_directory_gets_an_identity_and_keeps_it(disk: Disk) -> None:
    first = DirectoryIdentity.open_or_create(disk)
    first.close()
    disk.mkdir("streams")
    again = DirectoryIdentity.open_or_create(disk, expected=str(first))
    assert again.identity == first.identity == str(again)
    again.close()


def test_two_directories_have_different_identities() -> None:
    assert str(DirectoryIdentity.open_or_create(MemoryDisk())) != str(
        DirectoryIdentity.open_or_create(MemoryDisk())
    )


def test_a_directory_in_use_is_refused(disk: Disk) -> None:
    held = DirectoryIdentity.open_or_create(disk)
    with pytest.raises(StorageError, match="held"):
        DirectoryIdentity.open_or_create(disk)
    held.close()
    DirectoryIdentity.open_or_create(disk).close()


def test_a_directory_with_files_but_no_identity_is_refused(disk: Disk) -> None:
    disk.create("holiday.jpg").close()
    with pytest.raises(StorageError, match="not ours"):
        DirectoryIdentity.open_or_create(disk)


def test_a_fresh_file_system_is_taken(disk: Disk) -> None:
    disk.mkdir("lost+found")
    DirectoryIdentity.open_or_create(disk).close()


def test_an_exchanged_directory_is_refused_and_given_free(disk: Disk) -> None:
    DirectoryIdentity.open_or_create(disk).close()
    for _ in range(2):
        with pytest.raises(StorageError, match="exchanged"):
            DirectoryIdentity.open_or_create(disk, expected="another")
    DirectoryIdentity.open_or_create(disk).close()


def test_a_damaged_identity_is_refused(disk: Disk) -> None:
    DirectoryIdentity.open_or_create(disk).close()
    overwrite(disk, IDENTITY_FILE, flipped(file_content(disk, IDENTITY_FILE), 20, 0))
    with pytest.raises(CorruptDataError):
        DirectoryIdentity.open_or_create(disk)


def test_an_identity_is_durable_when_returned() -> None:
    disk = MemoryDisk()
    identity = DirectoryIdentity.open_or_create(disk)
    found = DirectoryIdentity.open_or_create(disk.power_loss(nothing_survives))
    assert str(found) == str(identity)
