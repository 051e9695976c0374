"""Short-circuit reads: where a body lies, for readers on this machine that may read the file themselves.

Nothing is lent: a reader opens the file by its name, if the system lets it, and knows by device and inode
whether it is still that one. What it reads has the checksums, offsets and epoch that a body has on the way.
"""

import os

from pydantic import ValidationError

from jetstream.node.leased_range import Body
from jetstream.protocol.responses import StoredRangeResponse


def stored_range(body: Body) -> StoredRangeResponse | None:
    """Return where ``body``, which is leased, lies; None: it is small or cannot be told, send it."""
    if body.is_small:
        return None
    try:
        path = os.readlink(f"/proc/self/fd/{body.fileno}")
        status = os.fstat(body.fileno)
    except OSError:
        return None
    if not status.st_nlink:  # removed, and there for whoever has a lease
        return None
    try:
        return StoredRangeResponse(
            path=path,
            device=status.st_dev,
            inode=status.st_ino,
            position=body.position,
            length=body.end - body.position,
        )
    except ValidationError:  # a path that is no text or not within our root, a number beyond the protocol's
        return None
