"""Import every module of the wheel installed in this environment; compare its files with the source."""

import importlib
import pkgutil
import sys
import sysconfig
from importlib.metadata import distribution
from pathlib import Path

PACKAGES = ("envelope", "metadata", "consumer_groups", "jetstream")


def import_all(site: Path) -> int:
    """Import every module below ``site``; return their number."""
    count = 0
    for package in PACKAGES:
        root = importlib.import_module(package)
        assert Path(str(root.__file__)).is_relative_to(site), f"{package} comes from {root.__file__}"
        count += 1
        for found in pkgutil.walk_packages(root.__path__, f"{package}."):
            if not found.name.endswith("__main__"):
                importlib.import_module(found.name)
            count += 1
    return count


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
    count = import_all(site)
    scripts = [entry.name for entry in distribution("jetstream-log").entry_points]
    assert scripts == ["jetstream"], f"the wheel's commands are {scripts}"
    sys.stdout.write(f"    {count} modules imported from the wheel\n")


if __name__ == "__main__":
    main()
