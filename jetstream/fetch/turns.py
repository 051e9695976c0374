"""How much goes to one reader before the others, and whoever publishes, have their turn.

A message comes by the event loop several times on its way from NATS to its ack, and each time waits for the
turns of all readers that catch up. So while something is stored their turns are short. A long one costs less:
what is done around it is done less often.
"""

from typing import Final

from envelope.limits import KIB

TURN_BYTES: Final = 512 * KIB
SHORT_TURN_BYTES: Final = 64 * KIB

_SHORT_S: Final = 0.01
"""After an append: as long as an ack, and with it the next message of who awaits it, may be on its way."""


class Turns:
    """Tells how long a turn is. ``now_s`` is what the loop's clock says."""

    def __init__(self) -> None:
        """Begin with nothing stored."""
        self._short_until_s = 0.0

    def appending(self, now_s: float) -> None:
        """Learn that something is stored now."""
        self._short_until_s = now_s + _SHORT_S

    def length(self, now_s: float) -> int:
        """Return how many bytes go to one reader at once."""
        return SHORT_TURN_BYTES if now_s < self._short_until_s else TURN_BYTES
