"""Reads that wait until their leader knows that it still led when they came (ReadIndex).

Source: Ongaro, "Consensus: Bridging Theory and Practice", section 6.4.
"""

from collections import deque
from dataclasses import dataclass

from envelope.types import LogIndex


@dataclass(frozen=True, slots=True)
class ReadRound:
    """Reads that came before that round of heartbeats, when ``index`` was committed."""

    round: int
    index: LogIndex
    tokens: tuple[int, ...]


class Reads:
    """Waiting reads, and those that a round of heartbeats is to confirm.

    While a round is under way, new reads gather and share the next one; the caller bounds their number.

    Invariant:
        R11: a read is answered by a round of heartbeats that began after it came.
    """

    def __init__(self) -> None:
        self._waiting: list[int] = []
        self._rounds: deque[ReadRound] = deque()

    @property
    def want_a_round(self) -> bool:
        """Whether reads wait, and for no round that is under way."""
        return bool(self._waiting) and not self._rounds

    def add(self, token: int) -> None:
        """Let a read wait for a round."""
        self._waiting.append(token)

    def join(self, number: int, index: LogIndex) -> None:
        """Let all waiting reads be confirmed by the round that begins now."""
        assert not self._rounds or number > self._rounds[-1].round, f"R11: round {number} began before"
        if self._waiting:
            self._rounds.append(ReadRound(number, index, tuple(self._waiting)))
            self._waiting.clear()

    def confirmed(self, number: int) -> list[ReadRound]:
        """Return, once, what a round up to that number confirms."""
        done: list[ReadRound] = []
        while self._rounds and self._rounds[0].round <= number:
            done.append(self._rounds.popleft())
        return done

    def give_up(self) -> tuple[int, ...]:
        """Return every read that was not answered, in the order they came."""
        tokens = [token for waiting in self._rounds for token in waiting.tokens] + self._waiting
        self._rounds.clear()
        self._waiting.clear()
        return tuple(tokens)
