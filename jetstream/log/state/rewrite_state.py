"""The end of the segments that the sealed rewrite has looked at, on record.

The ``rewritten`` state file of a log's directory: ``{"end": 700}``. Without it the segments are looked at
again.
"""

from typing import Final

from envelope.errors import CorruptDataError
from envelope.types import Offset
from jetstream.log.disk.port import Disk
from jetstream.log.disk.state_file import decode_state, natural, read_whole, write_state

REWRITTEN_FILE: Final = "rewritten"

_NOTHING: Final = Offset(0)


def write_rewritten_end(disk: Disk, directory: str, end: Offset) -> None:
    """Put ``end`` on record; raises as `jetstream.log.disk.state_file.write_state`."""
    write_state(disk, f"{directory}/{REWRITTEN_FILE}", {"end": end})


def recovered_rewritten_end(disk: Disk, directory: str, log_end_offset: Offset) -> tuple[Offset, str | None]:
    """Return the recorded end of a log that is being opened, and the problem with it, if any.

    Raises:
        StorageError, FsyncFailed, DiskFull: the disk refused.
    """
    path = f"{directory}/{REWRITTEN_FILE}"
    if not disk.exists(path):
        return _NOTHING, None
    try:
        end = Offset(natural(decode_state(read_whole(disk, path)), "end"))
    except CorruptDataError as error:
        return _NOTHING, f"the file of the sealed rewrite is unusable: {error}"
    if end > log_end_offset:  # a crash has cut the log back
        write_rewritten_end(disk, directory, log_end_offset)
        end = log_end_offset
    return end, None
