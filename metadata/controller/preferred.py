"""Streams that another than their preferred leader, the first of their replicas, leads."""

from envelope.types import MonotonicNs, StreamName
from metadata.catalog.tables import Stream


class PreferredLeaders:
    """Streams that are whole and not led by their preferred leader, oldest first.

    A stream is looked at when its row changes, and the first of them when time passes: a stream that its
    preferred leader leads costs nothing.
    """

    def __init__(self, settle_ns: int, pause_ns: int) -> None:
        """Know of nothing.

        Args:
            settle_ns: how long a row must not have changed.
            pause_ns: how long between two streams.
        """
        self._settle_ns = settle_ns
        self._pause_ns = pause_ns
        self._since: dict[StreamName, MonotonicNs] = {}
        self._pause_until = MonotonicNs(0)

    def put(self, row: Stream, now: MonotonicNs) -> None:
        """Record a row that is new, or has changed."""
        self.remove(row.name)
        if _could_return(row):
            self._since[row.name] = now

    def remove(self, name: StreamName) -> None:
        """Forget a stream, if it is known."""
        self._since.pop(name, None)

    def next_due(self, now: MonotonicNs) -> StreamName | None:
        """Return a stream that is to be given back to its preferred leader, one at a time."""
        if not self._since or now < self._pause_until:
            return None
        name, since = next(iter(self._since.items()))
        if now < since + self._settle_ns:
            return None
        del self._since[name]
        self._since[name] = now  # its turn comes again, if nothing comes of this
        self._pause_until = MonotonicNs(now + self._pause_ns)
        return name


def _could_return(row: Stream) -> bool:
    is_whole = row.target is None and len(row.isr) == len(row.replicas)
    return is_whole and row.leader not in (None, row.replicas[0])
