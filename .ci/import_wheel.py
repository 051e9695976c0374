"""Import every module of the wheel installed in this environment; compare its files with the source.

The wheel is installed without extras: what needs one must say so, and nothing else may.
"""

import importlib
import importlib.util
import pkgutil
import sys
import sysconfig
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

from envelope.errors import UnavailableError

PACKAGES = ("envelope", "metadata", "consumer_groups", "jetstream", "pyspark_jetstream")
SPARK = ("pyspark", "py4j")
NEED_SPARK = ("jetstream.spark.", "pyspark_jetstream")
NEED_OPENTELEMETRY = "jetstream.client.spans"
PLAIN_SPARK_MODULES = (
    "options.access",
    "reading.columns",
    "java",
    "reading.offsets",
    "options.source_options",
    "reading.pieces",
    "reading.planning",
    "requirement",
    "reading.tiling",
)
"""Of `jetstream.spark`: what plans and decides is tested, and can be read, without Spark."""


def module_names(site: Path) -> Iterator[str]:
    """Yield the names of all modules below ``site`` that can be imported without running a program."""
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        assert spec is not None, f"{package} is not installed"
        assert Path(str(spec.origin)).is_relative_to(site), f"{package} comes from {spec.origin}"
        yield package
        for found in pkgutil.walk_packages(spec.submodule_search_locations, f"{package}."):
            if not found.name.endswith("__main__"):
                yield found.name


def imports_without_extras(name: str) -> bool:
    """Import a module; return False if it is one that may need an extra, and lacks just that."""
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name in SPARK and name.startswith(NEED_SPARK):
            return False
        if error.name == "opentelemetry" and name == NEED_OPENTELEMETRY:
            return False
        raise
    return True


def refusal(name: str) -> str:
    """Return what is said to who wants ``name`` of `jetstream.spark` without Spark; empty if it is there."""
    try:
        getattr(importlib.import_module("jetstream.spark"), name)
    except UnavailableError as error:
        return str(error)
    return ""


def missing_files(site: Path, source: Path) -> list[str]:
    """Return files of the packages that the wheel lacks."""
    wanted = [
        path.relative_to(source).as_posix()
        for package in PACKAGES
        for path in (source / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ]
    return [name for name in wanted if not (site / name).is_file()]


def main() -> None:
    """Fail with a message, or say how many modules there are."""
    site = Path(sysconfig.get_path("purelib")).resolve()
    source = Path(__file__).resolve().parents[1]
    missing = missing_files(site, source)
    assert not missing, f"the wheel lacks {missing}"
    names = list(module_names(site))
    imported = [name for name in names if imports_without_extras(name)]
    missed = {f"jetstream.spark.{name}" for name in PLAIN_SPARK_MODULES}.difference(imported)
    assert not missed, f"these need no Spark, and cannot be imported without: {sorted(missed)}"
    refusals = {refusal(name) for name in importlib.import_module("jetstream.spark").__all__}
    assert refusals == {"Spark is not installed: pip install 'jetstream-log[spark]'"}, refusals
    scripts = [entry.name for entry in distribution("jetstream-log").entry_points]
    assert scripts == ["jetstream"], f"the wheel's commands are {scripts}"
    sys.stdout.write(
        f"    {len(imported)} of {len(names)} modules imported from the wheel; the others need extras\n"
    )


if __name__ == "__main__":
    main()
