"""Reading a stream over HTTP with the standard library's client, as any program would."""

import http.client
import io
from typing import Final

import pyarrow as pa

from benchmarks.meter import Meter, Unverified

BUFFER_BYTES: Final = 1 << 20


def read_http_batches(address: str, stream: str, records: int, meter: Meter) -> None:
    """Read an Arrow stream again and again: received, and decoded to columns."""
    meter.begin()
    while True:
        expected = 0
        with _body(address, stream, records, "arrow") as body, pa.ipc.open_stream(body) as batches:
            for batch in batches:
                offsets = batch.column(0)
                first, last = offsets[0].as_py(), offsets[batch.num_rows - 1].as_py()
                if (first, last) != (expected, expected + batch.num_rows - 1):
                    raise Unverified(f"a batch [{first}, {last}] of {batch.num_rows} at offset {expected}")
                expected = last + 1
                if not meter.add(batch.num_rows):
                    return
        if expected != records:
            raise Unverified(f"a pass ended at offset {expected} of {records}")
        if not meter.passed():
            return


def read_http_lines(address: str, stream: str, records: int, meter: Meter) -> None:
    """Read JSON lines again and again: received, and counted."""
    meter.begin()
    while True:
        lines = 0
        with _body(address, stream, records, "ndjson") as body:
            while piece := body.read1(BUFFER_BYTES):
                found = piece.count(b"\n")
                lines += found
                if not meter.add(found):
                    return
        if lines != records:
            raise Unverified(f"a pass had {lines} lines of {records}")
        if not meter.passed():
            return


def _body(address: str, stream: str, records: int, body_format: str) -> io.BufferedReader:
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    connection.request("GET", f"/v1/streams/{stream}/records?from=0&to={records}&format={body_format}")
    response = connection.getresponse()
    if response.status != http.client.OK:
        raise Unverified(f"status {response.status}: {response.read()!r}")
    return io.BufferedReader(response, BUFFER_BYTES)
