"""The streams that are the system's own: how they are called, and what they bind.

Their names begin with ``__``. Users cannot create, change, cut or delete them, and publish to them only what
their leader takes; anybody may read them.
"""

import zlib
from typing import Final

from envelope.types import StreamName

INTERNAL_NAME_PREFIX: Final = "__"

CURSORS: Final = StreamName("__cursors")
"""Where the consumers' cursors are: the last record of a key is the cursor."""

GROUP_SHARDS: Final = 8
"""Never to be changed: where a group is follows from its name."""

GROUP_SHARD_STREAMS: Final = tuple(StreamName(f"{CURSORS}/{shard}") for shard in range(GROUP_SHARDS))
"""Where the consumer groups are, with their cursors."""

AUDIT: Final = StreamName("__audit")
"""Where every change that was requested is on record, if `[audit]` is enabled."""

INTERNAL_STREAMS: Final = (CURSORS, *GROUP_SHARD_STREAMS, AUDIT)
"""All that there may be."""

_PLAIN_CURSORS: Final = "cursors.plain"
_GROUPS: Final = "cursors.groups"
_AUDIT: Final = "audit"


def group_shard(group: str) -> StreamName:
    """Return the stream that has the consumer group of that name, with its cursors."""
    return StreamName(f"{CURSORS}/{zlib.crc32(group.encode()) % GROUP_SHARDS}")


def is_group_shard(name: str) -> bool:
    """Return whether a stream of that name has consumer groups: only their coordinator writes it."""
    return name in GROUP_SHARD_STREAMS


def is_internal(name: str) -> bool:
    """Return whether a stream of that name is the system's own."""
    return name.startswith(INTERNAL_NAME_PREFIX)


def cursors_pattern(api_prefix: str) -> str:
    """Return what `CURSORS` binds: deeper than any request, so that nothing is both."""
    return f"{api_prefix}.{_PLAIN_CURSORS}.*.*"


def group_shard_subject(api_prefix: str, shard: StreamName) -> str:
    """Return the subject in a shard's configuration, on which nobody listens."""
    return f"{api_prefix}.{_GROUPS}.{shard.removeprefix(f'{CURSORS}/')}"


def cursor_subject(api_prefix: str, consumer: str, stream: str) -> str:
    """Return where the cursor of ``consumer`` in ``stream`` is published; both names are one token each."""
    return f"{api_prefix}.{_PLAIN_CURSORS}.{consumer}.{stream}"


def audit_pattern(api_prefix: str) -> str:
    """Return what `AUDIT` binds: deeper than any request, as `cursors_pattern`."""
    return f"{api_prefix}.{_AUDIT}.*.*"


def audit_subject(api_prefix: str, operation: str) -> str:
    """Return where a change is put on record; ``operation`` has two tokens, such as ``stream.create``."""
    return f"{api_prefix}.{_AUDIT}.{operation}"
