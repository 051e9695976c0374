"""docs/internals/invariants.md lists every invariant, where it is asserted and what tests it; and no other.

An invariant is an id such as ``L1:`` in a docstring, a comment or an assert's message, unique within its
package. The test compares, per package and id, the set of modules that name it with the page's tables.
"""

import ast
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from tests.tidy.source_tree import ROOT, Module, modules

_PAGE = ROOT / "docs" / "internals" / "invariants.md"
_ID = re.compile(r"(?<![\w`-])(?P<id>[A-Z]{1,3}[1-9]\d?):(?=\s)")
_ROW = re.compile(r"\|\s*(?P<id>[A-Z]{1,3}\d+)\s*\|(?P<text>[^|]+)\|(?P<places>[^|]+)\|(?P<tests>[^|]+)\|")
_CODE = re.compile(r"`([^`]+)`")

Key = tuple[str, str]
"""Package and id."""


def _package(path: str) -> str:
    """The folder below `jetstream` or `metadata`; another package has one set of ids."""
    folders = path.split("/")[:-1]
    return "/".join(folders[:2] if folders[0] in ("jetstream", "metadata") else folders[:1])


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the page's table."""

    id: str
    text: str
    places: frozenset[str]
    tests: tuple[str, ...]

    @property
    def key(self) -> Key:
        """The id with its package; the places of one row lie in one."""
        packages = {_package(place) for place in self.places}
        assert len(packages) == 1, f"{self.id} lies in {sorted(packages)}: one row for each package"
        return packages.pop(), self.id


def _rows() -> list[Row]:
    lines = _PAGE.read_text().splitlines()
    matches = [match for line in lines if (match := _ROW.match(line))]
    return [
        Row(
            m["id"],
            m["text"].strip(),
            frozenset(_CODE.findall(m["places"])),
            tuple(_CODE.findall(m["tests"])),
        )
        for m in matches
    ]


def _ids(module: Module) -> set[str]:
    """Ids in the strings and comments of a module."""
    if not _ID.search(module.text):
        return set()
    texts = [comment.text for comment in module.comments]
    texts += [n.value for n in module.nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    return {match["id"] for text in texts for match in _ID.finditer(text)}


def _places() -> dict[Key, frozenset[str]]:
    places: dict[Key, set[str]] = defaultdict(set)
    for module in modules():
        if module.inside("envelope", "metadata", "consumer_groups", "jetstream"):
            for found in _ids(module):
                places[_package(module.path), found].add(module.path)
    return {key: frozenset(paths) for key, paths in places.items()}


def test_every_invariant_is_listed_where_it_is_asserted() -> None:
    listed, in_code = {row.key: row.places for row in _rows()}, _places()
    problems = [f"{key}: not on the page" for key in in_code if key not in listed]
    problems += [f"{key}: on the page, not in the code" for key in listed if key not in in_code]
    problems += [
        f"{key}: the page says {sorted(listed[key])}, the code {sorted(places)}"
        for key, places in in_code.items()
        if key in listed and listed[key] != places
    ]
    assert not problems, "\n".join(sorted(problems))


def test_every_invariant_has_one_row_a_text_and_a_test() -> None:
    rows = _rows()
    assert rows, "the table was not read"
    keys = [row.key for row in rows]
    assert len(keys) == len(set(keys)), "an id stands twice"
    for row in rows:
        assert row.text, row
        assert row.tests, f"{row.id} names no test"


def test_the_tests_that_invariants_name_exist() -> None:
    for row in _rows():
        for test in row.tests:
            path, _, name = test.partition("::")
            assert (ROOT / path).exists(), f"{row.id}: {path} does not exist"
            if name:
                assert re.search(rf"\b{re.escape(name)}\b", Path(ROOT / path).read_text()), (
                    f"{row.id}: no {test}"
                )
