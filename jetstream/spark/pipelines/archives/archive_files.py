"""An archive as its manifest describes it: the rows of each file, and the archived range of each stream.

Pure. An archive is a directory of Parquet files, ``date=2026-01-02/b0000000042-00000.parquet``, and a
manifest that is replaced as a whole, one version after the other. A `ManifestChange` makes the next version:
it is written down before the first file moves, so that the next process can finish it after a crash.

Theory of operation: a batch of a query is staged, its files are measured, and `added_batch` holds their
content
against the range that the query reports: exactly the offsets behind those that are archived. So neither
a lost checkpoint, an old one, a second query, nor a source that is wrong can bring a row in twice or leave
one out unseen.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final, NamedTuple

from pydantic import ConfigDict, TypeAdapter, ValidationError

from envelope.errors import CorruptDataError, Fenced, InvalidConfig, StreamRecreated
from jetstream.log.disk.state_file import Json
from jetstream.spark.reading.offsets import Offsets, StreamOffset

FORMAT: Final = 1
STATE_DIRECTORY: Final = "_archive"
MANIFEST_PATH: Final = f"{STATE_DIRECTORY}/manifest.json"
CHANGE_PATH: Final = f"{STATE_DIRECTORY}/change.json"
LOCK_PATH: Final = f"{STATE_DIRECTORY}/lock"
WORK_DIRECTORY: Final = "_work"
CHECKPOINT_DIRECTORY: Final = "_checkpoint"
"""Names that begin with ``_`` are passed over by Spark, pyarrow and other readers of directories."""


class Span(NamedTuple):
    """The rows of one stream in a file: how many, and offsets ``[start, end)`` that they lie in."""

    rows: int
    start: int
    end: int


StreamPlace = tuple[str, int]
"""Columns ``stream`` and ``partition`` of a row."""


@dataclass(frozen=True, slots=True)
class PendingFile:
    """A file of rows that is written, and not yet in its place.

    Attributes:
        path: where it lies now, below the archive's root.
        directory: where it belongs: ``date=2026-01-02``.
        spans: its content, as measured from its rows.
    """

    path: str
    directory: str
    bytes: int
    spans: Mapping[StreamPlace, Span]

    @property
    def rows(self) -> int:
        """How many it has."""
        return sum(span.rows for span in self.spans.values())


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """A file in its place."""

    path: str
    rows: int
    bytes: int

    @property
    def directory(self) -> str:
        """Where it lies, below the archive's root."""
        return self.path.rpartition("/")[0]


@dataclass(frozen=True, slots=True)
class ArchivedStream:
    """The archived range of a stream: one life of it, offsets ``[start, end)``, without a gap.

    Attributes:
        end: the border: archived records are below, later ones are read from the stream itself.
        rows: fewer than offsets where the stream was compacted, or where retention was allowed to be faster.
    """

    incarnation: str
    start: int
    end: int
    rows: int = 0


@dataclass(frozen=True, slots=True)
class ArchivedMicroBatch:
    """A micro-batch: the query's id, which its checkpoint keeps, and the batch's number in it."""

    query: str
    batch: int


@dataclass(frozen=True, slots=True)
class StagedMove:
    """A staged file and its place in the archive."""

    staged: str
    file: ArchivedFile


@dataclass(frozen=True, slots=True)
class ManifestChange:
    """The difference between two versions of a manifest: a new batch, or files merged into one.

    Attributes:
        version: of the manifest that results.
        moves: files that come in.
        removed: files that are not needed any more.
        streams: those that have grown, as they are then.
        writer: of a batch.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    version: int
    moves: tuple[StagedMove, ...]
    removed: tuple[str, ...] = ()
    streams: dict[str, ArchivedStream] = field(default_factory=dict)
    writer: ArchivedMicroBatch | None = None


@dataclass(frozen=True, slots=True)
class ArchiveManifest:
    """The files and streams of an archive.

    Invariants:
        A1: no file is in it twice.
        A2: its files have as many rows as its streams.
        A3: of each stream 0 <= start <= end, and no more rows than offsets.

    Attributes:
        version: grows by one with each change; 0: nothing was ever archived.
        levels: of directories, from the root: ``date``, ``hour``, ``subject:2``.
        writer: of the last batch.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    version: int = 0
    levels: tuple[str, ...] = ()
    streams: dict[str, ArchivedStream] = field(default_factory=dict)
    files: tuple[ArchivedFile, ...] = ()
    writer: ArchivedMicroBatch | None = None
    format: int = FORMAT

    @property
    def rows(self) -> int:
        """How many there are in all."""
        return sum(stream.rows for stream in self.streams.values())

    @property
    def border(self) -> Offsets:
        """The first offset of each stream that is not archived."""
        return {name: StreamOffset(kept.incarnation, kept.end) for name, kept in self.streams.items()}

    def has(self, writer: ArchivedMicroBatch) -> bool:
        """Return whether that batch is archived: a query's batches come one after the other."""
        last = self.writer
        return last is not None and last.query == writer.query and last.batch >= writer.batch

    def begun(self, levels: tuple[str, ...]) -> "ArchiveManifest":
        """Return the first version, with these levels of directories, or itself if there is one.

        Raises:
            InvalidConfig: the archive has other levels.
        """
        if self.version == 0:
            return replace(self, version=1, levels=levels)
        if levels != self.levels:
            raise InvalidConfig(
                f"the archive is partitioned by {','.join(self.levels)}, not {','.join(levels)}"
            )
        return self

    def after(self, change: ManifestChange) -> "ArchiveManifest":
        """Return the version that ``change`` makes."""
        assert change.version == self.version + 1, f"{change.version} behind {self.version}"
        removed = frozenset(change.removed)
        kept = [file for file in self.files if file.path not in removed]
        assert len(kept) + len(removed) == len(self.files), "A1: only what is there is removed"
        return replace(
            self,
            version=change.version,
            streams=self.streams | change.streams,
            files=(*kept, *(move.file for move in change.moves)),
            writer=change.writer or self.writer,
        )

    def problem(self) -> str | None:
        """Return what contradicts itself in it, None if nothing does."""
        if len({file.path for file in self.files}) != len(self.files):
            return "A1: a file is in it twice"
        rows = sum(file.rows for file in self.files)
        if rows != self.rows:
            return f"A2: its files have {rows} rows, its streams {self.rows}"
        for name, kept in self.streams.items():
            if not (0 <= kept.start <= kept.end and 0 <= kept.rows <= kept.end - kept.start):
                return f"A3: {name} has {kept.rows} rows of [{kept.start}, {kept.end})"
        return None


def added_batch(
    manifest: ArchiveManifest,
    writer: ArchivedMicroBatch,
    before: Offsets,
    ends: Offsets,
    staged: Sequence[PendingFile],
) -> ManifestChange:
    """Return the change that brings a batch in.

    Args:
        manifest: as it is now.
        writer: of the batch.
        before: the end of the query's batch before; empty for its first one.
        ends: the end of this one.
        staged: files with all rows that were read.

    Raises:
        Fenced: the query does not go on where the archive ends.
        StreamRecreated: the archive is of another life of a stream.
        CorruptDataError: the rows are not those of the offsets.
    """
    unknown = sorted(before.keys() - manifest.streams.keys())
    if unknown:
        raise Fenced(
            f"the query has read {', '.join(unknown)} before, and the archive has nothing of it: "
            "the manifest is lost, or the checkpoint is another archive's",
            stream=unknown[0],
        )
    spans = _spans(staged, ends)
    ranges = {name: _range(name, before, end) for name, end in ends.items()}
    grown = {name: _grown(manifest, name, ranges[name], spans.get(name)) for name in ends}
    version = manifest.version + 1
    moves = [
        StagedMove(
            file.path,
            ArchivedFile(f"{file.directory}/b{version:010}-{number:05}.parquet", file.rows, file.bytes),
        )
        for number, file in enumerate(staged)
    ]
    return ManifestChange(version, tuple(moves), streams=grown, writer=writer)


def merged_files(
    manifest: ArchiveManifest, files: Sequence[ArchivedFile], staged: PendingFile
) -> ManifestChange:
    """Return the change that puts one file, which has the rows of ``files``, in their place.

    Raises:
        CorruptDataError: it has not as many.
    """
    rows = sum(file.rows for file in files)
    if staged.rows != rows:
        raise CorruptDataError(f"{rows} rows of {len(files)} files became {staged.rows} of one")
    version = manifest.version + 1
    file = ArchivedFile(f"{staged.directory}/m{version:010}.parquet", staged.rows, staged.bytes)
    return ManifestChange(
        version, (StagedMove(staged.path, file),), removed=tuple(file.path for file in files)
    )


def _spans(staged: Sequence[PendingFile], ends: Offsets) -> dict[str, Span]:
    """Return what all files together have of each stream."""
    spans: dict[str, Span] = {}
    for file in staged:
        for place, span in file.spans.items():
            name = _stream_name(place, ends)
            seen = spans.get(name, Span(0, span.start, span.end))
            both = (seen.rows + span.rows, min(seen.start, span.start), max(seen.end, span.end))
            spans[name] = Span(*both)
    return spans


def _stream_name(place: StreamPlace, ends: Offsets) -> str:
    """Return the stream that rows come from: of a partitioned one, a partition."""
    stream, partition = place
    for name in (f"{stream}/{partition}", stream):
        if name in ends:
            return name
    raise CorruptDataError(f"rows of {stream}, partition {partition}, which the query does not read")


def _range(name: str, before: Offsets, end: StreamOffset) -> ArchivedStream:
    """Return the range that a batch was to read of a stream: from where the one before it ended.

    Where retention was faster, and was allowed to be, the batch itself begins later.
    """
    if name not in before:
        if end.start is None:
            raise CorruptDataError(f"the query's checkpoint does not say where {name} begins")
        return ArchivedStream(end.incarnation, end.start, end.offset)
    return ArchivedStream(end.incarnation, before[name].offset, end.offset)


def _grown(manifest: ArchiveManifest, name: str, batch: ArchivedStream, span: Span | None) -> ArchivedStream:
    kept = manifest.streams.get(name, ArchivedStream(batch.incarnation, batch.start, batch.start))
    if kept.incarnation != batch.incarnation:
        raise StreamRecreated(
            f"the archive has {name} as it was before it was deleted and created again: take a new directory",
            stream=name,
            incarnation=kept.incarnation,
        )
    if not batch.start == kept.end <= batch.end:
        raise Fenced(
            f"the query read {name} from {batch.start} to {batch.end}, the archive goes on at {kept.end}: "
            "another query has written to it, or the checkpoint is another archive's",
            stream=name,
            start=batch.start,
            border=kept.end,
        )
    rows, start, end = span or (0, batch.start, batch.end)
    if not batch.start <= start <= end <= batch.end or rows > batch.end - batch.start:
        raise CorruptDataError(
            f"{rows} rows of {name} in [{start}, {end}), where [{batch.start}, {batch.end}) was read"
        )
    return replace(kept, end=batch.end, rows=kept.rows + rows)


_MANIFEST: Final = TypeAdapter(ArchiveManifest)
_CHANGE: Final = TypeAdapter(ManifestChange)


def encode_manifest(manifest: ArchiveManifest) -> dict[str, Json]:
    """Return the content of the manifest's state file."""
    problem = manifest.problem()
    assert problem is None, problem
    content: dict[str, Json] = _MANIFEST.dump_python(manifest, mode="json")
    return content


def decode_manifest(content: dict[str, Json]) -> ArchiveManifest:
    """Return the manifest in a state file.

    Raises:
        CorruptDataError: it is none, of another format, or contradicts itself.
    """
    try:
        manifest = _MANIFEST.validate_python(content)
    except ValidationError as error:
        raise CorruptDataError(f"the archive's manifest cannot be read: {error}") from error
    problem = manifest.problem()
    if problem is not None or manifest.format != FORMAT:
        raise CorruptDataError(f"the archive's manifest: {problem or f'format {manifest.format}'}")
    return manifest


def encode_change(change: ManifestChange) -> dict[str, Json]:
    """Return the content of the change's state file."""
    content: dict[str, Json] = _CHANGE.dump_python(change, mode="json")
    return content


def decode_change(content: dict[str, Json]) -> ManifestChange:
    """Return the change in a state file.

    Raises:
        CorruptDataError: it is none.
    """
    try:
        return _CHANGE.validate_python(content)
    except ValidationError as error:
        raise CorruptDataError(f"the archive's last change cannot be read: {error}") from error
