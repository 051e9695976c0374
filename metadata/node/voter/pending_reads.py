"""Reads that wait for the machine's answer."""

import asyncio
import itertools
from collections.abc import Sequence

from envelope.errors import NotLeader
from envelope.types import LogIndex, NodeId


class PendingReads:
    """Futures by the token that names them to the machine."""

    def __init__(self) -> None:
        self._futures: dict[int, asyncio.Future[LogIndex]] = {}
        self._tokens = itertools.count()

    def add(self) -> "tuple[int, asyncio.Future[LogIndex]]":
        """Return a new read's token, and what will be its index; forgotten once that is known."""
        token = next(self._tokens)
        future: asyncio.Future[LogIndex] = asyncio.get_running_loop().create_future()
        self._futures[token] = future
        future.add_done_callback(lambda _: self._futures.pop(token))
        return token, future

    def answer(self, tokens: Sequence[int], index: LogIndex) -> None:
        """Answer the reads that still wait with ``index``, at which the state answers them."""
        for future in self._waiting(tokens):
            future.set_result(index)

    def refuse(self, tokens: Sequence[int], leader: NodeId | None) -> None:
        """Refuse the reads that still wait; the error names ``leader``."""
        for future in self._waiting(tokens):
            future.set_exception(not_leader(leader))

    def refuse_all(self) -> None:
        """Refuse all reads: there is no leader here."""
        self.refuse(tuple(self._futures), None)

    def _waiting(self, tokens: Sequence[int]) -> "list[asyncio.Future[LogIndex]]":
        found = (self._futures.get(token) for token in tokens)
        return [future for future in found if future is not None and not future.done()]


def not_leader(leader: NodeId | None) -> NotLeader:
    """Return the error that names the leader."""
    if leader is None:
        return NotLeader("the metadata log has no leader now")
    return NotLeader(f"{leader} leads the metadata log", leader=leader)
