"""Beginning a log anew at another offset; after a crash it is the old one whole, or the new one.

The ``reset`` state file holds ``{"offset": first offset of the new log, "purged_end": as in the compaction
file of the new log}``, the latter missing if it is 0. Once the file is in place the old log is gone: the
reset itself, or the next opening, removes its rest and begins the new log. Every step can be repeated, and
the file goes last.
"""

from typing import Final

from envelope.types import FilePosition, Offset
from jetstream.log.disk.port import Disk
from jetstream.log.disk.state_file import Json, decode_state, natural, read_whole, write_state
from jetstream.log.segments.segment import INDEX_SUFFIX, base_of, segment_path
from jetstream.log.state.checkpoint import CHECKPOINT_FILE, Checkpoint
from jetstream.log.state.compaction_state import COMPACTION_FILE, CompactionState
from jetstream.log.state.epochs import EPOCHS_FILE, NO_EPOCH
from jetstream.log.state.rewrite_state import REWRITTEN_FILE

RESET_FILE: Final = "reset"
_OF_THE_OLD_LOG: Final = (EPOCHS_FILE, COMPACTION_FILE, REWRITTEN_FILE)


def begin_reset(disk: Disk, directory: str, offset: Offset, purged_end: Offset) -> None:
    """Put on record that the log in ``directory`` begins anew at ``offset``; `finish_reset` must follow.

    Raises:
        DiskFull: the old log is untouched.
        StorageError, FsyncFailed: either may be found.
    """
    state: dict[str, Json] = {"offset": offset}
    if purged_end:
        state["purged_end"] = purged_end
    write_state(disk, f"{directory}/{RESET_FILE}", state)


def is_resetting(disk: Disk, directory: str) -> bool:
    """Return whether a reset has begun and not ended."""
    return disk.exists(f"{directory}/{RESET_FILE}")


def finish_reset(disk: Disk, directory: str) -> Checkpoint:
    """Do what the reset file in ``directory`` says; return the new log's checkpoint when that is durable.

    Raises:
        CorruptDataError: the reset file is damaged; nothing was done.
        DiskFull, StorageError, FsyncFailed: to be finished later.
    """
    path = f"{directory}/{RESET_FILE}"
    state = decode_state(read_whole(disk, path))
    offset = Offset(natural(state, "offset"))
    purged_end = Offset(natural(state, "purged_end") if "purged_end" in state else 0)
    for name in disk.listdir(directory):
        if base_of(name) is not None or name.endswith(INDEX_SUFFIX) or name in _OF_THE_OLD_LOG:
            disk.unlink(f"{directory}/{name}")
    disk.create(segment_path(directory, offset)).close()
    if purged_end:
        compaction = CompactionState(purged_end=purged_end)
        write_state(disk, f"{directory}/{COMPACTION_FILE}", compaction.encode())
    checkpoint = Checkpoint(
        log_start_offset=offset,
        synced_end=offset,
        segment_base=offset,
        synced_position=FilePosition(0),
        last_epoch=NO_EPOCH,
        clean=False,
    )
    # This makes the directory's other changes durable as well.
    write_state(disk, f"{directory}/{CHECKPOINT_FILE}", checkpoint.encode())
    disk.unlink(path)
    disk.sync_dir(directory)
    return checkpoint
