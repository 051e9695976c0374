"""The shared words: one type for every number or string that could be swapped for another.

The glossary (docs/glossary.md) is normative; all ranges are half-open ``[start, end)``.
"""

from enum import StrEnum
from typing import Final, NewType

Offset = NewType("Offset", int)
"""Index of a record in its stream, 0-based, dense at append."""

FilePosition = NewType("FilePosition", int)
"""Byte in a segment file, 0-based."""

LeaderEpoch = NewType("LeaderEpoch", int)
"""Reign of a stream's leader; a new one at every start of the leading process."""

NodeEpoch = NewType("NodeEpoch", int)
"""One per start of a node."""

Term = NewType("Term", int)
"""Raft term (metadata only)."""

LogIndex = NewType("LogIndex", int)
"""1-based index of an entry in the metadata log (Raft's index); 0 is before the first."""

NodeId = NewType("NodeId", str)
StreamName = NewType("StreamName", str)
Incarnation = NewType("Incarnation", str)
"""Identity of one life of a stream: a deleted and re-created stream has another one."""

TimestampUs = NewType("TimestampUs", int)
"""Wall clock, microseconds since the Unix epoch, UTC."""

MonotonicNs = NewType("MonotonicNs", int)
"""Monotonic clock, nanoseconds since an arbitrary start."""

Buffer = bytes | bytearray | memoryview

NO_OFFSET: Final = Offset(0)
"""The first offset of every stream; also the high watermark of an empty log."""


class SyncMode(StrEnum):
    """When appended bytes are forced to disk, and so what ``synced_end`` means."""

    ALWAYS = "always"
    """fdatasync before the acknowledgement; a replica counts only up to what it has synced."""
    INTERVAL = "interval"
    """fdatasync on a timer; a power loss may lose the last interval."""
    OS = "os"
    """Never asked for; the kernel decides."""


class AckPolicy(StrEnum):
    """The replicas that must hold a record before its publisher is answered."""

    ALL = "all"
    """Committed: below the high watermark."""
    LEADER = "leader"
    """Appended (and synced, if ``sync: always``) by the leader alone."""
    NONE = "none"
    """No answer, unless the message asks for one."""


class PartitionBy(StrEnum):
    """The property of a message that chooses its partition of a partitioned stream."""

    QUEUE = "queue"
    """NATS: each message goes to one of them, in no order."""
    KEY = "key"
    """Its key, or its subject if it has none."""
    SUBJECT = "subject"
    """Its subject."""


class Compression(StrEnum):
    """Arrow IPC body compression of a batch."""

    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"


class Compact(StrEnum):
    """Which records compaction may remove."""

    NONE = "none"
    KEY = "key"
