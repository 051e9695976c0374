"""A table of the last record of each key, as one version of it tells; pure.

A key lies in the bucket that its hash names, a bucket is one Parquet file, and a version names the file of
each bucket that holds anything. A micro-batch writes new files for the buckets that it touches, and nothing
else; then the version that names them takes the place of the one before, as a whole. Files are never changed,
so whoever has read a version can read all of its files until they are removed, at least the grace after they
were replaced.

Theory of operation: the version says which micro-batch of which query is the last in it. Spark starts a batch
again that it does not know to be done, under the same number, and a batch that is in the version is left out.
A query with another checkpoint begins to count anew, so that its numbers say nothing about this table: it is
refused.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final, NamedTuple

from pydantic import ConfigDict, TypeAdapter, ValidationError

from envelope.errors import CorruptDataError, Fenced, InvalidConfig
from envelope.types import TimestampUs
from jetstream.log.disk.state_file import Json

FORMAT: Final = 1
STATE_DIRECTORY: Final = "_table"
VERSION_PATH: Final = f"{STATE_DIRECTORY}/version.json"
LOCK_PATH: Final = f"{STATE_DIRECTORY}/lock"
FILES_DIRECTORY: Final = "_files"
"""Begins with ``_``, which readers of directories pass over: they would also read what is replaced."""


class MergedMicroBatch(NamedTuple):
    """A micro-batch: the query's id, which its checkpoint keeps, and the batch's number in it."""

    query: str
    batch: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The properties that a table keeps for its life.

    Attributes:
        buckets: how many.
        schema: of values that are JSON, as Spark's DDL; None: values are bytes.
    """

    buckets: int
    schema: str | None = None


@dataclass(frozen=True, slots=True)
class BucketFile:
    """The file of one bucket; its path is below `FILES_DIRECTORY`."""

    bucket: int
    path: str
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ReplacedFile:
    """A file that is in no version any more, and when it was replaced."""

    path: str
    at: TimestampUs


class MergedBucket(NamedTuple):
    """A bucket after a micro-batch: its new file, None if nothing is left in it."""

    bucket: int
    path: str | None
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class TableVersion:
    """The files of a table in one version.

    Invariants:
        B1: each bucket has one file at most, and is one of ``layout.buckets``.
        B2: no file is named twice, be it as a bucket's or as replaced.

    Attributes:
        version: grows by one with each micro-batch; 0: nothing was ever written.
        writer: of the last micro-batch that is in it.
        files: by bucket.
        replaced: files that readers of earlier versions may still want.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    layout: Layout
    version: int = 0
    writer: MergedMicroBatch | None = None
    files: tuple[BucketFile, ...] = ()
    replaced: tuple[ReplacedFile, ...] = ()
    format: int = FORMAT

    @property
    def rows(self) -> int:
        """How many keys it has."""
        return sum(file.rows for file in self.files)

    @property
    def file_of(self) -> dict[int, str]:
        """The path of each bucket that has a file."""
        return {file.bucket: file.path for file in self.files}

    def check_layout(self, layout: Layout) -> None:
        """Return if the table can have this layout.

        Raises:
            InvalidConfig: it has another one.
        """
        if self.version and layout != self.layout:
            raise InvalidConfig(f"the table has {_shown(self.layout)}, not {_shown(layout)}")

    def takes(self, writer: MergedMicroBatch) -> bool:
        """Return whether a micro-batch is still to be merged: False if it is in.

        Raises:
            Fenced: the table is another query's.
        """
        last = self.writer
        if last is None:
            return True
        if last.query != writer.query:
            raise Fenced(
                f"the table is of query {last.query}, and this checkpoint is of query {writer.query}: "
                "use the checkpoint that the table was made with, or make another table"
            )
        return writer.batch > last.batch

    def merged(
        self, writer: MergedMicroBatch, buckets: Sequence[MergedBucket], now: TimestampUs, grace_us: int
    ) -> "TableVersion":
        """Return the next version: with these buckets, without replaced files whose grace is over."""
        touched = {bucket.bucket for bucket in buckets}
        assert len(touched) == len(buckets), "B1: a bucket is merged by one task"
        kept = [file for file in self.files if file.bucket not in touched]
        new = [BucketFile(b.bucket, b.path, b.rows, b.bytes) for b in buckets if b.path is not None]
        wanted = [each for each in self.replaced if each.at > now - grace_us]
        gone = [ReplacedFile(file.path, now) for file in self.files if file.bucket in touched]
        return replace(
            self,
            version=self.version + 1,
            writer=writer,
            files=tuple(sorted((*kept, *new), key=lambda file: file.bucket)),
            replaced=(*wanted, *gone),
        )

    def strays(self, names: Iterable[str]) -> Iterator[str]:
        """Yield the names in `FILES_DIRECTORY` that no version needs: files of a batch that was cut short."""
        needed = {file.path for file in self.files} | {file.path for file in self.replaced}
        yield from (name for name in names if name not in needed)

    def problem(self) -> str | None:
        """Return what contradicts itself in it, None if nothing does."""
        numbers = [file.bucket for file in self.files]
        if len(set(numbers)) < len(numbers) or not all(0 <= n < self.layout.buckets for n in numbers):
            return f"B1: files of buckets {numbers}, of {self.layout.buckets}"
        paths = [file.path for file in self.files] + [file.path for file in self.replaced]
        if len(set(paths)) < len(paths) or not all(_is_name(path) for path in paths):
            return "B2: a file is named twice, or lies elsewhere"
        return None


def _is_name(path: str) -> bool:
    return bool(path) and "/" not in path and not path.startswith(".")


def _shown(layout: Layout) -> str:
    values = "bytes" if layout.schema is None else layout.schema
    return f"{layout.buckets} buckets and values that are {values}"


_VERSION: Final = TypeAdapter(TableVersion)


def encode_version(version: TableVersion) -> dict[str, Json]:
    """Return the version as JSON."""
    problem = version.problem()
    assert problem is None, problem
    encoded: dict[str, Json] = _VERSION.dump_python(version, mode="json")
    return encoded


def decode_version(state: dict[str, Json]) -> TableVersion:
    """Return the version that a state file has.

    Raises:
        CorruptDataError: it is none, or of another format.
    """
    if state.get("format") != FORMAT:
        raise CorruptDataError(f"a table of format {state.get('format')!r}; this version reads {FORMAT}")
    try:
        version = _VERSION.validate_python(state)
    except ValidationError as error:
        raise CorruptDataError(f"a table's version is damaged: {error.errors()[0]['msg']}") from None
    problem = version.problem()
    if problem is not None:
        raise CorruptDataError(f"a table's version contradicts itself: {problem}")
    return version
