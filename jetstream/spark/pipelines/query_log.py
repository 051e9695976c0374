"""A query's checkpoint as Spark writes it: its id, and the offsets of its batches.

Spark calls the function of `foreachBatch` with the number of a batch, not with its offsets. They are in
the checkpoint before the batch runs. Each file is of lines: a version, Spark's own metadata, and an offset
for each source, of which our queries have one.
"""

import json
from pathlib import Path
from typing import Final

from envelope.errors import CorruptDataError
from jetstream.spark.reading.offsets import Offsets, decode_offsets

_VERSION: Final = "v1"
_LINES: Final = 3
_EMPTY: Final = "-"
"""Instead of an offset where a source has none."""


def query_id(checkpoint: Path) -> str:
    """Return the id that the query keeps over restarts.

    Raises:
        CorruptDataError: the checkpoint does not have it.
    """
    path = checkpoint / "metadata"
    try:
        told = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise CorruptDataError(f"{path} cannot be read: {error}") from error
    if not isinstance(told, dict) or not isinstance(told.get("id"), str):
        raise CorruptDataError(f"{path} does not tell the query's id")
    found: str = told["id"]
    return found


def has_begun(checkpoint: Path) -> bool:
    """Return whether the checkpoint has offsets of its query, which then go before those of options."""
    offsets = checkpoint / "offsets"
    return offsets.is_dir() and any(entry.name.isdigit() for entry in offsets.iterdir())


def batch_offsets(checkpoint: Path, batch: int) -> tuple[Offsets, Offsets]:
    """Return the ends of the batch before, which the first has not, and of this one.

    Raises:
        CorruptDataError: the checkpoint does not have them.
        RequestError: it is of another source, or of another version of ours.
    """
    before = _end_of(checkpoint, batch - 1) if batch else {}
    return before, _end_of(checkpoint, batch)


def _end_of(checkpoint: Path, batch: int) -> Offsets:
    path = checkpoint / "offsets" / str(batch)
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise CorruptDataError(f"{path} cannot be read: {error}") from error
    if len(lines) != _LINES or lines[0] != _VERSION:
        raise CorruptDataError(f"{path} has {len(lines)} lines of version {lines[0] if lines else 'none'}")
    if lines[2] == _EMPTY:
        return {}
    try:
        told = json.loads(lines[2])
    except ValueError as error:
        raise CorruptDataError(f"{path}: {error}") from error
    if not isinstance(told, dict):
        raise CorruptDataError(f"{path}: {lines[2]!r} is no offset")
    return decode_offsets(told)
