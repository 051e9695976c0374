"""Batch envelopes: 128-byte records acked and fsynced on one node, beside what nats-server carries alone.

The same bytes in messages of the same size through nats-server without a store ("bare request-reply") are the
limit: no system behind it can take more. What it takes to read an envelope is measured in this process.
"""

from time import process_time_ns
from typing import Final

import pyarrow as pa

from benchmarks.loadgen import Load
from benchmarks.measurement import Case, interleaved
from benchmarks.report import MIB, Bar, Report, Row, Settings, new_report, rows_of
from benchmarks.systems import BARE, OURS_ALWAYS, OURS_OS, Laboratory
from envelope.envelopes import decode, encode_batch, encode_message

RECORD_BYTES: Final = 128
RECORDS: Final = {"8 KiB": 60, "64 KiB": 490, "512 KiB": 3_960}
"""How many of them fill an envelope of that size."""

IN_FLIGHT_BYTES: Final = 16 * MIB
DECODES: Final = 20_000
SYSTEMS: Final = (OURS_ALWAYS, OURS_OS, BARE)


def run(settings: Settings) -> Report:
    """Publish envelopes of three sizes, 16 MiB in flight over one connection; time the decoding of others."""
    with Laboratory(settings.directory / "systems") as laboratory:
        cases = [
            Case(laboratory.system(name), point, _load(settings, records))
            for point, records in RECORDS.items()
            for name in SYSTEMS
        ]
        measurements = interleaved(cases, settings.runs)
    rows = [_in_records(row) for row in rows_of(cases, measurements)]
    decoding = [_decoding(point, data, settings.runs) for point, data in _messages().items()]
    everything = [*rows, *decoding]
    report = new_report("envelope", settings, everything, rate_unit="records/s", record_bytes=RECORD_BYTES)
    return report.model_copy(update={"bars": _bars(report, decoding)})


def _load(settings: Settings, records: int) -> Load:
    path = settings.directory / f"{records}.envelope"
    if not path.exists():
        path.write_bytes(_envelope(records))
    size = path.stat().st_size
    return Load(
        1,
        IN_FLIGHT_BYTES // size,
        size,
        seconds=settings.seconds,
        warmup_seconds=settings.warmup_seconds,
        payload=path,
        records=records,
    )


def _envelope(records: int) -> bytes:
    values = [number.to_bytes(8, "little") * (RECORD_BYTES // 8) for number in range(records)]
    batch = pa.record_batch({"value": pa.array(values, pa.binary())})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return encode_batch(sink.getvalue().to_pybytes(), records)


def _in_records(row: Row) -> Row:
    """Return a row whose rate and costs are those of records, not of envelopes."""
    each = RECORDS[row.point]
    details = {
        name.replace("/msg", "/record"): value / each if name.endswith("/msg") else value
        for name, value in row.details.items()
    }
    details["MiB/s of values"] = row.rate * each * RECORD_BYTES / MIB
    rates = {name: getattr(row, name) * each for name in ("rate", "rate_min", "rate_max")}
    return row.model_copy(update={**rates, "details": details})


def _messages() -> dict[str, bytes]:
    value = b"x" * RECORD_BYTES
    return {
        "value": encode_message(value),
        "value, key, id": encode_message(value, key=b"customer-7", message_id=b"order-4711"),
    }


def _decoding(point: str, data: bytes, runs: int) -> Row:
    """Return the time that reading one envelope takes, as a rate; the fastest of several tries each."""
    spent: list[float] = []
    for _ in range(max(3, runs)):
        start = process_time_ns()
        for _ in range(DECODES):
            decode(data)
        spent.append((process_time_ns() - start) / DECODES)
    spent.sort()
    return Row(
        system="decode",
        point=point,
        rate=1e9 / spent[len(spent) // 2],
        rate_min=1e9 / spent[-1],
        rate_max=1e9 / spent[0],
        details={"CPU us/message": spent[len(spent) // 2] / 1e3},
    )


def _bars(report: Report, decoding: list[Row]) -> list[Bar]:
    best = max(report.row(OURS_ALWAYS, point).rate for point in RECORDS)
    bars = [
        Bar(requirement="records/s acked and fsynced, best size", value=best, bar=1.5e6),
        Bar(requirement="the same, goal", value=best, bar=3e6, goal=True),
    ]
    bars += [
        Bar(
            requirement=f"{point}: ours with fsync / bare NATS request-reply, of the same bytes",
            value=report.row(OURS_ALWAYS, point).rate / report.row(BARE, point).rate,
        )
        for point in RECORDS
    ]
    bars += [
        Bar(
            requirement=f"decode, {row.point}: CPU us a message",
            value=row.details["CPU us/message"],
            bar=1.5 if row is decoding[0] else None,
            at_most=True,
        )
        for row in decoding
    ]
    return bars
