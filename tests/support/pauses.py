"""The pause between two looks at what another process does, where nothing tells when it has done it.

Asking without a pause takes the processor from the one that is waited for.
"""

import asyncio
import time
from typing import Final

_PAUSE_S: Final = 0.01


async def pause() -> None:
    """Wait a moment before the next look."""
    await asyncio.sleep(_PAUSE_S)


def pause_thread() -> None:
    """Wait a moment before the next look, without a loop."""
    time.sleep(_PAUSE_S)
