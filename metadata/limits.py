"""Limits of the control plane, with their units; the data plane's are in `envelope.limits`."""

from datetime import timedelta
from typing import Final

from envelope.limits import API_REQUEST_BYTES_MAX, MIB, STREAM_NAME_CHARS_MAX, STREAMS_MAX, SUBJECT_BYTES_MAX

REPLICAS_MAX: Final = 15
"""Copies of one stream; more only slow down the commit."""

REPLICAS_DEFAULT: Final = 1
"""Copies of a new stream where neither its request nor the cluster's settings say how many."""

INTERNAL_REPLICAS_MAX: Final = 3
"""Copies of an internal stream, if there are as many nodes."""

VOTERS_ALLOWED: Final = (1, 3, 5)
"""Voters of the metadata log: another one would not let it outlive more failures, and more only slow it."""

READ_REPLICAS_MAX: Final = 64
"""Copies of one stream that only serve reads; the leader sends each of them everything."""

PARTITIONS_MAX: Final = 256
"""Partitions of one stream; each is a stream with files and replicas of its own."""

DEDUPE_IDS_CEILING: Final = 20_000_000
"""The most message ids that one stream may be configured to remember: some 3 GB."""

DURATION_MAX: Final = timedelta(days=36_525)
"""A hundred years: every duration fits 64-bit microseconds with room to add it to any date."""

LABELS_MAX: Final = 64
LABEL_KEY_CHARS_MAX: Final = 63
LABEL_VALUE_CHARS_MAX: Final = 1024

NODES_MAX: Final = 1024

NAMESPACES_MAX: Final = 4096
"""Namespaces that have limits."""

NAMESPACE_SUBJECTS_MAX: Final = 64
"""Patterns of the subjects that the streams of one namespace may bind."""

NAMESPACE_BYTES_MAX: Final = 1 << 62

CREATIONS_PER_MINUTE_MAX: Final = 1_000_000
"""A limit above that would limit nothing."""

REMOVALS_MAX: Final = STREAMS_MAX
"""Deleted streams whose files some node has not yet removed."""

LIST_PAGE_DEFAULT: Final = 256
LIST_PAGE_MAX: Final = 1024
"""Streams in one page of ``stream.list``; a page also ends at `LIST_PAGE_BYTES_MAX`."""

LIST_PAGE_BYTES_MAX: Final = 512 * 1024
"""So that a page fits nats-server's default ``max_payload`` of 1 MiB."""

ENTRY_BYTES_MAX: Final = 4 * MIB
"""One entry of the metadata log: a command as JSON."""

APPEND_BYTES_MAX: Final = 256 * MIB
"""One append to the metadata log, and so the most that recovery may find torn."""

SNAPSHOT_BYTES_MAX: Final = 1024 * MIB
"""One encoded catalogue."""

SNAPSHOT_LOG_BYTES_MIN: Final = 4 * MIB
"""A log shorter than this is not worth a snapshot."""

assert API_REQUEST_BYTES_MAX <= ENTRY_BYTES_MAX, "what the request API takes in must fit one entry"
assert ENTRY_BYTES_MAX <= APPEND_BYTES_MAX, "an append must hold at least one entry"
assert 4 * (STREAM_NAME_CHARS_MAX + SUBJECT_BYTES_MAX) <= LIST_PAGE_BYTES_MAX, "a page must hold one stream"
