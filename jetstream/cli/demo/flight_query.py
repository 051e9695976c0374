"""A query on the log's own files with nothing but pyarrow: sealed segments are Arrow IPC streams.

Nothing in here knows our formats: this is what any program in any language with an Arrow library can do.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

END_OF_STREAM: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""Arrow IPC's end-of-stream marker: only a sealed segment ends with it."""


@dataclass(frozen=True, slots=True)
class AirportFlights:
    """The result of the query: records read, and flights by airport, most first."""

    records: int
    departures: tuple[tuple[str, int], ...]
    arrivals: tuple[tuple[str, int], ...]


def sealed_segments(directory: Path) -> list[Path]:
    """Return the sealed segment files anywhere below ``directory``, in order of their base offset."""
    return [path for path in sorted(directory.rglob("*.arrows")) if _is_sealed(path)]


def flights_per_airport(segments: Sequence[Path]) -> AirportFlights:
    """Count flights by airport of departure and of arrival from the subjects alone (``flights.JFK.LAX``)."""
    departures: Counter[str] = Counter()
    arrivals: Counter[str] = Counter()
    for path in segments:
        with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as reader:
            subjects = reader.read_all().select(["subject"])
            routes = subjects.group_by("subject").aggregate([([], "count_all")])
            for route, count in zip(*routes.to_pydict().values(), strict=True):
                _, origin, destination = route.split(".")
                departures[origin] += count
                arrivals[destination] += count
    return AirportFlights(departures.total(), tuple(departures.most_common()), tuple(arrivals.most_common()))


def _is_sealed(path: Path) -> bool:
    if path.stat().st_size < len(END_OF_STREAM):
        return False
    with path.open("rb") as file:
        file.seek(-len(END_OF_STREAM), 2)
        return file.read() == END_OF_STREAM
