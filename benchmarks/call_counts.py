"""What a node that runs as `benchmarks.counted_node` has counted so far, read from outside of its process."""

import operator
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

from benchmarks.compiler import BUILD, compiled

CALLS: Final = "calls"
ALLOCATIONS: Final = "allocations"
SOURCE: Final = Path(__file__).with_name("counters.c")
LIBRARY: Final = BUILD / "counters.so"
_FLAGS: Final = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC")

_NAMED_PARTS: Final = 3
"""Of a module's path."""
_HEAD: Final = struct.Struct("<4Q")
_FUNCTION: Final = struct.Struct("<3Q80s96s")
"""As ``struct function`` of the source."""


def build() -> None:
    """Compile the counters unless they are newer than their source."""
    compiled(SOURCE, LIBRARY, _FLAGS)


def counters_file(directory: Path, pid: int) -> Path:
    """Return where the process of a node counts, whose configuration is in ``directory``."""
    return directory / f"{pid}.counters"


@dataclass(frozen=True, slots=True)
class FunctionCount:
    """How often a function was entered, generators and coroutines each time that they go on."""

    name: str
    """With the end of its module's path, which is the same on every machine."""
    calls: float
    bytecode_bytes: int


@dataclass(frozen=True, slots=True)
class CallCounts:
    """Counters of one process since its start, or between two moments; all of its threads together."""

    python_calls: float
    c_calls: float
    allocations: float
    functions: Mapping[int, FunctionCount]
    """By the address of its code."""

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read what a running node has counted until now."""
        data = file.read_bytes()
        python_calls, c_calls, allocations, lost = _HEAD.unpack_from(data)
        assert not lost, f"{lost} calls of functions for which {file} has no room"
        functions = {
            code: FunctionCount(_place(_text(path), _text(name)), calls, bytecode_bytes)
            for code, calls, bytecode_bytes, path, name in _FUNCTION.iter_unpack(data[_HEAD.size :])
            if code
        }
        return cls(python_calls, c_calls, allocations, functions)

    def since(self, before: Self) -> Self:
        """Return what was counted after ``before``, of the same process."""
        return self._with(before, operator.sub)

    def without(self, idle: Self, share: float) -> Self:
        """Return what is left without ``share`` times what was counted while there was nothing to do."""
        return self._with(idle, lambda mine, other: mine - share * other)

    def run_each_time(self, groups: int) -> list[FunctionCount]:
        """Return the functions that ran in every other group at least."""
        return [function for function in self.functions.values() if 2 * function.calls >= groups]

    def calls_of(self, names: frozenset[str]) -> float:
        """Return how often the methods and functions of these qualified names were entered."""
        return sum(one.calls for one in self.functions.values() if one.name.rpartition(":")[2] in names)

    def _with(self, other: Self, fold: Callable[[float, float], float]) -> Self:
        functions = {}
        for code, function in self.functions.items():
            beside = other.functions.get(code)
            calls = fold(function.calls, 0 if beside is None else beside.calls)
            functions[code] = replace(function, calls=calls)
        return type(self)(
            fold(self.python_calls, other.python_calls),
            fold(self.c_calls, other.c_calls),
            fold(self.allocations, other.allocations),
            functions,
        )


def _place(path: str, name: str) -> str:
    return f"{'/'.join(path.split('/')[-_NAMED_PARTS:])}:{name}"


def _text(room: bytes) -> str:
    return room.rstrip(b"\0").decode(errors="replace")
