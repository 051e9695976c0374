"""The remains of streams in the object store, without a catalogue; all of it blocks.

The newest readable manifest counts: even one that was not in force when everything else was lost lists only
verified segments.
"""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from envelope.errors import CorruptDataError, UnknownStream
from envelope.types import Incarnation, LeaderEpoch, StreamName
from jetstream.tier.download import read_manifest
from jetstream.tier.manifest import TierManifest
from jetstream.tier.object_names import ManifestName, parsed_name
from jetstream.tier.object_store import ObjectStore
from metadata.catalog.directories import incarnation_of, may_be_of
from metadata.catalog.tables import TierMark

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Remains:
    """The objects of one life of a stream.

    Attributes:
        path: of the newest manifest.
        manifest: its content.
        newest_epoch: newest leader epoch of this life that an object names.
        missing: objects of the manifest that are missing, or have another size.
    """

    path: str
    manifest: TierManifest
    newest_epoch: LeaderEpoch
    missing: tuple[str, ...]

    @property
    def directories(self) -> frozenset[str]:
        """Return the directories of the objects; an earlier life's segments have their own."""
        paths = (self.path, *(segment.path for segment in self.manifest.segments))
        return frozenset(path.rpartition("/")[0] for path in paths)

    @property
    def mark(self) -> TierMark:
        """Return the mark with which a stream goes on from here."""
        manifest = self.manifest
        txids = [segment.last_txid for segment in manifest.segments if segment.last_txid is not None]
        return TierMark(
            version=manifest.version,
            start=manifest.start,
            end=manifest.end,
            last_epoch=manifest.last_epoch,
            last_txid=txids[-1] if txids else None,
            manifest=self.path,
        )


def all_remains(store: ObjectStore) -> list[Remains]:
    """Return the remains of every life of every stream, ordered by name and age.

    Raises:
        TierUnavailable: the store refused.
    """
    directories = (found for found in store.directories() if incarnation_of(found) is not None)
    return sorted(
        _remains_in(store, directories), key=lambda one: (one.manifest.name, one.manifest.written_at)
    )


def remains_of(store: ObjectStore, name: StreamName, incarnation: Incarnation | None) -> Remains:
    """Return the remains of a stream, of its newest life unless one is named.

    Raises:
        UnknownStream: there is no object of it.
        CorruptDataError: objects are missing.
        TierUnavailable: the store refused.
    """
    directories = (found for found in store.directories() if may_be_of(found, name))
    lives = [
        remains
        for remains in _remains_in(store, directories)
        if remains.manifest.name == name and incarnation in (None, remains.manifest.incarnation)
    ]
    if not lives:
        raise UnknownStream(f"the object store has nothing of stream {name!r}", stream=name)
    newest = max(lives, key=lambda remains: remains.manifest.written_at)
    if newest.missing:
        raise CorruptDataError(
            f"{len(newest.missing)} objects of stream {name!r} are missing, the first is {newest.missing[0]}"
        )
    return newest


def _remains_in(store: ObjectStore, directories: Iterable[str]) -> Iterator[Remains]:
    for directory in directories:
        remains = _remains(store, directory)
        if remains is not None:
            yield remains


def _remains(store: ObjectStore, directory: str) -> Remains | None:
    sizes = store.sizes(directory)
    names = {path: name for path in sizes if (name := parsed_name(path)) is not None}
    manifests = {path: name for path, name in names.items() if isinstance(name, ManifestName)}
    for path in sorted(manifests, key=lambda path: (manifests[path].version, manifests[path].epoch))[::-1]:
        try:
            manifest = read_manifest(store, path)
        except CorruptDataError as error:
            _log.error("manifest cannot be read, an older one is looked for path=%s error=%s", path, error)
            continue
        epochs = [*(name.epoch for name in names.values()), *(entry[0] for entry in manifest.epochs)]
        return Remains(path, manifest, max(epochs), tuple(_missing(store, manifest, directory, sizes)))
    return None


def _missing(
    store: ObjectStore, manifest: TierManifest, directory: str, sizes: dict[str, int]
) -> Iterable[str]:
    known = {directory: sizes}
    for segment in manifest.segments:
        place = segment.path.rpartition("/")[0]
        if place not in known:
            known[place] = store.sizes(place)
        if known[place].get(segment.path) != segment.size:
            yield segment.path
