"""The program ``jetstream``, also ``python -m jetstream``."""

import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

_COLLECT_AFTER_OBJECTS: Final = 50_000
_BAD_USAGE: Final = 2
_INTERRUPTED: Final = 130


class WithoutPandas:
    """Has pandas not found in this process.

    pyarrow imports pandas, where it is installed, at the first array that it makes: a third of a second and
    40 MB for every command and every node, none of which uses it but pipelines.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        """Raise ModuleNotFoundError for pandas; leave the rest to others."""
        if fullname == "pandas":
            raise ModuleNotFoundError("the program does not use pandas", name=fullname)
        return None


def main() -> None:
    """Run the command line; refuse to run without assertions, which guard the data."""
    if not __debug__:
        raise SystemExit("jetstream does not run under python -O: its assertions guard the data")
    try:
        _run()
    except KeyboardInterrupt:  # before a command was there to take it
        raise SystemExit(_INTERRUPTED) from None


def _run() -> None:
    _open_standard_files()
    for number, argument in enumerate(sys.argv[1:], 1):
        if not _is_utf8(argument):
            sys.stderr.write(f"error: argument {number} is not UTF-8: {argument!a}\n")
            raise SystemExit(_BAD_USAGE)
    if sys.argv[1:2] != ["pipeline"]:  # Spark wants it
        sys.meta_path.insert(0, WithoutPandas())
    gc.set_threshold(_COLLECT_AFTER_OBJECTS)  # a start makes many objects and no cycles
    import_module("jetstream.cli.main").app(prog_name="jetstream")


def _open_standard_files() -> None:
    """Open what the parent has closed of standard input, output and error, on the null device.

    The next file or socket would get its number: what is printed would go into a segment, and libuv ends a
    process that closes a socket with such a number.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def _is_utf8(argument: str) -> bool:
    try:
        argument.encode()
    except UnicodeEncodeError:  # the interpreter has put surrogates for bytes that are none
        return False
    return True


if __name__ == "__main__":
    main()
