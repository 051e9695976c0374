"""The length and the time of the turns of readers that catch up, so that publishers find the loop free.

A message passes the event loop several times on its way from NATS to its ack, and each time waits for the
turns of all readers that catch up. So while something is stored their turns are short, and all of them
together get a share of the time: in the rest of it a message finds an idle core. A long turn costs less per
byte: the work around it is done less often.

It is a share of the time, and not a rate, because it follows the machine and the way to the readers. A reader
on this machine takes more of it than its turns: it reads, checks and decodes on one of the cores that a
message needs. With two cores every hundredth message meets a reader that has one for a hundredth of the time,
and waits for it; with more cores it is rarer.

Turns also begin at the right moment, if there is one: when everything is stored and acked, the publisher that
awaited the acks has yet to publish its next message. A turn that begins just then is mostly over before that
message arrives.
"""

from typing import Final

from envelope.limits import KIB, MIB

TURN_BYTES: Final = 512 * KIB
SHORT_TURN_BYTES: Final = 64 * KIB
CATCH_UP_SHARE_DEFAULT: Final = 0.1

_STORING_S: Final = 0.1
"""Time after an append that still counts as storing: its ack may be on its way, and then the next message of
the publisher that awaits it. Longer than a disk's hiccup: readers that start during one prolong it."""

_MOMENT_S: Final = 0.0003
"""Time after the end of the last append in which a turn may begin."""

_PATIENCE_S: Final = 0.005
"""Time that a due turn is delayed at most, until the next such moment."""

_SAVED_S: Final = 0.002
"""Unused time of readers that may be used later, as timers fire late."""

_TAKING_S: Final = 0.1
"""Time after a reader's turn in which there are readers that catch up."""

_COST_S_MAX: Final = 0.05
"""Limit of a turn's cost: in a longer one the process was stopped, too."""

_LOCAL_BYTES_A_SECOND_AND_CORE: Final = 96 * MIB
"""Assumed speed of a reader on this machine. A core reads, checks and decodes 2.5 GiB a second;
of two, with a tenth of the time for turns, all readers together use one for less than a hundredth of it."""


class CatchUpScheduler:
    """Decides the length of a turn, and the time of the next one. Seconds of the loop's clock.

    Attributes:
        taken_until_s: until then there are readers that catch up.

    Invariants:
        F9: while something is stored, turns take no more than their share of the time, but for one turn and
            what was saved.
        F10: while something is stored, a turn begins when it is due and an append has just been done, with
            none left under way, or as late as it may be put off.
    """

    def __init__(self, share: float = CATCH_UP_SHARE_DEFAULT, cores: int = 1) -> None:
        """Begin with nothing stored.

        Args:
            share: part of the time for all readers that catch up, while something is stored; above 0, up to
                1: no reader waits.
            cores: number of cores of this machine.
        """
        assert 0 < share <= 1, f"F9: a share of the time, not {share}"
        assert cores > 0, f"F9: something runs on a core, not on {cores}"
        self._share = share
        self._local_bytes_a_second = cores * _LOCAL_BYTES_A_SECOND_AND_CORE
        self._storing_until_s = 0.0
        self._under_way = 0
        self._done_s = 0.0
        self._due_s = 0.0
        self.taken_until_s = float("-inf")

    def appending(self, now_s: float) -> None:
        """Record that an append has begun; `appended` follows when it is done."""
        self._storing_until_s = now_s + _STORING_S
        self._under_way += 1

    def appended(self, appends: int, now_s: float) -> bool:
        """Record the end of so many appends; return whether no append is under way."""
        self._under_way -= appends
        assert self._under_way >= 0, f"F10: {self._under_way} appends are under way"
        self._done_s = now_s
        return self._under_way == 0

    def length(self, now_s: float) -> int:
        """Return the bytes of one turn of a reader."""
        return SHORT_TURN_BYTES if now_s < self._storing_until_s else TURN_BYTES

    def taken(self, cost_s: float, now_s: float, local_bytes: int = 0) -> None:
        """Record a turn of ``cost_s`` of a reader that catches up, with its bytes if it is on this machine.

        Turns while nothing is stored are free, but for the last one, which may still keep a core busy.
        """
        self.taken_until_s = now_s + _TAKING_S
        cost_s = min(cost_s, _COST_S_MAX) + local_bytes / self._local_bytes_a_second
        earliest_s = now_s - _SAVED_S
        begun_s = max(self._due_s, earliest_s) if now_s < self._storing_until_s else earliest_s
        self._due_s = begun_s + cost_s / self._share

    def rest_s(self, worked_s: float, now_s: float) -> float:
        """Return the rest of a thread that has worked for readers, so that its work keeps to the share."""
        return 0.0 if now_s >= self._storing_until_s else min(worked_s, _COST_S_MAX) * (1 / self._share - 1)

    def wait_s(self, now_s: float) -> float:
        """Return the seconds until the next turn of a reader that catches up; 0: it may be now.

        Call it again when an append ends before.
        """
        if self._share == 1 or now_s >= self._storing_until_s:
            return 0.0
        is_moment = self._under_way == 0 and now_s <= self._done_s + _MOMENT_S
        return max(0.0, self._due_s + (0.0 if is_moment else _PATIENCE_S) - now_s)
