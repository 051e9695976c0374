from pathlib import Path

import pyarrow as pa

from jetstream.cli.demo.flight_query import END_OF_STREAM, flights_per_airport, sealed_segments

SCHEMA = pa.schema([("subject", pa.string())])


def write_segment(path: Path, subjects: list[str], *, sealed: bool) -> None:
    with path.open("wb") as file:
        writer = pa.ipc.new_stream(file, SCHEMA)
        writer.write_batch(pa.record_batch([pa.array(subjects)], schema=SCHEMA))
        writer.close()
    data = path.read_bytes()
    assert data.endswith(END_OF_STREAM)
    if not sealed:
        path.write_bytes(data.removesuffix(END_OF_STREAM))


def test_only_sealed_segments_are_found_in_order(tmp_path: Path) -> None:
    (tmp_path / "flights@1").mkdir()
    first, second, third, empty = (tmp_path / "flights@1" / f"{n:020}.arrows" for n in (0, 2, 4, 6))
    write_segment(second, ["flights.JFK.LAX"], sealed=True)
    write_segment(first, ["flights.JFK.LAX"], sealed=True)
    write_segment(third, ["flights.JFK.LAX"], sealed=False)
    empty.write_bytes(b"")
    assert sealed_segments(tmp_path) == [first, second]


def test_flights_are_counted_by_airport_over_all_segments_most_first(tmp_path: Path) -> None:
    first, second = tmp_path / "a.arrows", tmp_path / "b.arrows"
    write_segment(first, ["flights.JFK.LAX", "flights.EWR.LAX"], sealed=True)
    write_segment(second, ["flights.EWR.BOS"], sealed=True)
    found = flights_per_airport([first, second])
    assert found.records == 3
    assert found.departures == (("EWR", 2), ("JFK", 1))
    assert found.arrivals == (("LAX", 2), ("BOS", 1))


def test_no_segments_are_no_flights() -> None:
    assert flights_per_airport([]).records == 0
