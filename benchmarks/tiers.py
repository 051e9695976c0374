"""Reading a stream from an object store, a local folder, beside the same stream on the node's disk.

The node keeps less of what it brings in than there is to read, so that every pass brings everything in again.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from nats.aio.client import Client

from benchmarks.measurement import tell
from benchmarks.readers import ReadCase, interleaved_reads, remove
from benchmarks.report import MIB, Bar, Report, Row, Settings, new_report
from benchmarks.stored import Stored, filled
from benchmarks.systems import OURS_ALWAYS, Laboratory, Ours, ask, each, node_socket, stream_name

SIZES: Final = {"1 KiB": 1024, "100 B": 100}
FILL_BYTES: Final = {"1 KiB": 768 * MIB, "100 B": 256 * MIB}
FILL_BYTES_QUICK: Final = 96 * MIB
SEGMENT_BYTES: Final = 32 * MIB
SEGMENT_BYTES_QUICK: Final = 16 * MIB
HELD_SEGMENTS: Final = 2
OF_LOCAL_MIN: Final = 0.7

_LOCAL: Final = "on the node's disk"
_TIERED: Final = "in a local folder"
_WAIT_SECONDS: Final = 120.0
_CONFIG: Final[dict[str, object]] = {
    "tier": True,
    "local_retention_bytes": 64 * 1024,
    "dedupe_window": 0,
    "rewrite_after": 0,
}


def run(settings: Settings) -> Report:
    """Read a stream, have all of it but its last segment uploaded and dropped, and read it again."""
    rows = [row for load, size in SIZES.items() for row in _rows(load, size, settings)]
    report = new_report("tiers", settings, rows, rate_unit="records/s")
    bars = [
        Bar(
            requirement=f"{load}: {_TIERED} / {_LOCAL}",
            value=report.row(_TIERED, load).rate / report.row(_LOCAL, load).rate,
            bar=OF_LOCAL_MIN,
        )
        for load in SIZES
    ]
    return report.model_copy(update={"bars": bars})


def _rows(load: str, size: int, settings: Settings) -> list[Row]:
    values_bytes = FILL_BYTES_QUICK if settings.quick else FILL_BYTES[load]
    segment_bytes = SEGMENT_BYTES_QUICK if settings.quick else SEGMENT_BYTES
    directory = settings.directory / f"systems-{size}"
    with (
        _environment(
            JETSTREAM_NODE_TIER=str(settings.directory / f"store-{size}"),
            JETSTREAM_NODE_TIER_CACHE_BYTES=str(HELD_SEGMENTS * segment_bytes),
            JETSTREAM_NODE_MAINTENANCE_INTERVAL="PT0.1S",
        ),
        Laboratory(directory) as laboratory,
    ):
        system = laboratory.system(OURS_ALWAYS)
        assert isinstance(system, Ours), "only ours have a tier"
        small = replace(system, settings={**system.settings, "segment_bytes": segment_bytes})
        with filled(small, size, values_bytes) as stored:
            rows = interleaved_reads([_case(_LOCAL, load, small, stored)], settings)
            _move(small, stored)
            rows += interleaved_reads([_case(_TIERED, load, small, stored)], settings)
    remove(directory)
    return rows


def _case(name: str, load: str, system: Ours, stored: Stored) -> ReadCase:
    words = ("batches", "--socket", node_socket(system.address), "--records", stored.records)
    return ReadCase(name, load, words, {"node": system.processes["node"]}, stored.size_bytes)


def _move(system: Ours, stored: Stored) -> None:
    """Have everything but the segment that is being written uploaded, and dropped from the node's disk."""
    begun = time.monotonic()
    name = {"name": stream_name(0)}

    async def tiered(client: Client, body: dict[str, Any]) -> None:
        await ask(client, "stream.update", {**body, **_CONFIG})
        while time.monotonic() < begun + _WAIT_SECONDS:
            info = await ask(client, "stream.info", body)
            if int(info["segments"]) == 1:
                moved = int(info["tier"]["local_start_offset"])
                tell(f"{moved:,} of {stored.records:,} records moved in {time.monotonic() - begun:.1f} s")
                return
        raise TimeoutError("the stream was not moved to the object store")

    each(system.address, [name], tiered)


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """Set variables for the processes that are started inside."""
    os.environ.update(variables)
    try:
        yield
    finally:
        for variable in variables:
            del os.environ[variable]
