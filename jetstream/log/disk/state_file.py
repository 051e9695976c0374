r"""Small state that is replaced as a whole: epochs, checkpoint, identity.

A state file is two lines of text, so that ``cat`` shows it:

    offset  size  field
    0       n     one line of JSON, an object with sorted keys, UTF-8
    n       1     "\n"
    n+1     8     CRC32C of the first n bytes, lower-case hexadecimal
    n+9     1     "\n"

It is written under another name, synced, renamed over the old one, and the directory is synced: after a
crash either the old or the new content is there, whole.
"""

import json
from typing import Final

from envelope.errors import CorruptDataError, DiskFull
from jetstream.log.disk.port import Disk, parent_of
from jetstream.log.format.checksum import crc32c

NEW_SUFFIX: Final = ".new"
"""Ending of a replacement that is not in place yet; leftovers of a crash are removed at open."""

Json = int | str | bool | None | list["Json"] | dict[str, "Json"]


def encode_state(state: dict[str, Json]) -> bytes:
    """Return the two lines."""
    line = json.dumps(state, sort_keys=True, separators=(",", ":")).encode()
    return b"%s\n%08x\n" % (line, crc32c(line))


def decode_state(content: bytes) -> dict[str, Json]:
    """Return the object of the first line.

    Raises:
        CorruptDataError: not two such lines.
    """
    line, _, checksum = content.partition(b"\n")
    if checksum != b"%08x\n" % crc32c(line):
        raise CorruptDataError("a state file does not match its checksum")
    try:
        state = json.loads(line)
    except ValueError as error:
        raise CorruptDataError("a state file is not JSON") from error
    if not isinstance(state, dict):
        raise CorruptDataError("a state file is not a JSON object")
    return state


def natural(state: dict[str, Json], name: str) -> int:
    """Return a field that must be a number of at least 0.

    Raises:
        CorruptDataError: it is missing or something else.
    """
    value = state.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise CorruptDataError(f"a state file has {name}={value!r}")
    return value


def write_state(disk: Disk, path: str, state: dict[str, Json]) -> None:
    """Replace ``path``; returns when the new content is durable.

    Raises:
        DiskFull: the old content is still in place.
        FsyncFailed, StorageError: either content may be in place.
    """
    replace_file(disk, path, encode_state(state), durable=True)


def replace_file(disk: Disk, path: str, content: bytes, *, durable: bool) -> None:
    """Put ``content`` in place of ``path`` at once; unless ``durable``, a crash may leave anything there.

    A full disk is left as it was: with the path it may belong to, what was begun would stay for good.
    """
    temporary = path + NEW_SUFFIX
    if disk.exists(temporary):
        disk.unlink(temporary)
    file = disk.create(temporary)
    try:
        try:
            file.write((content,), 0)
            if durable:
                file.sync()
        finally:
            file.close()
        disk.rename(temporary, path)
    except DiskFull:
        disk.unlink(temporary)
        raise
    if durable:
        disk.sync_dir(parent_of(path))


def read_whole(disk: Disk, path: str) -> bytes:
    """Return the content of a file."""
    file = disk.open(path)
    try:
        return file.read(0, file.size())
    finally:
        file.close()
