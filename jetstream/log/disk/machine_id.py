"""Which machine this is: how two processes learn that one may read the files of the other.

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
    """Return what is the same in all processes under one running kernel, and nowhere else; None: unknown."""
    return id_in(_KERNEL)


def id_in(file: Path) -> str | None:
    """Return the id of the machine whose kernel calls itself what is in ``file``.

    It is a hash: what the kernel calls itself is nobody's business on other machines.
    """
    try:
        name = file.read_bytes().strip()
    except OSError:
        return None
    return hashlib.sha256(_PURPOSE + name).hexdigest()[:32] if name else None
