"""The files of staging: rows, and the manifest that names those of a micro-batch; pure.

Below the directory that the option ``staging`` names:

    <query>/<batch>/<partition>-<id>.arrows   rows of one attempt of one task, an Arrow IPC stream
    <query>/<batch>/manifest-<digest>.json    the files that are the micro-batch, in order
    <query>/done-<batch>                      all micro-batches up to this one are published

A name is never used for other content: the id is drawn, the digest is of the manifest's bytes. So a manifest
that was not written to its end is found out.
"""

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from envelope.errors import CorruptDataError

_VERSION: Final = 1
_DIGEST_CHARACTERS: Final = 32
_DONE: Final = re.compile(r"done-([0-9]{20})")
_BATCH: Final = re.compile(r"[0-9]{20}")


class StagedFile(NamedTuple):
    """The rows of one task; at least one."""

    path: str
    """Below the staging directory."""
    partition: int
    rows: int


@dataclass(frozen=True, slots=True)
class StagedManifest:
    """Which rows a micro-batch has: those of these files, in this order."""

    query: str
    batch: int
    written_at: datetime
    files: tuple[StagedFile, ...]

    def encoded(self) -> bytes:
        """Return its bytes."""
        told = {
            "v": _VERSION,
            "query": self.query,
            "batch": self.batch,
            "written_at": self.written_at.isoformat(),
            "files": [each._asdict() for each in self.files],
        }
        return json.dumps(told, separators=(",", ":")).encode()


def batch_directory(query: str, batch: int) -> str:
    """Return where a micro-batch is staged."""
    return f"{query}/{batch:020d}"


def rows_path(query: str, batch: int, partition: int, identity: str) -> str:
    """Return the path of a file of rows; ``identity``: that nobody else has."""
    return f"{batch_directory(query, batch)}/{partition:06d}-{identity}.arrows"


def manifest_path(manifest: StagedManifest) -> str:
    """Return the path of a manifest."""
    return f"{batch_directory(manifest.query, manifest.batch)}/manifest-{_digest(manifest.encoded())}.json"


def done_path(query: str, batch: int) -> str:
    """Return the path of the mark that says that a micro-batch is published, and all before it."""
    return f"{query}/done-{batch:020d}"


def is_manifest(path: str, content: bytes) -> bool:
    """Return whether ``content`` is a manifest that was written to its end, by the name it has."""
    return path.rpartition("/")[2] == f"manifest-{_digest(content)}.json"


def may_be_manifest(path: str) -> bool:
    """Return whether the path is that of a manifest, perhaps one that was not written to its end."""
    return path.rpartition("/")[2].startswith("manifest-")


def decoded_manifest(content: bytes) -> StagedManifest:
    """Return what `StagedManifest.encoded` wrote.

    Raises:
        CorruptDataError: it is of a later version.
    """
    told = json.loads(content)
    if told["v"] != _VERSION:
        raise CorruptDataError(f"a staged micro-batch of version {told['v']}; this version reads {_VERSION}")
    files = tuple(StagedFile(**each) for each in told["files"])
    return StagedManifest(told["query"], told["batch"], datetime.fromisoformat(told["written_at"]), files)


def last_done(paths: Iterable[str]) -> int | None:
    """Return the last micro-batch that is marked as published, by the paths of a query; None: none is."""
    found = [_DONE.fullmatch(path.rpartition("/")[2]) for path in paths]
    return max((int(each[1]) for each in found if each is not None), default=None)


def is_over(path: str, done: int) -> bool:
    """Return whether nobody needs the file at ``path`` of a query, once batch ``done`` is published."""
    _, *directory, name = path.split("/")
    if directory and _BATCH.fullmatch(directory[0]):
        return int(directory[0]) <= done
    mark = _DONE.fullmatch(name)
    return mark is not None and int(mark[1]) < done


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:_DIGEST_CHARACTERS]
