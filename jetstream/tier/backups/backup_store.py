"""Backups at one place, a folder or an object store; all of it blocks."""

from collections.abc import Collection, Iterator, Sequence

from envelope.errors import DamagedBackup, UnknownBackup
from envelope.types import Buffer
from jetstream.tier.backups.manifest import (
    MANIFESTS,
    OBJECTS,
    BackupManifest,
    BackupObject,
    decode_backup,
    encode_backup,
    is_manifest,
    object_path,
)
from jetstream.tier.object_store import ObjectStore
from jetstream.tier.upload import Hashed, is_there


class BackupStore:
    """The backups at one place, which share their objects."""

    def __init__(self, store: ObjectStore) -> None:
        """Ask the store for nothing yet."""
        self._store = store

    def names(self) -> list[str]:
        """Return the names of all backups, the oldest first.

        Raises:
            TierUnavailable: the store refused.
        """
        return sorted(path for path in self._store.sizes(MANIFESTS) if is_manifest(path))

    def present(self, manifest: BackupManifest) -> frozenset[str]:
        """Return the hashes of those objects of a backup that are there with their size; none is read.

        Raises:
            TierUnavailable: the store refused.
        """
        sizes = self._store.sizes(OBJECTS)
        return frozenset(
            sha256 for sha256, each in manifest.objects.items() if sizes.get(each.path) == each.size
        )

    def manifest(self, name: str | None = None) -> BackupManifest:
        """Return the manifest of a backup, of the newest unless one is named.

        Raises:
            UnknownBackup: there is none.
            DamagedBackup: its bytes are not those that were written.
            TierUnavailable: the store refused.
        """
        names = self.names()
        if not names if name is None else name not in names:
            raise UnknownBackup(f"there is no backup{'' if name is None else f' {name!r}'} at that place")
        path = names[-1] if name is None else name
        return decode_backup(path, b"".join(bytes(chunk) for chunk in self._store.chunks(path)))

    def newest_readable(self) -> tuple[BackupManifest | None, tuple[str, ...]]:
        """Return the newest manifest whose bytes are good, and the names of newer ones whose are not.

        Raises:
            TierUnavailable: the store refused.
        """
        damaged: list[str] = []
        for name in reversed(self.names()):
            try:
                return self.manifest(name), tuple(damaged)
            except DamagedBackup:  # reported by its name; an interrupted backup may have left it
                damaged.append(name)
        return None, tuple(damaged)

    def put_object(self, chunks: Sequence[Buffer], known: Collection[str]) -> tuple[str, bool]:
        """Store an object unless it is there; durable on return.

        Args:
            chunks: its bytes.
            known: the hashes of objects that are there for certain. Others are read before they are believed
                in: they may be of a backup that was interrupted.

        Returns:
            Its hash, and whether it was written now.

        Raises:
            TierUnavailable: the store refused; what may be there of it is no part of a backup.
        """
        hashed = Hashed(iter(chunks)).drained()
        path = object_path(hashed.sha256)
        if hashed.sha256 in known or is_there(self._store, path, hashed.sha256, hashed.size):
            return hashed.sha256, False
        self._store.put_shared(path, chunks)
        self._store.drop_cache(path)  # nodes of this machine have a better use for the memory
        return hashed.sha256, True

    def put_manifest(self, manifest: BackupManifest) -> str:
        """Store a manifest, with which the backup exists, and return its name; durable on return.

        Raises:
            TierUnavailable: the store refused.
        """
        path, content = encode_backup(manifest)
        self._store.put_shared(path, [content])
        return path

    def chunks(self, wanted: BackupObject) -> Iterator[Buffer]:
        """Yield the bytes of an object, each chunk valid until the next one; at the end they are proven.

        Raises:
            DamagedBackup: it is missing, or has other bytes than were written; some may have been yielded.
            TierUnavailable: the store refused.
        """
        if self._store.size_of(wanted.path) != wanted.size:
            raise DamagedBackup(f"{wanted.path} of the backup is missing, or has another size")
        hashed = Hashed(self._store.chunks(wanted.path))
        yield from hashed
        if hashed.sha256 != wanted.sha256:
            raise DamagedBackup(f"{wanted.path} of the backup has other bytes than were written")
        self._store.drop_cache(wanted.path)

    def check(self, manifest: BackupManifest) -> None:
        """Raise unless every object of a backup is there, with its size; their bytes are not read.

        Raises:
            DamagedBackup: one is missing.
            TierUnavailable: the store refused.
        """
        missing = sorted(manifest.objects.keys() - self.present(manifest))
        if missing:
            path = object_path(missing[0])
            raise DamagedBackup(f"{path} of the backup, of {len(missing)}, is missing or has another size")
