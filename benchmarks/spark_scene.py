"""A Spark session on two cores beside a node, and streams that are filled before they are read.

The session is this process's own: a job begins where Python asks Spark for it. Spark's Python workers find
the benchmark's own sources (`spark_sources`) because they inherit where this process imports from.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

import jetstream
from benchmarks.loadgen import Address
from benchmarks.machine import REPOSITORY
from benchmarks.measurement import tell
from benchmarks.processes import nats_server, node
from benchmarks.systems import node_socket
from envelope.envelopes import encode_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MASTER: Final = "local[2]"
PARTITIONS: Final = 2
DRIVER_MEMORY: Final = "1g"
PIECE_ROWS: Final = 100_000
TIMES_VARIABLE: Final = "JETSTREAM_BENCH_TIMES"
"""The environment's name of the file in which a source of ours writes what it took."""


class FillError(Exception):
    """A stream does not hold what was published to it."""


@dataclass(frozen=True, slots=True)
class StoredRows:
    """A stream that nobody appends to."""

    stream: str
    rows: int
    value_bytes: int
    """Of all values together."""


@dataclass(frozen=True, slots=True)
class SparkScene:
    """Running programs."""

    spark: "SparkSession"
    address: Address
    """Of the NATS server."""
    sockets: str
    """Where the node serves readers."""
    node_pid: int
    nats_pid: int
    directory: Path
    """For what jobs write."""
    times: Path
    """What `spark_sources.TimedSource` has written down."""

    @property
    def access(self) -> dict[str, str]:
        """Return the options with which source and sink find the node."""
        return {"servers": self.address.url, "sockets": self.sockets}

    def read(self, stream: str, source: str = "jetstream") -> "DataFrame":
        """Return all of a stream, in as many parts as there are cores."""
        options = {**self.access, "stream": stream, "minPartitions": str(PARTITIONS)}
        return self.spark.read.format(source).options(**options).load()

    def read_stream(self, stream: str, source: str = "jetstream", **options: str) -> "DataFrame":
        """Return a stream that Spark follows, in one part."""
        given = {**self.access, "stream": stream, **options}
        return self.spark.readStream.format(source).options(**given).load()


@contextmanager
def spark_scene(directory: Path, **settings: str) -> Iterator[SparkScene]:
    """Run a nats-server, a node and a session in a fresh directory while the block runs."""
    from benchmarks.spark_sources import TimedSource, TupleSource  # noqa: PLC0415 - the extra may be missing
    from jetstream.spark.session import end_spark, spark_session  # noqa: PLC0415 - as above
    from jetstream.spark.source import JetstreamDataSource  # noqa: PLC0415 - as above

    os.environ["PYTHONPATH"] = os.pathsep.join((str(REPOSITORY), *filter(None, sys.path)))
    os.environ[TIMES_VARIABLE] = str(directory / "times")
    with nats_server(directory / "nats") as (address, nats_pid), node(directory / "node", address) as pid:
        session = spark_session(
            MASTER,
            "benchmarks",
            {
                "spark.driver.memory": DRIVER_MEMORY,
                "spark.sql.shuffle.partitions": str(PARTITIONS),
                "spark.sql.warehouse.dir": str(directory / "warehouse"),
                "spark.local.dir": str(directory / "local"),
                **settings,
            },
        )
        try:
            for source in (JetstreamDataSource, TupleSource, TimedSource):
                session.dataSource.register(source)
            (directory / "written").mkdir()
            times = directory / "times"
            yield SparkScene(
                spark=session,
                address=address,
                sockets=node_socket(address),
                node_pid=pid,
                nats_pid=nats_pid,
                directory=directory / "written",
                times=times,
            )
        finally:
            end_spark(session)


def filled(scene: SparkScene, stream: str, rows: int, size_bytes: int) -> StoredRows:
    """Create a stream of large batches: ``rows`` random values of ``size_bytes`` each.

    Raises:
        FillError: not all of it is stored.
    """
    chance = np.random.default_rng(0)
    with jetstream.connect_blocking(scene.address.url) as client:
        client.streams.create(stream, stream)
        for start in range(0, rows, PIECE_ROWS):
            count = min(PIECE_ROWS, rows - start)
            client.publish_batch(stream, values_table(count, size_bytes, chance))
        stored = client.streams.info(stream).high_watermark
    if stored != rows:
        raise FillError(f"{rows} published to {stream}, {stored} stored")
    tell(f"{stream}: {rows:,} values of {size_bytes} B")
    return StoredRows(stream, rows, rows * size_bytes)


def values_table(rows: int, size_bytes: int, chance: np.random.Generator) -> pa.Table:
    """Return random values, as a table that can be published."""
    values = pa.Array.from_buffers(
        pa.binary(size_bytes), rows, [None, pa.py_buffer(chance.bytes(rows * size_bytes))]
    )
    return pa.table({"value": values.cast(pa.binary())})


def filled_singly(scene: SparkScene, stream: str, rows: int, sizes_bytes: Sequence[int]) -> StoredRows:
    """Create a stream in which each record is a batch of its own; their sizes alternate.

    Every other record comes in an envelope: those of envelopes share no batch with those of plain messages.

    Raises:
        FillError: not all of it is stored.
    """
    chance = np.random.default_rng(0)
    sizes = list(islice(cycle(sizes_bytes), rows))
    payloads = {size: (chance.bytes(size), _envelope_of_one(size)) for size in sizes_bytes}
    messages = ((stream, payloads[size][number % 2]) for number, size in enumerate(sizes))
    with jetstream.connect_blocking(scene.address.url) as client:
        client.streams.create(stream, stream, rewrite_after=0)
        client.publish_all(messages)
        stored = client.streams.info(stream).high_watermark
    if stored != rows:
        raise FillError(f"{rows} published to {stream}, {stored} stored")
    tell(f"{stream}: {stored:,} values of {' and '.join(map(str, sizes_bytes))} B, each a batch")
    return StoredRows(stream, stored, sum(sizes))


def _envelope_of_one(size_bytes: int) -> bytes:
    rows = values_table(1, size_bytes, np.random.default_rng(0))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return encode_batch(sink.getvalue().to_pybytes(), 1)
