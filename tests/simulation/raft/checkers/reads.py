"""Reads are linearizable, and so are writes: each sees everything that was complete before it began."""

from tests.simulation.violation import Violation


class Reads:
    """At the voters: a read that was asked for sees all that was committed by then."""

    def __init__(self) -> None:
        self._floors: dict[int, int] = {}

    def asked(self, token: int, commit: int) -> None:
        """A read begins while somebody knows ``commit`` to be committed."""
        self._floors[token] = commit

    def ready(self, token: int, index: int) -> None:
        """It may be answered at ``index``; once only."""
        floor = self._floors.pop(token, None)
        if floor is None:
            raise Violation(f"read {token} is answered and was not asked, or is answered twice")
        if index < floor:
            raise Violation(f"read {token} may be answered at {index}; committed before it began: {floor}")

    def refused(self, token: int) -> None:
        """It will not be answered."""
        if self._floors.pop(token, None) is None:
            raise Violation(f"read {token} is refused and was not asked, or was answered before")


class History:
    """At the clients: the state machine as a counter of commands, by what was answered when."""

    def __init__(self) -> None:
        self._seen = 0

    def begin(self) -> int:
        """An operation begins: return the count that it must see at least."""
        return self._seen

    def end_read(self, floor: int, count: int) -> None:
        """A read that began at ``floor`` was answered with ``count``."""
        if count < floor:
            raise Violation(f"a read saw {count} commands; answered before it began: {floor}")
        self._seen = max(self._seen, count)

    def end_write(self, floor: int, count: int) -> None:
        """A write that began at ``floor`` was answered: it was command number ``count``, or before that."""
        if count <= floor:
            raise Violation(f"a write became command {count} at most; answered before it began: {floor}")
        self._seen = max(self._seen, count)
