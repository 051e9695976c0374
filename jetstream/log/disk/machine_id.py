"""The id of the running kernel, by which two processes know that they share a machine and its files.

Source: random(4), ``/proc/sys/kernel/random/boot_id``.
"""

import hashlib
from functools import cache
from pathlib import Path
from typing import Final

_KERNEL: Final = Path("/proc/sys/kernel/random/boot_id")
_PURPOSE: Final = b"jetstream short-circuit reads "


@cache
def machine_id() -> str | None:
    """Return an id that all processes under one running kernel share, and no others; None: unknown."""
    return id_in(_KERNEL)


def id_in(file: Path) -> str | None:
    """Return the id of the machine whose kernel's boot id is in ``file``.

    It is a hash, as the boot id is not to leave the machine.
    """
    try:
        name = file.read_bytes().strip()
    except OSError:
        return None
    return hashlib.sha256(_PURPOSE + name).hexdigest()[:32] if name else None
