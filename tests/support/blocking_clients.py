"""A node in the test's own loop, and blocking clients of it on another thread."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from tests.support.nodes import nats_and_node, run


def against_a_node(directory: Path, scenario: Callable[[str], None]) -> None:
    """Run a scenario in a thread that has no event loop."""

    async def test() -> None:
        async with nats_and_node(directory) as (url, _):
            await asyncio.to_thread(scenario, url)

    run(test())
