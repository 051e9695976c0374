"""How much goes to one reader before the others, and whoever publishes, have their turn.

A message comes by the event loop several times on its way from NATS to its ack, and each time waits for the
turns of all readers that catch up. So while something is stored their turns are short, and all of them
together take a share of the time: in the rest of it a message finds a core that waits for it. A long turn
costs less: what is done around it is done less often.

A share of the time, and not a rate, because it follows the machine and the way the readers are reached. A
reader on this machine takes more of it than its turns: it reads, checks and decodes on one of the cores that
a message needs. With two of them every hundredth message meets a reader that has one for a hundredth of the
time, and waits for it; the more cores there are, the seldomer.

And at the right moment, where there is one: when everything is stored and acked, whoever awaited the acks has
yet to publish what comes next. A turn that begins just then is mostly over before that is here.
"""

from typing import Final

from envelope.limits import KIB, MIB

TURN_BYTES: Final = 512 * KIB
SHORT_TURN_BYTES: Final = 64 * KIB
CATCH_UP_SHARE_DEFAULT: Final = 0.1

_STORING_S: Final = 0.1
"""After an append something is still being stored: its ack may be on its way, and with it the next message of
who awaits it. Longer than a disk's hiccup: readers let loose in the middle of one make it last."""

_MOMENT_S: Final = 0.0003
"""So long after the last append is done is the moment to begin a turn."""

_PATIENCE_S: Final = 0.005
"""So long beyond the time that it is due a turn is put off to the next such moment."""

_SAVED_S: Final = 0.002
"""So much of the time that nobody took may be taken later: timers ring late."""

_TAKING_S: Final = 0.1
"""So long after a reader's turn there are readers that catch up."""

_COST_S_MAX: Final = 0.05
"""Of one turn: in what took longer the process was stopped, too."""

_LOCAL_BYTES_A_SECOND_AND_CORE: Final = 96 * MIB
"""How fast a reader on this machine counts as reading. One core reads, checks and decodes 2.5 GiB a second:
of two, with a tenth of the time for turns, all readers together have one for less than a hundredth of it."""


class CatchUpScheduler:
    """Tells how long a turn is, and when the next one may be. Seconds of the loop's clock.

    Invariants:
        F9: while something is stored, turns take no more than their share of the time, but for one turn and
            what was saved.
        F10: while something is stored, a turn begins when it is due and an append has just been done, with
            none left under way, or as late as it may be put off.
    """

    def __init__(self, share: float = CATCH_UP_SHARE_DEFAULT, cores: int = 1) -> None:
        """Begin with nothing stored.

        Args:
            share: of the time, for all readers that catch up, while something is stored; above 0, up to 1:
                nobody waits then.
            cores: that this machine has for the node, its readers and whoever else is on it.
        """
        assert 0 < share <= 1, f"F9: a share of the time, not {share}"
        assert cores > 0, f"F9: something runs on a core, not on {cores}"
        self._share = share
        self._local_bytes_a_second = cores * _LOCAL_BYTES_A_SECOND_AND_CORE
        self._storing_until_s = 0.0
        self._under_way = 0
        self._done_s = 0.0
        self._due_s = 0.0
        self._taken_s = float("-inf")

    def appending(self, now_s: float) -> None:
        """Learn that something is stored now; `appended` tells when that is done."""
        self._storing_until_s = now_s + _STORING_S
        self._under_way += 1

    def appended(self, appends: int, now_s: float) -> bool:
        """Learn that so many appends are done; return whether none is under way any more."""
        self._under_way -= appends
        assert self._under_way >= 0, f"F10: {self._under_way} appends are under way"
        self._done_s = now_s
        return self._under_way == 0

    def length(self, now_s: float) -> int:
        """Return how many bytes go to one reader at once."""
        return SHORT_TURN_BYTES if now_s < self._storing_until_s else TURN_BYTES

    def taken(self, cost_s: float, now_s: float, local_bytes: int = 0) -> None:
        """Learn that a reader that catches up had a turn of ``cost_s``, and got bytes on this machine.

        What it takes while nothing is stored it owes nobody: only its last turn may still keep a core busy.
        """
        self._taken_s = now_s
        cost_s = min(cost_s, _COST_S_MAX) + local_bytes / self._local_bytes_a_second
        earliest_s = now_s - _SAVED_S
        begun_s = max(self._due_s, earliest_s) if now_s < self._storing_until_s else earliest_s
        self._due_s = begun_s + cost_s / self._share

    def are_taken(self, now_s: float) -> bool:
        """Return whether there are readers that catch up."""
        return now_s <= self._taken_s + _TAKING_S

    def wait_s(self, now_s: float) -> float:
        """Return how long the next turn of a reader that catches up has to wait; 0: it may be now.

        If an append is done before, ask again.
        """
        if self._share == 1 or now_s >= self._storing_until_s:
            return 0.0
        is_moment = self._under_way == 0 and now_s <= self._done_s + _MOMENT_S
        return max(0.0, self._due_s + (0.0 if is_moment else _PATIENCE_S) - now_s)
