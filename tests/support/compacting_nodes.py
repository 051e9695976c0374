"""Streams on real nodes that compact soon."""

import asyncio
import time
from pathlib import Path
from typing import Any

from jetstream.client.connection import JetstreamClient
from jetstream.client.read.records import Record
from tests.support.cluster_scene import ClusterScene
from tests.support.nodes import WAIT_SECONDS
from tests.support.pauses import pause

CONFIG: dict[str, Any] = {
    "compact": "key",
    "compact_dirty_ratio": 0.01,
    "tombstone_retention": 0.3,
    "dedupe_window": 0,
    "segment_bytes": 64 * 1024,
}


def latest(records: list[Record]) -> dict[bytes, bytes]:
    """The last value of each key."""
    found: dict[bytes, bytes] = {}
    for record in records:
        if record.key is None:
            continue
        found.pop(record.key, None)
        if record.value is not None:
            found[record.key] = record.value
    return found


def is_compacting(directory: Path) -> bool:
    """Whether a segment is being written anew now, or in a moment: it is there under that name no longer."""
    gives_up_at = time.monotonic() + 0.5
    while not (is_seen := any(directory.glob("*.arrows.new"))) and time.monotonic() < gives_up_at:
        pass
    return is_seen


async def published(js: JetstreamClient, stream: str, turns: range, keys: int = 7) -> None:
    """Values of a few keys, a kilobyte each."""
    await js.publish_all(
        (f"{stream}.x", b"%d " % turn + b"x" * 1000, {"key": f"k{turn % keys}"}) for turn in turns
    )


async def until_compacted(
    scene: ClusterScene, stream: str, nodes: str, *, cleaned: int = 0, purged: int = 0
) -> None:
    """Wait until these nodes have compacted a stream up to there."""
    async with asyncio.timeout(WAIT_SECONDS):
        for node in nodes:
            for name, wanted in (("compacted", cleaned), ("purged", purged)):
                metric = f"jetstream_stream_{name}_offset"
                while await asyncio.to_thread(scene.metric, node, metric, stream) < wanted:
                    await pause()
