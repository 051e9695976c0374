"""Ctrl-C between any two calls."""

from types import FrameType

from jetstream.client.blocking import client as blocking
from jetstream.client.blocking import loop_thread

WAITED_IN = ("asyncio.tasks", "concurrent.futures._base")
"""Modules of Python's that the client hands its work to and waits in."""


class Interrupted(Exception):
    """What a signal handler raises."""


class InterruptAtCall:
    """A profile function that raises at one of the calls that the client makes in this thread.

    Python runs signal handlers when a call begins and when it has ended.
    """

    def __init__(
        self, number: int, ours: tuple[str, ...] = (blocking.__name__, loop_thread.__name__)
    ) -> None:
        """``ours``: the client's modules in whose calls it may come."""
        self._left = number
        self._ours = ours
        self.came = False

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        module = frame.f_globals.get("__name__")
        caller = frame.f_back.f_globals.get("__name__") if frame.f_back else None
        ours = self._ours
        begins = event == "call" and (module in ours or (caller in ours and module in WAITED_IN))
        if begins or (event in ("c_call", "c_return") and module in ours):
            self._left -= 1
            if self._left == 0:
                self.came = True
                raise Interrupted
