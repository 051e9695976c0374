"""When the system wakes who receives a body: once enough of it has arrived, not for each piece.

A part of a body cannot be read, and where processes are more than cores each look makes two of them take
turns and fills their caches anew. With TLS nobody knows how many bytes of the connection a body still takes,
so there each piece wakes.

Source: Linux, ``SO_RCVLOWAT`` and ``FIONREAD``. Since 4.18 the kernel makes room for what is waited for, and
wakes earlier where it cannot; before, a receiver could wait for more than fits, for ever.
"""

import asyncio
import fcntl
import re
import socket
import sys
import termios
from os import uname
from typing import Final

from envelope.limits import MIB

_WAKE_BYTES: Final = 4 * MIB
"""So much is enough: a fetch of the usual size."""

_KERNEL_MIN: Final = (4, 18)
_KERNEL: Final = re.compile(r"(\d+)\.(\d+)")


def can_wait(platform: str, release: str) -> bool:
    """Tell whether a system makes room for what is waited for; what poses as Linux names an old release."""
    found = _KERNEL.match(release)
    return platform == "linux" and found is not None and (int(found[1]), int(found[2])) >= _KERNEL_MIN


_CAN_WAIT: Final = can_wait(sys.platform, uname().release)


class WakeUp:
    """Of one open connection; not to be used once it is closed."""

    def __init__(self, transport: asyncio.BaseTransport) -> None:
        """Wake for each piece, to begin with."""
        is_plain = transport.get_extra_info("sslcontext") is None
        self._socket: socket.socket | None = None
        if _CAN_WAIT and is_plain:
            self._socket = transport.get_extra_info("socket")
        self._enough = 1

    @property
    def waiting(self) -> int:
        """Bytes that have arrived and that nobody was woken for."""
        if self._socket is None:
            return 0
        found = fcntl.ioctl(self._socket.fileno(), termios.FIONREAD, bytes(4))
        return int.from_bytes(found, sys.byteorder)

    def when_filled(self, window: memoryview | None) -> None:
        """Wake when ``window``, the rest of a body, or enough of it can be filled; None: for any byte."""
        enough = 1 if window is None else min(len(window), _WAKE_BYTES)
        if enough != self._enough and self._socket is not None:
            self._enough = enough
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, enough)
