"""The streams that are the system's own: how they are called, and what they bind.

Their names begin with ``__``. Users cannot create, change, cut or delete them, and publish to them only what
their leader takes; anybody may read them.
"""

from typing import Final

from envelope.types import StreamName

INTERNAL_NAME_PREFIX: Final = "__"

CURSORS: Final = StreamName("__cursors")
"""Where the consumers' cursors are: the last record of a key is the cursor."""

INTERNAL_STREAMS: Final = (CURSORS,)
"""All that there may be."""

_PLAIN_CURSORS: Final = "cursors.plain"


def is_internal(name: str) -> bool:
    """Tell whether a stream of that name is the system's own."""
    return name.startswith(INTERNAL_NAME_PREFIX)


def cursors_pattern(api_prefix: str) -> str:
    """Return what `CURSORS` binds: deeper than any request, so that nothing is both."""
    return f"{api_prefix}.{_PLAIN_CURSORS}.*.*"


def cursor_subject(api_prefix: str, consumer: str, stream: str) -> str:
    """Return where the cursor of ``consumer`` in ``stream`` is published; both names are one token each."""
    return f"{api_prefix}.{_PLAIN_CURSORS}.{consumer}.{stream}"
