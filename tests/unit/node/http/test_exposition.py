"""How the metrics are written: in slices, between which others get their turn."""

import asyncio
from collections.abc import Iterator
from typing import cast

import pytest

from jetstream.node.http import pages
from jetstream.node.http.metric_sources import Definition, Sample, Sources

AT_ONCE = 3


def test_what_has_no_sample_is_looked_at_in_slices_too(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[int] = []

    def read(_: Sources) -> Iterator[Sample | None]:
        for number in range(20):
            looked_at.append(number)
            yield ((str(number),), number) if number in (0, 11, 19) else None

    async def scenario() -> None:
        write = pages.exposition(cast("Sources", None))

        async def written() -> bytes:
            return await write()

        async with asyncio.TaskGroup() as tasks:
            page = tasks.create_task(written())
            while not page.done():
                before = len(looked_at)
                await asyncio.sleep(0)
                assert len(looked_at) - before <= AT_ONCE
        lines = [line for line in page.result().decode().splitlines() if line.startswith("jetstream")]
        assert lines == [f'jetstream_x{{of="{number}"}} {number}.0' for number in (0, 11, 19)]

    monkeypatch.setattr(pages, "SAMPLES_AT_ONCE", AT_ONCE)
    monkeypatch.setattr(pages, "METRICS", (Definition("jetstream_x", "X.", ("of",), read),))
    asyncio.run(scenario())
