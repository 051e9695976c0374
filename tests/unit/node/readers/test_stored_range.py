"""Where a body lies: told of what is worth it and is there, by a path that a reader can open."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from envelope.limits import KIB
from envelope.types import FilePosition, Offset
from jetstream.log.disk.os_disk import OsDisk
from jetstream.log.log import Log, LogConfig
from jetstream.node.disk.leased_range import Body
from jetstream.node.readers.output import stored_range
from tests.support.logs import NOW, batch_for


@contextmanager
def a_body(root: Path, position: int = 0, length: int = 20 * KIB) -> Iterator[Body]:
    """``length`` bytes of a segment of some more, leased."""
    root.mkdir(exist_ok=True)
    disk = OsDisk(root)
    log = Log.open(disk, "s", LogConfig(), NOW)
    log.writer.append_group((batch_for(log, [bytes(60 * KIB)]),), NOW)
    log.writer.sync()
    whole = log.reader.plan_read(Offset(0), 1, log.writer.synced_end)
    body = Body.leased(replace(whole, position=FilePosition(position), length=length))
    try:
        yield body
    finally:
        body.release()
        log.close(clean=False)
        disk.close()


@pytest.mark.parametrize(("length", "is_told"), [(1, False), (16 * KIB, False), (16 * KIB + 1, True)])
def test_of_more_than_16_kib_is_told_where_it_lies(tmp_path: Path, length: int, is_told: bool) -> None:
    with a_body(tmp_path, 1000, length) as body:
        where = stored_range(body)
        assert (where is not None) is is_told
        if where is not None:
            assert Path(where.path).parent == tmp_path / "s"
            status = Path(where.path).stat()
            assert (where.device, where.inode) == (status.st_dev, status.st_ino)
            assert (where.position, where.length) == (1000, length)


def test_a_file_that_has_been_removed_is_sent_not_told_of(tmp_path: Path) -> None:
    with a_body(tmp_path) as body:
        where = stored_range(body)
        assert where is not None
        Path(where.path).unlink()
        assert stored_range(body) is None


def test_a_file_that_was_renamed_is_told_of_by_its_new_name(tmp_path: Path) -> None:
    with a_body(tmp_path) as body:
        where = stored_range(body)
        assert where is not None
        Path(where.path).rename(tmp_path / "moved")
        assert stored_range(body) == where.model_copy(update={"path": str(tmp_path / "moved")})


def test_a_path_that_is_no_text_is_not_told(tmp_path: Path) -> None:
    with a_body(Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))) as body:
        assert stored_range(body) is None
