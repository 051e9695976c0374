"""Failures that perhaps nobody has looked at, so that a flush can raise the first: a limited number."""

import asyncio
from typing import Any, Final

from jetstream.client.ack_inbox import ClaimedFuture

_KEPT_MAX: Final = 100


class KeptFailures:
    """Futures of messages that failed; beyond a hundred that nobody has looked at they are only counted."""

    def __init__(self) -> None:
        self._futures: list[ClaimedFuture[Any]] = []
        self._uncounted = 0

    def __len__(self) -> int:
        return len(self._futures)

    def keep(self, failed: ClaimedFuture[Any]) -> None:
        """Keep a future that has failed."""
        if len(self._futures) >= _KEPT_MAX:
            self._futures = [future for future in self._futures if not future.claimed]
        if len(self._futures) < _KEPT_MAX:
            self._futures.append(failed)
        else:
            self._uncounted += 1

    def raise_first(self) -> None:
        """Raise the first failure that nobody has looked at, if there is one, and forget all of them.

        A note says how many there are.
        """
        failed = [future for future in self._futures if not future.claimed]
        count = len(failed) + self._uncounted
        self._futures, self._uncounted = [], 0
        if not failed:
            return
        error = asyncio.Future.exception(failed[0])
        assert error is not None, "only failures are kept"
        if count > 1:
            error.add_note(f"{count} messages failed; this is the first")
        raise error
