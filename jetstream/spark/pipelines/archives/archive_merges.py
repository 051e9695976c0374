"""Which small files of an archive become one: a pure decision.

Files of a directory are sorted into classes by size: one class is `FAN` times as large as the next. Where
`FAN` files of a class have gathered they become one of the next class, so that a row is written anew a few
times at most, however many small files there are. Files of the target's size are left alone.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from jetstream.spark.pipelines.archives.archive_files import ArchivedFile

FAN: Final = 8
CLASSES_MAX: Final = 4
"""Smaller files than those of the last class are in it too."""


@dataclass(frozen=True, slots=True)
class Merge:
    """Files of one directory that become one file there."""

    directory: str
    files: tuple[ArchivedFile, ...]


def due_merges(files: Sequence[ArchivedFile], target_bytes: int) -> list[Merge]:
    """Return what pays off now, while more files come in: at most one merge of each class and directory."""
    classes: dict[tuple[str, int], list[ArchivedFile]] = defaultdict(list)
    for file in files:
        if file.bytes < target_bytes:
            classes[file.directory, _class_of(file, target_bytes)].append(file)
    return [
        Merge(directory, tuple(_until_full(members[:FAN], target_bytes)))
        for (directory, _), members in classes.items()
        if len(members) >= FAN
    ]


def final_merges(files: Sequence[ArchivedFile], target_bytes: int) -> list[Merge]:
    """Return the merges that make files as few and as large as they should be, where no more come in.

    Merged files may be smaller than their sources together, so that there is more to merge afterwards; each
    time there are fewer files, and so it ends.
    """
    directories: dict[str, list[ArchivedFile]] = defaultdict(list)
    for file in files:
        if file.bytes < target_bytes:
            directories[file.directory].append(file)
    merges = []
    for directory, members in directories.items():
        start = 0
        while len(members) - start > 1:
            full = tuple(_until_full(members[start:], target_bytes))
            merges.append(Merge(directory, full))
            start += len(full)
    return merges


def _class_of(file: ArchivedFile, target_bytes: int) -> int:
    """Return 0 for files that are nearly large enough, more for smaller ones."""
    bounds = (target_bytes // FAN**number for number in range(1, CLASSES_MAX))
    return sum(1 for _ in takewhile(lambda bound: file.bytes < bound, bounds))


def _until_full(files: Sequence[ArchivedFile], target_bytes: int) -> Iterator[ArchivedFile]:
    """Yield files until they reach the target together: at least two, if there are so many."""
    total = 0
    for file in files:
        if total >= target_bytes:
            return
        yield file
        total += file.bytes
