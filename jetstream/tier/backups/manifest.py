"""The list of what a backup holds: the cluster's settings, its streams, and the objects with their records.

It is written last, whole, under a name with its time and hash: a backup without it does not exist. Objects
are named by their hash alone, so that backups at one place share those that are equal, and are never changed.

    manifests/<created, UTC>-<SHA-256>.json
    objects/<SHA-256>.arrows

An object is an Arrow IPC stream as a segment is: the schema message, batches as the leader has stored them,
the end-of-stream marker.
"""

import hashlib
import json
import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar, Final

from pydantic import ConfigDict, TypeAdapter, ValidationError

from envelope.errors import DamagedBackup, JetstreamError
from envelope.types import Incarnation, LeaderEpoch, Offset, StreamName, TimestampUs
from jetstream.log.state.epochs import EpochHistory, EpochStart
from metadata.api.publisher_responses import StreamPublishers
from metadata.api.responses import utc
from metadata.catalog.commands import canonical_json
from metadata.catalog.directories import is_incarnation
from metadata.namespaces import NamespaceLimits
from metadata.stream_config import StreamConfig

BACKUP_FORMAT: Final = 1
MANIFESTS: Final = "manifests"
OBJECTS: Final = "objects"
_MANIFEST: Final = re.compile(rf"{MANIFESTS}/\d{{8}}T\d{{12}}Z-([0-9a-f]{{64}})\.json")


@dataclass(frozen=True, slots=True)
class BackupObject:
    """An object with batches of one segment of a stream.

    Attributes:
        sha256: of its bytes, hexadecimal.
        size: in bytes.
        base: offset at which its first batch begins.
        next: offset after its last batch.
        epochs: leader epochs of its batches, each with the base and the timestamp of its first one here.
        begins_segment: whether a segment begins with it.
    """

    sha256: str
    size: int
    base: Offset
    next: Offset
    epochs: tuple[EpochStart, ...]
    begins_segment: bool

    @property
    def last_epoch(self) -> LeaderEpoch:
        """Leader epoch of its last batch."""
        return self.epochs[-1].epoch

    @property
    def path(self) -> str:
        """Where it lies, below the backups' root."""
        return object_path(self.sha256)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackedUpStream:
    """A stream as it was: committed records ``[start, end)``.

    Attributes:
        config: with the number of replicas that it had.
        incarnation: which life of the stream.
        created: when, by the clock of the cluster.
        leader_epoch: the newest that was heard of.
        start: first offset kept.
        end: offset after its last record.
        publishers: what it remembered of them, of records that are in the backup or gone.
        objects: with its records, in order.

    Invariants:
        B1: each object goes on exactly where the one before it ends.
        B2: the objects hold every offset from ``start`` to ``end``, and end there.
        B3: each object has an epoch, and epochs never decrease.
    """

    config: StreamConfig
    incarnation: Incarnation
    created: TimestampUs
    leader_epoch: LeaderEpoch
    start: Offset
    end: Offset
    publishers: StreamPublishers
    objects: tuple[BackupObject, ...] = ()

    @property
    def name(self) -> StreamName:
        """Name, unique in the cluster."""
        return StreamName(self.config.name)

    @property
    def last_epoch(self) -> LeaderEpoch:
        """Leader epoch of the last batch; 0: there is none."""
        return self.objects[-1].last_epoch if self.objects else LeaderEpoch(0)

    @property
    def history(self) -> EpochHistory:
        """The leader epochs of its offsets."""
        starts: dict[LeaderEpoch, EpochStart] = {}
        for entry in (entry for each in self.objects for entry in each.epochs):
            starts.setdefault(entry.epoch, entry)
        return EpochHistory(tuple(starts.values()))

    @property
    def size(self) -> int:
        """Bytes of its objects."""
        return sum(each.size for each in self.objects)

    def problem(self) -> str | None:
        """Return its contradiction, None if there is none."""
        if not is_incarnation(self.incarnation):
            return f"{self.name}: {self.incarnation!r} is no incarnation"
        for before, after in pairwise(self.objects):
            if before.next != after.base or not after.base < after.next:
                return f"B1: {self.name}: [{after.base}, {after.next}) behind [{before.base}, {before.next})"
        epochs = [entry for each in self.objects for entry in each.epochs]
        is_grown = all(a.epoch <= b.epoch and a.start <= b.start for a, b in pairwise(epochs))
        if not is_grown or not all(each.epochs for each in self.objects):
            return f"B3: {self.name}: {epochs}"
        if not self.objects:
            is_whole = 0 <= self.start == self.end
        else:
            first, last = self.objects[0], self.objects[-1]
            is_whole = 0 <= first.base <= self.start < first.next and last.next == self.end
        return None if is_whole else f"B2: {self.name}: other objects than for [{self.start}, {self.end})"


@dataclass(frozen=True, slots=True)
class BackedUpNamespace:
    """A namespace that has limits; the name ``""`` is that of all streams."""

    name: str
    limits: NamespaceLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupManifest:
    """A backup: everything that a cluster needs to go on.

    Attributes:
        created_at: when the backup began; no two at one place have the same.
        version: of Jetstream, which has written it.
        default_replicas: copies of a new stream for which nobody says how many.
        namespaces: those that have limits.
        streams: all, the system's own too, ordered by name.
        format: of this list.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    created_at: TimestampUs
    version: str
    default_replicas: int
    namespaces: tuple[BackedUpNamespace, ...]
    streams: tuple[BackedUpStream, ...]
    format: int = field(default=BACKUP_FORMAT)

    @property
    def objects(self) -> dict[str, BackupObject]:
        """Return the objects by their hash, each once."""
        return {each.sha256: each for stream in self.streams for each in stream.objects}

    def stream(self, name: str, incarnation: str) -> BackedUpStream | None:
        """Return the stream in that life, None if the backup has none."""
        found = (each for each in self.streams if (each.name, each.incarnation) == (name, incarnation))
        return next(found, None)


_BACKUP: Final = TypeAdapter(BackupManifest)


def object_path(sha256: str) -> str:
    """Return the path of the object with that hash."""
    return f"{OBJECTS}/{sha256}.arrows"


def encode_backup(manifest: BackupManifest) -> tuple[str, bytes]:
    """Return the path of a manifest, and its bytes: JSON with sorted keys."""
    problems = [problem for stream in manifest.streams if (problem := stream.problem()) is not None]
    assert not problems, "; ".join(problems)
    content = canonical_json(_BACKUP.dump_python(manifest, mode="json")) + b"\n"
    created = utc(manifest.created_at).strftime("%Y%m%dT%H%M%S%fZ")
    return f"{MANIFESTS}/{created}-{hashlib.sha256(content).hexdigest()}.json", content


def is_manifest(path: str) -> bool:
    """Return whether an object of that path is a manifest, whole or not."""
    return _MANIFEST.fullmatch(path) is not None


def decode_backup(path: str, content: bytes) -> BackupManifest:
    """Return the manifest that was read from ``path``.

    Raises:
        DamagedBackup: the bytes are not those that were written under that name, or of a newer version.
    """
    name = _MANIFEST.fullmatch(path)
    if name is None or hashlib.sha256(content).hexdigest() != name[1]:
        raise DamagedBackup(f"the bytes of {path} are not those that its name tells")
    try:
        manifest = _BACKUP.validate_python(json.loads(content))
    except (ValidationError, JetstreamError, ValueError, RecursionError) as error:
        raise DamagedBackup(f"{path} cannot be read by this version: {error}") from error
    problem = next(filter(None, (stream.problem() for stream in manifest.streams)), None)
    if problem is not None or manifest.format != BACKUP_FORMAT:
        raise DamagedBackup(f"{path}: {problem or f'its format is {manifest.format}'}")
    return manifest
