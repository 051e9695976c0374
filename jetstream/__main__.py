"""The program ``jetstream``, also ``python -m jetstream``."""

import gc
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

_COLLECT_AFTER_OBJECTS: Final = 50_000


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
    if sys.argv[1:2] != ["pipeline"]:  # Spark wants it
        sys.meta_path.insert(0, WithoutPandas())
    gc.set_threshold(_COLLECT_AFTER_OBJECTS)  # a start makes many objects and no cycles
    import_module("jetstream.cli.main").app(prog_name="jetstream")


if __name__ == "__main__":
    main()
