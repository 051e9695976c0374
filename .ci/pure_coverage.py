"""Print the branch coverage of the pure packages by their unit and property tests; fail below the limit.

Which packages are pure is what the import contract says (pyproject.toml).
"""

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONTRACT = "pure packages do no I/O, read no clock, draw no chance, write no log"
PERCENT_MIN = 95
TESTS = tuple(sys.argv[1:]) or ("tests/unit", "tests/property")


def pure_files() -> list[str]:
    """Return the pure modules and packages as patterns of files."""
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    [contract] = [contract for contract in linter["contracts"] if contract["name"] == CONTRACT]
    paths = [ROOT / module.replace(".", "/") for module in contract["source_modules"]]
    return [f"{path}/**" if path.is_dir() else f"{path}.py" for path in paths]


def main() -> int:
    """Run the tests in two processes, each of which counts; return the exit code."""
    coverage = [sys.executable, "-m", "coverage"]
    pytest = ["-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", *TESTS]
    steps = (
        ["erase"],
        ["run", "--parallel-mode", "--branch", f"--include={','.join(pure_files())}", *pytest],
        ["combine", "--quiet"],
        ["report", "--skip-covered", f"--fail-under={PERCENT_MIN}"],
    )
    for step in steps:
        code = subprocess.run([*coverage, *step], cwd=ROOT, check=False).returncode  # noqa: S603 - our own words
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
