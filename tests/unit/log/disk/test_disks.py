"""What both disks promise, and what each adds."""

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from envelope.errors import DiskFull, FsyncFailed, OutOfResources, StorageError
from jetstream.log.disk.os_disk import OsDisk
from jetstream.log.disk.port import Disk, make_directories
from jetstream.log.log import LogConfig
from tests.support.descriptors import no_more_files
from tests.support.logs import append, begun, file_content, opened, stored_values
from tests.support.memory_disk import (
    Fault,
    FaultKind,
    MemoryDisk,
    PowerLostError,
    everything_survives,
    nothing_survives,
    random_survival,
)


@pytest.fixture(params=["memory", "real"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    return MemoryDisk() if request.param == "memory" else OsDisk(tmp_path / "data")


def put(disk: Disk, path: str, content: bytes) -> None:
    file = disk.create(path)
    file.write([content], 0)
    file.close()


# --- both --------------------------------------------------------------------------------------------


def test_what_is_written_is_read(disk: Disk) -> None:
    file = disk.create("file")
    assert file.write([b"ab", bytearray(b"cd"), memoryview(b"ef")], 0) == 6
    assert file.write([b"XY"], 2) == 2
    assert file.read(0, 100) == b"abXYef"
    assert file.read(4, 1) == b"e"
    assert file.read(6, 10) == b""
    file.sync()
    file.truncate(3)
    assert (file.size(), file.read(0, 10)) == (3, b"abX")
    assert file.write([b"z"], 5) == 1
    assert file.read(0, 10) == b"abX\0\0z"
    file.drop_cache(0)
    file.close()


def test_many_buffers_are_written_in_order(disk: Disk) -> None:
    file = disk.create("file")
    buffers = [b"%04d" % number for number in range(3000)]
    file.write(buffers, 10)
    assert file.read(10, 20_000) == b"".join(buffers)
    file.close()


def test_files_are_created_opened_listed_renamed_and_removed(disk: Disk) -> None:
    make_directories(disk, "a/b")
    make_directories(disk, "a/b")
    put(disk, "a/b/two", b"2")
    put(disk, "a/b/one", b"1")
    assert disk.listdir("a/b") == ["one", "two"]
    assert (disk.exists("a/b"), disk.exists("a/b/one"), disk.exists("a/c/one")) == (True, True, False)
    disk.rename("a/b/one", "a/b/two")
    assert disk.listdir("a/b") == ["two"]
    assert file_content(disk, "a/b/two") == b"1"
    disk.sync_dir("a/b")
    disk.rename("a/b/two", "a/four")
    assert (disk.listdir("a"), disk.listdir("a/b")) == (["b", "four"], [])
    assert file_content(disk, "a/four") == b"1"
    disk.unlink("a/four")
    assert disk.listdir("a") == ["b"]
    put(disk, "a/b/three", b"3")
    disk.remove_tree("a")
    assert disk.listdir("") == []


def test_what_is_to_be_removed_may_be_gone_already(disk: Disk) -> None:
    disk.unlink("missing")
    disk.unlink("missing/file")
    disk.remove_tree("missing")
    assert disk.listdir("") == []


def test_an_open_file_outlives_its_name(disk: Disk) -> None:
    put(disk, "file", b"content")
    file = disk.open("file")
    disk.unlink("file")
    assert file.read(0, 10) == b"content"
    file.close()


@pytest.mark.parametrize(
    "action",
    [
        lambda disk: disk.open("missing"),
        lambda disk: disk.create("file"),
        lambda disk: disk.create("missing/file"),
        lambda disk: disk.mkdir("directory"),
        lambda disk: disk.rename("missing", "other"),
        lambda disk: disk.unlink("directory"),
        lambda disk: disk.listdir("missing"),
        lambda disk: disk.sync_dir("missing"),
    ],
)
def test_what_cannot_be_done_is_a_storage_error_that_does_not_say_where_the_data_is(
    disk: Disk, action: Callable[[Disk], object], tmp_path: Path
) -> None:
    put(disk, "file", b"")
    disk.mkdir("directory")
    with pytest.raises(StorageError) as refused:
        action(disk)
    assert str(tmp_path) not in str(refused.value)


def test_a_lock_is_held_by_one_until_it_is_closed(disk: Disk) -> None:
    lock = disk.lock("lock")
    with pytest.raises(StorageError, match="held"):
        disk.lock("lock")
    lock.close()
    disk.lock("lock").close()


def test_free_bytes_are_counted(disk: Disk) -> None:
    assert disk.free_bytes() > 0


def test_a_sync_of_the_whole_disk_succeeds(disk: Disk) -> None:
    put(disk, "file", b"content")
    assert disk.sync_all() in (True, False)


def test_a_log_lives_on_either_disk(disk: Disk) -> None:
    config = LogConfig(segment_bytes=5000)
    log = begun(disk, config)
    for number in range(20):
        append(log, [b"%d" % number])
        log.writer.sync()
    log.close()
    log = opened(disk, config)
    assert stored_values(log) == {number: b"%d" % number for number in range(20)}
    assert log.recovery.problems == ()
    log.close()


# --- the real one ------------------------------------------------------------------------------------


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    really = os.pwritev

    def short(descriptor: int, buffers: list[bytes], position: int) -> int:
        return really(descriptor, [b"".join(bytes(buffer) for buffer in buffers)[:7]], position)

    monkeypatch.setattr(os, "pwritev", short)
    file = OsDisk(tmp_path).create("file")
    assert file.write([b"0123456789", b"", b"abcdefghij"], 3) == 20
    assert file.read(3, 30) == b"0123456789abcdefghij"
    file.close()


def test_without_a_descriptor_everything_is_refused_but_making_durable_what_is_there(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path)
    disk.mkdir("directory")
    file = disk.create("directory/file")
    calls: list[Callable[[], object]] = [
        lambda: disk.open("directory/file"),
        lambda: disk.create("new"),
        lambda: disk.lock("lock"),
        lambda: disk.listdir("directory"),
        lambda: disk.remove_tree("directory"),
    ]
    with no_more_files():
        for call in calls:
            with pytest.raises(OutOfResources, match="Too many open files"):
                call()
        file.write([b"x"], 0)
        file.sync()
        disk.rename("directory/file", "directory/other")
        disk.sync_dir("directory")
    assert disk.listdir("") == ["directory"]
    assert disk.listdir("directory") == ["other"]
    file.close()
    disk.close()


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (errno.ENOSPC, DiskFull),
        (errno.EDQUOT, DiskFull),
        (errno.EFBIG, DiskFull),
        (errno.ENOMEM, OutOfResources),
        (errno.EIO, StorageError),
        (errno.EROFS, StorageError),
    ],
)
def test_errors_of_the_system_are_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, error: type[Exception]
) -> None:
    file = OsDisk(tmp_path).create("file")

    def fail(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "pwritev", fail)
    monkeypatch.setattr(os, "fdatasync", fail)
    for refused, call in ((error, lambda: file.write([b"x"], 0)), (FsyncFailed, file.sync)):
        with pytest.raises(refused) as caught:
            call()
        assert str(tmp_path) not in str(caught.value), "clients hear of it"
    file.close()


def test_a_closed_descriptor_is_a_storage_error(tmp_path: Path) -> None:
    file = OsDisk(tmp_path).create("file")
    file.close()
    for action in (file.size, file.sync, file.close):
        with pytest.raises(StorageError):
            action()


def test_a_device_without_space_is_full(tmp_path: Path) -> None:
    (tmp_path / "full").symlink_to("/dev/full")
    file = OsDisk(tmp_path).open("full")
    with pytest.raises(DiskFull):
        file.write([b"x"], 0)
    file.close()


def test_a_file_that_may_only_be_read_is_opened_for_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"content")
    really = os.open

    def read_only(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_RDWR:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return really(path, flags, mode)

    disk = OsDisk(tmp_path)
    monkeypatch.setattr(os, "open", read_only)
    file = disk.open("file")
    assert file.read(0, 10) == b"content"
    with pytest.raises(StorageError):
        file.write([b"x"], 0)
    file.close()


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError):
        OsDisk(tmp_path / "file")


def test_an_old_kernel_does_not_answer_for_the_whole_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.release", lambda: "5.4.0-generic")
    assert OsDisk(tmp_path).sync_all() is False


_FILLING = """
import resource, sys
from pathlib import Path
from envelope.errors import DiskFull
from jetstream.log.disk.os_disk import OsDisk
from tests.support.logs import append, begun, opened, stored_values

resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
disk = OsDisk(Path(sys.argv[1]))
log = begun(disk)
acked = 0
try:
    while True:
        append(log, [b"%d" % acked + b"x" * 3000])
        log.writer.sync()
        acked += 1
except DiskFull:
    pass
assert acked > 3 and log.failed is None, (acked, log.failed)
assert log.reader.size == Path(sys.argv[1], log.reader.segments[0].path).stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
append(log, [b"%d" % acked])
log.close()
values = stored_values(opened(disk))
assert [value.rstrip(b"x") for value in values.values()] == [b"%d" % number for number in range(acked + 1)]
print("ok")
"""


def test_a_real_limit_on_file_size_refuses_and_goes_on(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    assert soft == hard == resource.RLIM_INFINITY, "the limit is the subprocess's own"
    done = subprocess.run(
        [sys.executable, "-c", _FILLING, str(tmp_path)],
        cwd=Path(__file__).parents[4],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "ok\n", done.stderr


# --- the one in memory -------------------------------------------------------------------------------


def test_what_is_not_synced_is_lost_with_the_power() -> None:
    disk = MemoryDisk()
    put(disk, "file", b"lost")
    assert disk.power_loss(nothing_survives).listdir("") == []
    disk = MemoryDisk()
    put(disk, "file", b"lost")
    disk.sync_dir("")
    assert file_content(disk.power_loss(nothing_survives), "file") == b""
    assert file_content(disk.power_loss(everything_survives), "file") == b"lost"


def test_a_name_is_durable_only_with_its_directory() -> None:
    disk = MemoryDisk()
    file = disk.create("file")
    file.write([b"content"], 0)
    file.sync()
    assert not disk.power_loss(nothing_survives).exists("file")
    assert file_content(disk.power_loss(everything_survives), "file") == b"content"


def test_a_rename_is_atomic_and_lost_without_a_sync_of_the_directory() -> None:
    disk = MemoryDisk()
    for name in ("old", "new"):
        file = disk.create(name)
        file.write([name.encode()], 0)
        file.sync()
    disk.sync_dir("")
    disk.rename("new", "old")
    for seed in range(20):
        found = disk.power_loss(random_survival(seed))
        assert (found.listdir(""), file_content(found, "old")) in (
            (["new", "old"], b"old"),
            (["old"], b"new"),
        )


def test_a_move_to_another_directory_happens_in_both_or_in_neither() -> None:
    disk = MemoryDisk()
    make_directories(disk, "new")
    file = disk.create("file")
    file.write([b"content"], 0)
    file.sync()
    disk.sync_dir("")
    disk.rename("file", "new/file")
    unsynced = [disk.power_loss(random_survival(seed)) for seed in range(20)]
    assert {(found.exists("file"), found.exists("new/file")) for found in unsynced} == {
        (True, False),
        (False, True),
    }
    disk.process_loss()
    disk.sync_dir("new")
    half = [disk.power_loss(random_survival(seed)) for seed in range(20)]
    assert {(found.exists("file"), found.exists("new/file")) for found in half} == {
        (True, True),
        (False, True),
    }
    assert {file_content(found, "new/file") for found in half} == {b"content"}


def test_unsynced_sectors_survive_by_chance_and_leave_zeros() -> None:
    seen = set()
    for seed in range(50):
        disk = MemoryDisk()
        file = disk.create("file")
        disk.sync_dir("")
        file.write([b"a" * 512 + b"b" * 512], 0)
        content = file_content(disk.power_loss(random_survival(seed)), "file")
        assert len(content) <= 1024
        assert set(content[:512]) <= set(b"a\0")
        assert set(content[512:]) <= set(b"b\0")
        seen.add(content)
    assert len(seen) > 5


def test_a_failed_sync_is_never_made_good_by_a_later_one() -> None:
    disk = MemoryDisk()
    file = disk.create("file")
    disk.sync_dir("")
    file.write([b"lost"], 0)
    disk.faults[disk.calls + 1] = Fault(FaultKind.SYNC_ERROR)
    with pytest.raises(FsyncFailed):
        file.sync()
    file.sync()
    assert file.read(0, 10) == b"lost", "the cache shows it"
    file.drop_cache(0)
    assert file.read(0, 10) == bytes(4), "the medium does not have it"
    assert file_content(disk.power_loss(everything_survives), "file") == b""


def test_nothing_works_while_the_power_is_off() -> None:
    disk = MemoryDisk({2: Fault(FaultKind.POWER_LOSS)})
    file = disk.create("file")
    with pytest.raises(PowerLostError):
        file.write([b"x"], 0)
    for action in (lambda: file.read(0, 1), lambda: disk.listdir(""), lambda: disk.sync_dir("")):
        with pytest.raises(PowerLostError):
            action()


def test_a_disk_of_limited_size_is_full_and_then_not() -> None:
    disk = MemoryDisk(capacity_bytes=10)
    file = disk.create("file")
    file.write([b"12345678"], 0)
    assert disk.free_bytes() == 2
    with pytest.raises(DiskFull):
        file.write([b"abcd"], 8)
    file.truncate(4)
    file.write([b"abcd"], 4)
    assert file.read(0, 20) == b"1234abcd"


def test_a_file_in_memory_has_no_descriptor() -> None:
    with pytest.raises(StorageError):
        MemoryDisk().create("file").fileno()
