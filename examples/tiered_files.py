"""A stream's segments in the object store, opened as they lie by pyarrow, polars and DuckDB.

    JETSTREAM_NODE_TIER=/srv/tier jetstream up     # in another terminal
    JETSTREAM_NODE_TIER=/srv/tier python examples/tiered_files.py [nats://127.0.0.1:4222]

Needs polars and duckdb beside what Jetstream needs.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa

import jetstream


async def main(url: str, store: Path) -> None:
    """Fill a stream at ``url`` and look at what its node copies to ``store``."""
    async with jetstream.connect(url) as js:
        await js.streams.create("readings", "readings.>", tier=True, segment_bytes=64 * 1024, rewrite_after=0)
        for hour in range(24):
            values = (json.dumps({"hour": hour, "number": number}).encode() for number in range(100))
            await js.publish_all((f"readings.{hour % 3}", value) for value in values)
        while True:
            info = await js.streams.info("readings")
            if info.tier is not None and info.tier.manifest is not None:
                break
            await asyncio.sleep(0.1)

    # The manifest names the segments in their order; each is an Arrow IPC stream.
    manifest = json.loads((store / info.tier.manifest).read_bytes())
    files = [store / segment["path"] for segment in manifest["segments"]]

    tables = []
    for file in files:
        with pa.memory_map(str(file)) as source, pa.ipc.open_stream(source) as reader:
            tables.append(reader.read_all())
    records = pa.concat_tables(tables)
    print(f"pyarrow: columns {', '.join(records.column_names)}")
    print(f"pyarrow: all that the manifest says: {records.num_rows == manifest['end']}")

    frame = pl.concat([pl.read_ipc_stream(file) for file in files])
    hours = frame.select(pl.col("value").cast(pl.String).str.json_path_match("$.hour"))
    print(f"polars: as many: {frame.height == records.num_rows}, first hour {hours.item(0, 0)}")

    found = duckdb.execute("""
        SELECT subject, count(*) AS messages, min("offset") AS first
        FROM records GROUP BY subject ORDER BY subject
    """).fetchall()
    print(f"duckdb: as many: {sum(row[1] for row in found) == records.num_rows}")
    print(f"duckdb: first of each subject {[(subject, first) for subject, _, first in found]}")


if __name__ == "__main__":
    asyncio.run(
        main(
            sys.argv[1] if len(sys.argv) > 1 else "nats://127.0.0.1:4222",
            Path(os.environ["JETSTREAM_NODE_TIER"]),
        )
    )
