"""On one disk: terms never decrease, a vote is never changed, no snapshot is replaced by an older one."""

from envelope.types import NodeId
from metadata.raft.events import Persist
from tests.simulation.raft.disk import LogImage
from tests.simulation.violation import Violation


def check_write(name: NodeId, before: LogImage, persist: Persist) -> None:
    """Check a write to the disk ``name`` that holds ``before``."""
    old, new = before.hard_state, persist.hard_state or before.hard_state
    if new.term < old.term:
        raise Violation(f"{name}: term {new.term} is written after {old.term}")
    if new.term == old.term and old.vote not in (None, new.vote):
        raise Violation(f"{name}: votes for {new.vote} after {old.vote} in term {new.term}")
    if persist.snapshot is not None and persist.snapshot.index <= before.snapshot.index:
        raise Violation(f"{name}: snapshot {persist.snapshot.index} is written after {before.snapshot.index}")
    if persist.entries and persist.entries[-1].term > new.term:
        raise Violation(f"{name}: an entry of term {persist.entries[-1].term} in term {new.term}")
