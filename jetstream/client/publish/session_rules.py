"""The decisions of a session's publisher; pure."""

from enum import Enum, auto
from typing import Final

from envelope.errors import JetstreamError, SequenceGap, SequencePassed, SessionExpired


class RefusalEffect(Enum):
    """The effect on a session of the refusal of one of its messages."""

    SEND_AGAIN = auto()
    """All that is not acked, in order, a little later."""
    LEAVE_OUT = auto()
    """The message alone is refused for good; the next one names the one before it."""
    GIVE_UP = auto()
    """The session can go on no more."""
    IS_STORED = auto()
    """It is stored already, by an earlier run."""
    FOLLOW = auto()
    """Another run has published up to the number that the stream names: go on there."""


def refusal_effect(error: JetstreamError, *, names_last_acked: bool, is_begun: bool) -> RefusalEffect:
    """Return what follows from the refusal of a message.

    Args:
        error: why it is refused.
        names_last_acked: the message before it, which it named, is the last one that was acked, so that none
            on its way can be missing between them.
        is_begun: the stream has acked a message of the session, so it has known it.
    """
    match error:
        case SequencePassed():
            return RefusalEffect.GIVE_UP  # forgotten, or somebody else publishes this session
        case SequenceGap() if names_last_acked:
            return RefusalEffect.GIVE_UP  # the stream does not have what it acked, or somebody else as above
        case SessionExpired() if is_begun:
            return RefusalEffect.GIVE_UP  # to begin anew would be to store again what is not acked yet
        case SessionExpired():
            return RefusalEffect.SEND_AGAIN  # the first message was lost on its way, and this one came
        case _:
            return RefusalEffect.SEND_AGAIN if error.retriable else RefusalEffect.LEAVE_OUT


def derived_effect(
    error: JetstreamError, sequence: int, last_acked: int, *, names_last_acked: bool, is_begun: bool
) -> RefusalEffect:
    """Return the effect of a refusal where numbers and messages are derived from records that are read.

    Any other publisher of this session publishes the same messages under the same numbers, each naming the
    one before it, and stops at the first that is refused. So a message that is not above the stream's last
    number is stored, and messages of the stream beyond the last one that was acked here were derived
    elsewhere.

    Args:
        error: why the message is refused.
        sequence: of the message.
        last_acked: the last one that was acked here; 0 before that.
        names_last_acked: as in `refusal_effect`.
        is_begun: as in `refusal_effect`.
    """
    if isinstance(error, SequencePassed):
        return RefusalEffect.IS_STORED
    if isinstance(error, SequenceGap) and names_last_acked and last_acked < named_last(error) < sequence:
        return RefusalEffect.FOLLOW
    usual = refusal_effect(error, names_last_acked=names_last_acked, is_begun=is_begun)
    return RefusalEffect.GIVE_UP if usual is RefusalEffect.LEAVE_OUT else usual


def named_last(error: SequenceGap) -> int:
    """Return the last number of the session in the stream, as its refusal names it; 0 if it does not."""
    last = error.detail.get("last_sequence", 0)
    return last if isinstance(last, int) else 0


_GROWTH_MAX: Final = 16


class AckTimeout:
    """How long a session waits for an ack before it sends again: longer where acks take longer.

    Where a window of messages takes longer than the timeout, sending again only delays the acks further.
    So it doubles whenever it has passed, and halves once a window full of acks came in a quarter of it.
    """

    def __init__(self, least_s: float, retry_s: float, window: int) -> None:
        """Begin with ``least_s``; allow for a second attempt within ``retry_s`` if that is longer."""
        self._least_s = least_s
        self._most_s = max(least_s, min(_GROWTH_MAX * least_s, retry_s / 2))
        self._window = window
        self._seconds = least_s
        self._acks = 0
        self._slowest_s = 0.0

    @property
    def seconds(self) -> float:
        """For a message that is sent now."""
        return self._seconds

    def passed(self) -> None:
        """Wait longer: it has passed without an ack."""
        self._seconds = min(2 * self._seconds, self._most_s)
        self._acks, self._slowest_s = 0, 0.0

    def acked(self, took_s: float) -> None:
        """Take note of an ack that came so long after its message was first sent."""
        self._acks += 1
        self._slowest_s = max(self._slowest_s, took_s)
        if self._acks >= self._window:
            if self._slowest_s <= self._seconds / 4:
                self._seconds = max(self._seconds / 2, self._least_s)
            self._acks, self._slowest_s = 0, 0.0
