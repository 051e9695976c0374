"""docs/spark.md lists exactly the options that are declared, each with its default and its scope."""

import re
from dataclasses import MISSING, fields
from typing import Any, Final

import pytest

from jetstream.spark.options.access import ClusterAccess
from jetstream.spark.options.sink_options import SinkOptions
from jetstream.spark.options.source_options import SourceOptions
from tests.support.commands import REPOSITORY

PAGE: Final = (REPOSITORY / "docs" / "spark.md").read_text()
HEADINGS: Final = {
    ClusterAccess: ("### The cluster",),
    SourceOptions: (
        *("### Tickets", "### What is read", "### Where it begins and ends", "### How much"),
        "### When something is slow or gone",
    ),
    SinkOptions: ("### Options of the sink",),
}


def documented(options: type) -> dict[str, dict[str, str]]:
    """Return the cells of each option in the tables below the headings, by their columns' titles."""
    found: dict[str, dict[str, str]] = {}
    for heading in HEADINGS[options]:
        section = re.split(r"\n#+ ", PAGE.split(f"\n{heading}\n")[1])[0]
        lines = [re.split(r" *\| ?", line.strip("|\n")) for line in section.splitlines() if line[:1] == "|"]
        titles = [title.strip() for title in lines[0]]
        for cells in lines[2:]:
            names = re.findall(r"`([\w.]+)`", cells[0])
            defaults = (
                cells[1].split(", ") if len(names) == cells[1].count(", ") + 1 else [cells[1]] * len(names)
            )
            for name, default in zip(names, defaults, strict=True):
                found[name] = dict(zip(titles, map(str.strip, cells), strict=False)) | {
                    "text": default.strip()
                }
    return found


def declared(options: type) -> dict[str, Any]:
    return {name: each for each in fields(options) for name in each.metadata.get("parsers", {})}


def test_every_way_to_the_cluster_is_listed() -> None:
    assert set(documented(ClusterAccess)) == set(ClusterAccess.option_names())


@pytest.mark.parametrize("options", [SourceOptions, SinkOptions])
def test_the_tables_list_the_options_with_their_defaults_and_scopes(options: type) -> None:
    tables, fields_of_names = documented(options), declared(options)
    assert set(tables) == set(fields_of_names)
    for name, each in fields_of_names.items():
        cells = tables[name]
        assert cells.get("in", each.metadata["scope"]) == each.metadata["scope"], name
        if "default" in cells and each.default not in (None, MISSING):
            shown = re.match(r"`?([^`\s]*)", cells["text"])
            assert shown is not None
            if shown[1]:
                assert each.metadata["parsers"][name](name, shown[1]) == each.default, name
        elif "default" in cells:
            assert not cells["text"].startswith(("`", "0", "1")), f"{name} has no default"
