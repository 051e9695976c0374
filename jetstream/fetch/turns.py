"""How much goes to one reader before the others, and whoever publishes, have their turn.

A message comes by the event loop several times on its way from NATS to its ack, and each time waits for the
turns of all readers that catch up. So while something is stored their turns are short, and all of them
together take a share of the time: in the rest of it a message finds a core that waits for it. A long turn
costs less: what is done around it is done less often.

A share of the time, and not a rate, because it follows the machine and the way the readers are reached. A
reader on this machine takes more of it than its turns: the time in which it reads, checks and decodes.
"""

from typing import Final

from envelope.limits import GIB, KIB

TURN_BYTES: Final = 512 * KIB
SHORT_TURN_BYTES: Final = 64 * KIB
CATCH_UP_SHARE_DEFAULT: Final = 0.1

_SHORT_S: Final = 0.01
"""After an append: as long as an ack, and with it the next message of who awaits it, may be on its way."""

_SAVED_S: Final = 0.002
"""So much of the time that nobody took may be taken later: timers ring late."""

_COST_S_MAX: Final = 0.05
"""Of one turn: in what took longer the process was stopped, too."""

_LOCAL_BYTES_A_SECOND: Final = 2 * GIB
"""What one core receives or reads, checks and decodes."""


class Turns:
    """Tells how long a turn is, and when the next one may be. Seconds of the loop's clock.

    Invariant:
        F9: while something is stored, turns take no more than their share of the time, but for one turn and
            what was saved.
    """

    def __init__(self, share: float = CATCH_UP_SHARE_DEFAULT) -> None:
        """Begin with nothing stored.

        Args:
            share: of the time, for all readers that catch up, while something is stored; above 0, up to 1.
        """
        assert 0 < share <= 1, f"F9: a share of the time, not {share}"
        self._share = share
        self._storing_until_s = 0.0
        self._due_s = 0.0

    def appending(self, now_s: float) -> None:
        """Learn that something is stored now."""
        self._storing_until_s = now_s + _SHORT_S

    def length(self, now_s: float) -> int:
        """Return how many bytes go to one reader at once."""
        return SHORT_TURN_BYTES if now_s < self._storing_until_s else TURN_BYTES

    def taken(self, cost_s: float, now_s: float, local_bytes: int = 0) -> None:
        """Learn that a reader that catches up had a turn of ``cost_s``, and got bytes on this machine."""
        cost_s = min(cost_s, _COST_S_MAX) + local_bytes / _LOCAL_BYTES_A_SECOND
        self._due_s = max(self._due_s, now_s - _SAVED_S) + cost_s / self._share

    def wait_s(self, now_s: float) -> float:
        """Return how long it is until the next turn of a reader that catches up; 0: it may be now."""
        return max(0.0, self._due_s - now_s) if now_s < self._storing_until_s else 0.0
