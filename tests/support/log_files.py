"""Which files a log owns: its directory is to hold no others, or they would stay for good."""

from jetstream.log.log import Log
from jetstream.log.state.checkpoint import CHECKPOINT_FILE
from jetstream.log.state.compaction_state import COMPACTION_FILE, CompactionState
from jetstream.log.state.epochs import EPOCHS_FILE
from jetstream.log.state.rewrite_state import REWRITTEN_FILE
from jetstream.node.disk.history_file import NOTE_FILE

_STATE_FILES = {CHECKPOINT_FILE, EPOCHS_FILE, COMPACTION_FILE, REWRITTEN_FILE, NOTE_FILE}


def check_files_owned(log: Log, *, is_just_opened: bool = False) -> None:
    """Look for files that are not the log's, and for those that it must have.

    Indexes are derived: some may be missing, but for when the log was opened a moment ago, and then the last.
    """
    found = set(log._disk.listdir(log.directory))
    segments = {_name(segment.path) for segment in log.reader.segments}
    indexes = [_name(segment.index_path) for segment in log.reader.segments]
    owned = {*segments, *indexes, *_STATE_FILES}
    assert found <= owned, f"strays: {sorted(found - owned)}"
    needed = set(segments)
    if is_just_opened:
        needed.update(indexes[:-1])
    if log.compaction != CompactionState():
        needed.add(COMPACTION_FILE)
    if log.rewritten_end:
        needed.add(REWRITTEN_FILE)
    assert needed <= found, f"missing: {sorted(needed - found)}"


def _name(path: str) -> str:
    return path.rpartition("/")[2]
