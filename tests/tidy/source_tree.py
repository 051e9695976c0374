"""The project's own files, parsed once: what every house rule is checked against."""

import ast
import functools
import gc
import io
import tokenize
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = ("envelope", "metadata", "consumer_groups", "jetstream", "pyspark_jetstream")
CODE_FOLDERS: Final = (*PACKAGES, "tests", "benchmarks", "examples", ".ci")
_PURITY_CONTRACT: Final = "pure packages do no I/O, read no clock, draw no chance, write no log"


@dataclass(frozen=True, slots=True)
class Finding:
    """One place that breaks a rule; ``symbol`` is what an allowance names."""

    rule: str
    path: str
    line: int
    symbol: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text} [{self.rule}: {self.symbol}]"


@dataclass(frozen=True, slots=True)
class Comment:
    """One ``#`` comment."""

    line: int
    text: str


@dataclass(frozen=True)
class Module:
    """One Python file; ``path`` is relative to the root, with slashes."""

    path: str
    text: str

    @functools.cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @functools.cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        return tuple(ast.walk(self.tree))

    @functools.cached_property
    def comments(self) -> tuple[Comment, ...]:
        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        return tuple(Comment(t.start[0], t.string) for t in tokens if t.type == tokenize.COMMENT)

    @functools.cached_property
    def symbols(self) -> dict[int, str]:
        """The innermost function or class around each line, dotted; ``<module>`` outside of any."""
        named: dict[int, str] = {}
        _name_lines(self.tree, "", named)
        return named

    @property
    def folder(self) -> str:
        return self.path.split("/", 1)[0]

    def inside(self, *places: str) -> bool:
        """Tell whether this is one of the modules, or in one of the folders, without suffix."""
        return any(self.path.startswith((f"{place}/", f"{place}.py")) for place in places)

    def finding(self, rule: str, line: int, text: str) -> Finding:
        return Finding(rule, self.path, line, self.symbols.get(line, "<module>"), text)


def _name_lines(node: ast.AST, prefix: str, named: dict[int, str]) -> None:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{prefix}{child.name}"
            named.update(dict.fromkeys(range(child.lineno, (child.end_lineno or child.lineno) + 1), name))
            _name_lines(child, f"{name}.", named)
        else:
            _name_lines(child, prefix, named)


@functools.cache
def modules() -> tuple[Module, ...]:
    """Return every Python file of the project, parsed."""
    paths = sorted(path for folder in CODE_FOLDERS for path in (ROOT / folder).rglob("*.py"))
    found = tuple(Module(path.relative_to(ROOT).as_posix(), path.read_text()) for path in paths)
    # Millions of nodes that stay: looking again and again for those that could go takes longer than parsing.
    gc.disable()
    try:
        for module in found:
            _ = module.tree, module.nodes
        gc.freeze()
    finally:
        gc.enable()
    return found


@functools.cache
def module_at(path: str) -> Module | None:
    """Return the Python file at ``path``, if it is one of the project's."""
    return {module.path: module for module in modules()}.get(path)


@functools.cache
def documents() -> tuple[Path, ...]:
    """Return every Markdown page of the project."""
    inside = [path for folder in ("docs", "deploy", *CODE_FOLDERS) for path in (ROOT / folder).rglob("*.md")]
    return tuple(sorted([*ROOT.glob("*.md"), *inside]))


@functools.cache
def pyproject() -> dict[str, object]:
    """Return pyproject.toml, parsed."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def table(*keys: str) -> dict[str, object]:
    """Return the table at ``keys`` of pyproject.toml."""
    found: object = pyproject()
    for key in keys:
        assert isinstance(found, dict), f"pyproject.toml has no table {'.'.join(keys)}"
        found = found[key]
    assert isinstance(found, dict), f"pyproject.toml has no table {'.'.join(keys)}"
    return found


@dataclass(frozen=True, slots=True)
class PurityContract:
    """Which folders and modules are pure, and what that forbids: the import contract is the one source."""

    folders: tuple[str, ...]
    forbidden: frozenset[str]


@functools.cache
def purity() -> PurityContract:
    """Read the purity contract from pyproject.toml."""
    contracts = table("tool", "importlinter")["contracts"]
    assert isinstance(contracts, list)
    contract = next(c for c in contracts if c["name"] == _PURITY_CONTRACT)
    folders = tuple(str(module).replace(".", "/") for module in contract["source_modules"])
    return PurityContract(folders, frozenset(contract["forbidden_modules"]))
