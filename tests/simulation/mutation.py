"""Runs the product with one place of its source changed, in this process only.

A mutant is a unique snippet of one module and what stands there instead. The module is compiled from the
changed text when it is imported; no file is written. `install` therefore comes before the first import.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One deliberate bug."""

    name: str
    module: str
    """Dotted."""
    snippet: str
    """Occurs exactly once in the module's source."""
    instead: str
    first: int = 0
    """The seed from which on the test searches: one that finds it, where that takes many."""
    simulator: str = "raft"
    """The command of ``python -m tests.simulation`` that searches."""
    scenario: str | None = None
    """The directed test that finds it where seeds would take too many."""

    @property
    def path(self) -> Path:
        """The module's file."""
        return _ROOT / (self.module.replace(".", "/") + ".py")

    def source(self) -> str:
        """Return the changed source.

        Raises:
            LookupError: the snippet is not there, or not unique: the mutant is to be written anew.
        """
        text = self.path.read_text()
        found = text.count(self.snippet)
        if found != 1:
            raise LookupError(f"mutant {self.name}: its snippet is {found} times in {self.module}")
        return text.replace(self.snippet, self.instead)


def install(mutant: Mutant) -> None:
    """Let ``mutant``'s module be imported changed.

    Raises:
        LookupError: as `Mutant.source`.
    """
    assert mutant.module not in sys.modules, f"{mutant.module} was imported before"
    sys.meta_path.insert(0, _Finder(mutant.module, mutant.source()))


class _Finder(MetaPathFinder):
    def __init__(self, module: str, source: str) -> None:
        self._module, self._source = module, source

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name == self._module else None
        if spec is not None:
            assert spec.origin is not None, f"{name} has no file"
            spec.loader = _Loader(name, spec.origin, self._source)
        return spec


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, source: str) -> None:
        super().__init__(name, path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = compile(self._source, self.path, "exec", dont_inherit=True)
        return code
