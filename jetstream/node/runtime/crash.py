"""Where callbacks that nobody awaits report an error of ours, so that the node stops instead of going deaf.

nats-py swallows what its callbacks raise, and a dead disk thread raises nothing at all. Both report here, and
one task of the node's group raises it.
"""

import asyncio


class Crash:
    """The first error reported wins; `watch` raises it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._error: asyncio.Future[BaseException] = self._loop.create_future()

    @property
    def reported(self) -> bool:
        """Whether an error was reported."""
        return self._error.done()

    def report(self, error: BaseException) -> None:
        """Stop the node with ``error``; on the loop's thread."""
        if not self._error.done():
            self._error.set_result(error)

    def report_from_thread(self, error: BaseException) -> None:
        """Stop the node with ``error``; on any thread."""
        self._loop.call_soon_threadsafe(self.report, error)

    async def watch(self) -> None:
        """Wait for the first error and raise it."""
        raise await self._error
