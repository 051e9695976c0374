"""Programs in JavaScript, for tests that run them."""

import asyncio
import json
from pathlib import Path


async def script(directory: Path, name: str, *arguments: str) -> tuple[int, list[dict[str, object]], str]:
    """Run one of the examples; return its exit code, what it printed, and its complaints."""
    process = await asyncio.create_subprocess_exec(
        "node",
        str(directory / name),
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        printed, complaints = await process.communicate()
    assert process.returncode is not None
    return process.returncode, [json.loads(line) for line in printed.splitlines()], complaints.decode()
