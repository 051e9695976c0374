"""The list of a stream's segments in the object store.

An object of its own, never changed: each version is written whole under a name with its number and hash, and
the catalogue's `TierMark` names the one in force. For a restore without a catalogue it also has the stream's
configuration and leader epochs.
"""

import hashlib
import json
from bisect import bisect_right
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import ClassVar, Final

from pydantic import ConfigDict, TypeAdapter, ValidationError

from envelope.errors import CorruptDataError, JetstreamError
from envelope.types import Incarnation, LeaderEpoch, Offset, StreamName, TimestampUs
from jetstream.log.format.schema import END_OF_STREAM, SCHEMA_MESSAGE
from jetstream.log.state.epochs import EpochHistory, EpochStart
from jetstream.tier.object_names import ManifestName, parsed_name
from metadata.catalog.commands import canonical_json
from metadata.catalog.tables import TierMark
from metadata.stream_config import StreamConfig

MANIFEST_FORMAT: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TieredSegment:
    """A segment in the object store.

    Attributes:
        base: its first offset.
        next: the offset after its last one.
        size: in bytes.
        sha256: of its bytes, hexadecimal.
        max_timestamp: of its records, in microseconds.
        last_epoch: leader epoch of its last batch.
        last_txid: its last transaction id; None: it has none.
        path: of the object, below the store's root.
    """

    base: Offset
    next: Offset
    size: int
    sha256: str
    max_timestamp: TimestampUs
    last_epoch: LeaderEpoch
    last_txid: int | None
    path: str

    @property
    def batch_bytes(self) -> int:
        """Length of all its batches: the object is a whole segment file."""
        return self.size - len(SCHEMA_MESSAGE) - len(END_OF_STREAM)

    @property
    def written_at(self) -> None:
        """None: the time of the object is that of its upload."""

    @property
    def damages(self) -> tuple[()]:
        """None: only intact segments are uploaded."""
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TierManifest:
    """The segments of a stream in the object store, as of one version of its mark.

    Invariants:
        T1: each segment goes on where the one before it ends, or before that, and ends behind it.
        T2: the segments hold every offset from ``start`` to ``end``.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    name: StreamName
    incarnation: Incarnation
    version: int
    leader_epoch: LeaderEpoch
    """Epoch of the leader that wrote it."""
    written_at: TimestampUs
    config: StreamConfig
    start: Offset
    end: Offset
    epochs: tuple[tuple[LeaderEpoch, Offset, TimestampUs], ...]
    segments: tuple[TieredSegment, ...] = ()
    format: int = field(default=MANIFEST_FORMAT)

    def at(self, offset: Offset) -> TieredSegment:
        """Return the segment that holds ``offset``, which is one of ``[start, end)``."""
        return self.segments[bisect_right(self.segments, offset, key=_next)]

    def after(self, segment: TieredSegment) -> TieredSegment | None:
        """Return the segment behind ``segment``, None behind the last."""
        row = bisect_right(self.segments, segment.next, key=_next)
        return self.segments[row] if row < len(self.segments) else None

    @property
    def history(self) -> EpochHistory:
        """The leader epochs of its offsets."""
        return EpochHistory(tuple(EpochStart(*entry) for entry in self.epochs))

    @property
    def last_epoch(self) -> LeaderEpoch:
        """Leader epoch of the last record; 0: there is none."""
        return self.segments[-1].last_epoch if self.segments else LeaderEpoch(0)

    def kept(self, start: Offset) -> tuple[TieredSegment, ...]:
        """Return the segments that are needed from ``start`` on."""
        return tuple(segment for segment in self.segments if segment.next > start)

    def advanced(
        self, mark: TierMark, segments: tuple[TieredSegment, ...], log: EpochHistory
    ) -> "TierManifest":
        """Return the next manifest: from the start of ``mark`` on, with more segments of that log."""
        own = self.kept(mark.start)
        kept = (*own, *segments)
        end = kept[-1].next if kept else mark.end
        # Without segments of its own it does not contradict a log that an unclean election has chosen.
        mine = self.history.starts if own else ()
        newer = tuple(entry for entry in log.starts if not mine or entry.epoch > mine[-1].epoch)
        epochs = EpochHistory((*mine, *newer)).cut(end).pruned(mark.start)
        return replace(
            self,
            version=mark.version + 1,
            start=mark.start,
            end=end,
            epochs=tuple((entry.epoch, entry.start, entry.begun_at) for entry in epochs.starts),
            segments=kept,
        )

    def problem(self) -> str | None:
        """Return its contradiction, None if there is none."""
        for before, after in pairwise(self.segments):
            if not after.base <= before.next < after.next:
                return f"T1: [{after.base}, {after.next}) behind [{before.base}, {before.next})"
        first, end = self.segments[0] if self.segments else None, self.end
        if first is None:
            return None if self.start == end else f"T2: no segments for [{self.start}, {end})"
        if first.base > self.start or self.segments[-1].next != end or not self.start <= end:
            return f"T2: [{first.base}, {self.segments[-1].next}) for [{self.start}, {end})"
        return None


_MANIFEST: Final = TypeAdapter(TierManifest)


def encode_manifest(manifest: TierManifest) -> bytes:
    """Return the bytes of a manifest: JSON with sorted keys."""
    problem = manifest.problem()
    assert problem is None, problem
    return canonical_json(_MANIFEST.dump_python(manifest, mode="json")) + b"\n"


def name_of(manifest: TierManifest, content: bytes) -> ManifestName:
    """Return the name of the object with that content."""
    return ManifestName(manifest.version, manifest.leader_epoch, hashlib.sha256(content).hexdigest())


def decode_manifest(path: str, content: bytes) -> TierManifest:
    """Return the manifest that was read from ``path``.

    Raises:
        CorruptDataError: the bytes are not those that were written under that name.
    """
    name = parsed_name(path)
    if not isinstance(name, ManifestName) or hashlib.sha256(content).hexdigest() != name.sha256:
        raise CorruptDataError(f"the bytes of {path} are not those that its name tells")
    try:
        manifest = _MANIFEST.validate_python(json.loads(content))
    except (ValidationError, JetstreamError, ValueError, RecursionError) as error:
        raise CorruptDataError(f"{path} cannot be read: {error}") from error
    problem = manifest.problem()
    if problem is not None or (manifest.version, manifest.format) != (name.version, MANIFEST_FORMAT):
        raise CorruptDataError(f"{path}: {problem or 'another version or format'}")
    return manifest


def _next(segment: TieredSegment) -> Offset:
    return segment.next
