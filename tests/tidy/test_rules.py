"""Every house rule holds in the whole tree, and every rule bites."""

import functools
import tomllib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.tidy import rules
from tests.tidy.rules import RULES, Rule
from tests.tidy.source_tree import Finding, Module, modules

_ALLOWANCES = Path(__file__).with_name("allowances.toml")


@dataclass(frozen=True, slots=True)
class Allowance:
    """An excused place."""

    rule: str
    path: str
    symbol: str
    reason: str

    def covers(self, finding: Finding) -> bool:
        return (self.rule, self.path, self.symbol) == (finding.rule, finding.path, finding.symbol)


def _allowances() -> list[Allowance]:
    return [Allowance(**row) for row in tomllib.loads(_ALLOWANCES.read_text())["allowance"]]


@functools.cache
def _findings(rule: Rule) -> list[Finding]:
    return [finding for module in modules() for finding in rule(module)]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_whole_tree_keeps_the_rule(rule: Rule) -> None:
    allowances = _allowances()
    broken = [str(f) for f in _findings(rule) if not any(a.covers(f) for a in allowances)]
    assert not broken, "\n".join(broken)


def test_every_allowance_is_needed_and_explained() -> None:
    found = [finding for rule in RULES for finding in _findings(rule)]
    for allowance in _allowances():
        assert any(allowance.covers(finding) for finding in found), f"no longer needed: {allowance}"
        assert len(allowance.reason.split()) >= 3, f"needs a reason: {allowance}"


def test_every_rule_has_a_name_that_an_allowance_can_use() -> None:
    names = {rule.__name__ for rule in RULES}
    assert len(names) == len(RULES)
    assert {allowance.rule for allowance in _allowances()} <= names


_LONG_FUNCTION = "def long() -> None:\n" + "    call()\n" * 70
_FAT_CLASS = "class Fat:\n" + "".join(f"    def m{i}(self) -> None: ...\n" for i in range(21))
_VIOLATIONS: list[tuple[Rule, str, str]] = [
    (rules.short_functions, "jetstream/log/a.py", _LONG_FUNCTION),
    (rules.short_modules, "jetstream/log/a.py", "x = 1\n" * 501),
    (rules.few_parameters, "jetstream/log/a.py", "def f(a, b, c, d, *, e, f, g, h): ...\n"),
    (rules.few_positional_arguments, "jetstream/log/a.py", "Record(1, 2, 3, 4, 5, 6)\n"),
    (rules.few_methods, "jetstream/log/a.py", _FAT_CLASS),
    (rules.pure_folders, "jetstream/fetch/a.py", "async def f() -> None: ...\n"),
    (rules.pure_folders, "jetstream/fetch/a.py", "import os.path\n"),
    (rules.pure_folders, "metadata/catalog/a.py", "from time import time\n"),
    (rules.pure_folders, "envelope/a.py", "handle = open('file')\n"),
    (rules.narrow_excepts, "jetstream/node/a.py", "try: ...\nexcept Exception: ...\n"),
    (rules.narrow_excepts, "jetstream/node/a.py", "try: ...\nexcept (ValueError, BaseException): ...\n"),
    (rules.narrow_excepts, "jetstream/node/a.py", "try: ...\nexcept: ...\n"),
    (rules.narrow_excepts, "jetstream/node/a.py", "with contextlib.suppress(Exception): ...\n"),
    (rules.owned_tasks, "jetstream/node/a.py", "async def f():\n    asyncio.create_task(g())\n"),
    (rules.owned_tasks, "jetstream/node/a.py", "asyncio.ensure_future(g())\n"),
    (rules.owned_tasks, "jetstream/node/a.py", "asyncio.get_running_loop().create_task(g())\n"),
    (rules.no_locks, "jetstream/node/a.py", "lock = threading.Lock()\n"),
    (rules.no_locks, "metadata/node/a.py", "from asyncio import Lock\nlock = Lock()\n"),
    (rules.no_prints, "jetstream/node/a.py", "print('here')\n"),
    (rules.no_timed_sleeps, "tests/unit/a.py", "await asyncio.sleep(0.1)\n"),
    (rules.no_timed_sleeps, "tests/unit/a.py", "from time import sleep\nsleep(delay)\n"),
    (rules.no_mocks, "tests/unit/a.py", "from unittest.mock import patch\n"),
    (rules.no_mocks, "tests/unit/a.py", "from unittest import mock\n"),
    (rules.numbered_leftovers, "jetstream/node/a.py", "# TO" + "DO: later\n"),
    (rules.numbered_leftovers, "jetstream/node/a.py", "# FIX" + "ME(soon)\n"),
    (rules.explained_suppressions, "jetstream/node/a.py", "x = 1  # no" + "qa: S101\n"),
    (rules.explained_suppressions, "jetstream/node/a.py", "x = 1  # no" + "qa - it is what it is\n"),
    (rules.explained_suppressions, "jetstream/node/a.py", "x = 1  # type: " + "ignore[attr-defined]\n"),
    (rules.telling_module_names, "jetstream/node/utils.py", ""),
    (rules.telling_module_names, "jetstream/common/offsets.py", ""),
    (rules.sentence_names, "tests/unit/a.py", "def test_client_2(): ...\n"),
    (rules.sentence_names, "tests/unit/a.py", "def test_append(): ...\n"),
    (rules.tests_apart, "tests/unit/a.py", "from tests.unit.log.test_log import opened\n"),
    (rules.tests_apart, "tests/unit/a.py", "from tests.unit.log import test_log\n"),
    (rules.tests_apart, "tests/spark/a.py", "import tests.unit.log.test_log as log\n"),
    (rules.slow_tests_have_a_stand_in, "tests/unit/a.py", "@pytest.mark.slow\ndef test_a(): ...\n"),
    (rules.slow_tests_have_a_stand_in, "tests/unit/a.py", "@pytest.mark.slow()\ndef test_a(): ...\n"),
    (rules.slow_tests_have_a_stand_in, "tests/unit/a.py", "pytest.mark.slow('tests/tidy/test_none.py')\n"),
    (
        rules.slow_tests_have_a_stand_in,
        "tests/unit/a.py",
        "pytest.mark.slow('tests/crash/test_bit_flips.py::test_a_flip_of_any_bit_is_found')\n",
    ),
    (rules.registered_errors, "jetstream/node/a.py", "class Odd(StorageError, err_code='odd'): ...\n"),
]


@pytest.mark.parametrize(
    ("rule", "path", "text"), _VIOLATIONS, ids=[f"{v[0].__name__}-{n}" for n, v in enumerate(_VIOLATIONS)]
)
def test_a_deliberate_violation_is_found(rule: Rule, path: str, text: str) -> None:
    assert list(rule(Module(path, text)))


def test_every_rule_has_a_deliberate_violation() -> None:
    assert {rule for rule, _, _ in _VIOLATIONS} == set(RULES)


_FINE: list[tuple[Rule, str, str]] = [
    (rules.few_parameters, "jetstream/log/a.py", "def f(a, b, c, d, *, e, f, g): ...\n"),
    (rules.few_positional_arguments, "jetstream/log/a.py", "Record(1, 2, 3, 4, 5, next=6)\n"),
    (rules.few_positional_arguments, "jetstream/log/a.py", "struct.pack('<5H', 1, 2, 3, 4, 5)\n"),
    (rules.pure_folders, "jetstream/log/a.py", "import os\n"),
    (rules.narrow_excepts, "jetstream/node/a.py", "try: ...\nexcept (ValueError, OSError): ...\n"),
    (
        rules.owned_tasks,
        "jetstream/node/a.py",
        "async def f():\n    async with asyncio.TaskGroup() as tasks:\n        tasks.create_task(g())\n",
    ),
    (
        rules.owned_tasks,
        "jetstream/node/a.py",
        "def f(tasks: asyncio.TaskGroup):\n    tasks.create_task(g())\n",
    ),
    (rules.no_prints, "jetstream/cli/a.py", "print('here')\n"),
    (rules.no_timed_sleeps, "tests/unit/a.py", "await asyncio.sleep(0)\n"),
    (rules.no_timed_sleeps, "tests/support/pauses.py", "await asyncio.sleep(0.1)\n"),
    (rules.no_timed_sleeps, "jetstream/node/a.py", "await asyncio.sleep(0.1)\n"),
    (rules.tests_apart, "tests/unit/a.py", "from tests.support.logs import opened\n"),
    (rules.slow_tests_have_a_stand_in, "tests/unit/a.py", "pytest.mark.slow('tests/tidy/test_rules.py')\n"),
    (rules.numbered_leftovers, "jetstream/node/a.py", "# TO" + "DO(#12): later\n"),
    (rules.explained_suppressions, "jetstream/node/a.py", "x = 1  # no" + "qa: S101 - loopback only\n"),
    (rules.explained_suppressions, "jetstream/a.py", "# Loopback only.\nx = 1  # no" + "qa: S101\n"),
    (rules.explained_suppressions, "a.py", "x = 1  # type: " + "ignore[arg-type]  # checked by pydantic\n"),
]


@pytest.mark.parametrize(
    ("rule", "path", "text"), _FINE, ids=[f"{f[0].__name__}-{n}" for n, f in enumerate(_FINE)]
)
def test_what_a_rule_permits_is_not_found(rule: Rule, path: str, text: str) -> None:
    assert not list(rule(Module(path, text)))


_PRODUCT = ("jetstream", "envelope", "metadata", "consumer_groups", "pyspark_jetstream")
_FOLDER_MODULES_MAX = 15


def _crowded(paths: Iterable[str]) -> list[str]:
    inside = [Path(path) for path in paths if path.startswith(_PRODUCT) and Path(path).name != "__init__.py"]
    counts = Counter(path.parent.as_posix() for path in inside)
    return [f"{folder}: {count} modules" for folder, count in counts.items() if count > _FOLDER_MODULES_MAX]


def test_no_folder_of_the_product_has_more_than_fifteen_modules() -> None:
    assert not _crowded(module.path for module in modules())


def test_a_folder_of_sixteen_modules_is_found() -> None:
    folder = ["metadata/a/__init__.py", *(f"metadata/a/m{number}.py" for number in range(15))]
    assert not _crowded(folder)
    assert _crowded([*folder, "metadata/a/more.py"]) == ["metadata/a: 16 modules"]
