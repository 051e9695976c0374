"""Asking the kernel which pages it holds, of files that are really there."""

from pathlib import Path

import pytest

from benchmarks import machine, page_cache


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / "one", tmp_path / "two", tmp_path / "empty"]
    for path, length in zip(paths, (300_000, 4096, 0), strict=True):
        path.write_bytes(b"x" * length)
    return paths


def test_a_file_that_was_read_is_in_the_page_cache(files: list[Path]) -> None:
    page_cache.warm(files)

    assert page_cache.resident_share(files) == 1.0


def test_a_dropped_file_is_not(files: list[Path], tmp_path: Path) -> None:
    if machine.mount_of(tmp_path)[1] in machine.MEMORY_FILESYSTEMS:
        pytest.skip("files that lie in memory cannot be dropped from it")
    page_cache.warm(files)

    page_cache.drop(files)

    assert page_cache.resident_share(files) == 0.0
    assert files[0].read_bytes() == b"x" * 300_000


def test_no_file_holds_no_page(files: list[Path]) -> None:
    assert page_cache.resident_share([]) == 0.0
    assert page_cache.resident_share(files[2:]) == 0.0
