"""docs/internals/invariants.md, made from the code: ``python -m tests.tidy.invariants_page`` writes it.

A docstring states invariants under a line that begins with ``Invariant`` and ends with a colon: an id such as
``L1:``, unique within its package, and the sentence. The last sentence may be ``Held by`` and names of tests.
"""

import ast
import inspect
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from tests.tidy.source_tree import ROOT, Module, modules

PAGE: Final = ROOT / "docs" / "internals" / "invariants.md"
ID: Final = re.compile(r"(?<![\w`-])(?P<id>[A-Z]{1,3}[1-9]\d?):(?=\s)")

_HEAD: Final = """\
<!-- generated from docstrings and assertions by python -m tests.tidy.invariants_page -->
# Invariants

What always holds inside a running node, by package; where it is asserted, or which test holds it where no
assertion can. An id is unique within its package. A broken invariant is a bug of ours, so it is an `assert`:
the process stops rather than go on with state that contradicts itself. What comes from disk, wire or user is
never asserted but checked, and raises an [error](../errors.md).
"""
_SECTION: Final = re.compile(r"^Invariants?\b.*:\n((?:    .*\n|\n)+)", re.MULTILINE)
_ENTRY: Final = re.compile(r"^    (?P<id>[A-Z]{1,3}\d+): (?P<text>.+(?:\n     +.+)*)", re.MULTILINE)
_HELD_BY: Final = re.compile(r" Held by (?P<tests>[\w., ]+)\.$")


@dataclass(slots=True)
class Invariant:
    """One line of the page: what a docstring states, and who sees to it."""

    package: str
    id: str
    text: str
    owner: str
    tests: tuple[str, ...]
    asserted: set[str] = field(default_factory=set)
    """Paths of modules."""


def package_of(module: Module) -> str:
    """Return the folder below `jetstream` or `metadata`; another package has one set of ids."""
    folders = module.path.split("/")[:-1]
    return "/".join(folders[:2] if folders[0] in ("jetstream", "metadata") else folders[:1])


def product() -> Iterator[Module]:
    """Yield the modules that may state or assert an invariant."""
    return (one for one in modules() if one.inside("envelope", "metadata", "consumer_groups", "jetstream"))


def stated() -> list[Invariant]:
    """Return all invariants in the order of the modules, with the modules that assert them."""
    invariants = [one for module in product() for one in _stated_in(module)]
    asserted: dict[tuple[str, str], set[str]] = defaultdict(set)
    for module in product():
        for name in _asserted_in(module):
            asserted[package_of(module), name].add(module.path)
    for one in invariants:
        one.asserted = asserted[one.package, one.id]
    return invariants


def _stated_in(module: Module) -> Iterator[Invariant]:
    for node in module.nodes:
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            continue
        for section in _SECTION.findall(f"{ast.get_docstring(node) or ''}\n"):
            for entry in _ENTRY.finditer(section):
                text = " ".join(entry["text"].split())
                held_by = _HELD_BY.search(text)
                yield Invariant(
                    package=package_of(module),
                    id=entry["id"],
                    text=_HELD_BY.sub("", text).removesuffix(".").replace("``", "`"),
                    owner=getattr(node, "name", module.path.rsplit("/", 1)[-1]),
                    tests=tuple(held_by["tests"].split(", ")) if held_by is not None else (),
                )


def _asserted_in(module: Module) -> set[str]:
    """Return the ids in messages: of asserts, and of what is asserted to have no problems."""
    prose = {node.value for node in module.nodes if isinstance(node, ast.Expr)}
    texts = (node.value for node in _texts(module) if node not in prose)
    return {match["id"] for text in texts if (match := ID.match(str(text)))}


def named() -> set[tuple[str, str]]:
    """Return package and id of every invariant that a string or a comment names."""
    return {
        (package_of(module), match["id"])
        for module in product()
        for text in (*(node.value for node in _texts(module)), *(one.text for one in module.comments))
        for match in ID.finditer(str(text))
    }


def _texts(module: Module) -> Iterator[ast.Constant]:
    return (node for node in module.nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


def tests_by_name() -> dict[str, set[str]]:
    """Return where each test, and each module of tests, is."""
    places: dict[str, set[str]] = defaultdict(set)
    for module in modules():
        if module.inside("tests"):
            places[module.path.rsplit("/", 1)[-1]].add(module.path)
            for name in re.findall(r"def (test_\w+)", module.text):
                places[name].add(f"{module.path}::{name}")
    return places


def render() -> str:
    """Return the page."""
    by_package: dict[str, list[Invariant]] = defaultdict(list)
    for one in stated():
        by_package[one.package].append(one)
    tests, lines = tests_by_name(), [_HEAD]
    for package, invariants in sorted(by_package.items()):
        init = (ROOT / package / "__init__.py").read_text()
        about = inspect.cleandoc(ast.get_docstring(ast.parse(init)) or "").split("\n\n")[0]
        lines += [f"## {package}\n", f"{about}\n"]
        lines += ["| id | invariant | stated by | asserted in, or held by |", "|---|---|---|---|"]
        for one in sorted(invariants, key=_place):
            held = [place for name in one.tests for place in sorted(tests[name])]
            where = ", ".join(f"`{place}`" for place in (*sorted(one.asserted), *held))
            lines.append(f"| {one.id} | {one.text} | `{one.owner}` | {where} |")
        lines.append("")
    return "\n".join(lines)


def _place(one: Invariant) -> tuple[str, int]:
    return one.id.rstrip("0123456789"), int(one.id.lstrip("ABCDEFGHIJKLMNOPQRSTUVWXYZ"))


if __name__ == "__main__":
    PAGE.write_text(render())
