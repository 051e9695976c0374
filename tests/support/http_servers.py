"""HTTP servers of pages alone, without a node behind them."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

from jetstream.fetch.catch_up_scheduler import CatchUpScheduler
from jetstream.node.http.access import HttpSettings
from jetstream.node.http.server import HttpServer, Pages
from jetstream.node.runtime.catch_up_queue import CatchUpQueue
from jetstream.node.runtime.clock import SystemClock


@asynccontextmanager
async def serving_pages(
    pages: Pages, settings: HttpSettings | None = None
) -> AsyncIterator[tuple[HttpServer, tuple[str, int]]]:
    """A server of ``pages`` and its address."""
    clock = SystemClock()
    queue = CatchUpQueue(CatchUpScheduler(), clock, asyncio.get_running_loop())
    with ThreadPoolExecutor(1) as executor:
        server = HttpServer(pages, settings or HttpSettings(), executor, clock, queue)
        address = await server.start("127.0.0.1", 0)
        try:
            yield server, address
        finally:
            await server.stop()
