"""Commands whose modules are imported when they are named."""

import json
import subprocess
import sys

import pytest

from jetstream.cli.main import COMMANDS
from jetstream.cli.program.lazy_commands import LazyCommands
from tests.support.commands import REPOSITORY, jetstream

MODULES_OF = """
import json, sys
from jetstream.cli.main import app
try:
    app(sys.argv[1:])
except SystemExit as ended:
    assert ended.code == 0, ended.code
print(json.dumps(sorted(sys.modules)))
"""


def modules_of(*arguments: str) -> set[str]:
    """Return the modules that a process has after a command line."""
    done = subprocess.run(
        [sys.executable, "-c", MODULES_OF, *arguments],
        capture_output=True,
        text=True,
        check=True,
        cwd=REPOSITORY,
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("arguments", [("--version",), ("stream", "ls", "--help")], ids=" ".join)
def test_a_command_imports_what_it_needs_alone(arguments: tuple[str, ...]) -> None:
    modules = modules_of(*arguments)
    assert "jetstream.client.connection" in modules, "and they are looked at"
    assert not modules & {
        "jetstream.node.node",
        "jetstream.cli.demo.command",
        "jetstream.spark.options.source_options",
        "pyspark",
    }


def test_a_command_is_made_once_and_known_by_name_before() -> None:
    commands = LazyCommands({"ls": "tiers:list_store", "lost": "nowhere:nothing"})
    assert list(commands) == ["ls", "lost"]
    assert len(commands) == 2
    assert commands["ls"] is commands["ls"]
    assert commands.get("la") is None
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        commands["lost"]
    commands["la"] = commands["ls"]
    del commands["ls"], commands["lost"]
    assert list(commands) == ["la"]


@pytest.mark.parametrize(
    ("arguments", "meant"), [(("strem", "ls"), "stream"), (("stream", "crate"), "create")], ids=" ".join
)
def test_a_name_that_is_nearly_right_is_suggested(arguments: tuple[str, str], meant: str) -> None:
    result = jetstream(*arguments)
    assert result.exit_code == 2
    assert f"'{meant}'" in result.output


def test_every_command_is_in_the_help() -> None:
    output = jetstream("--help").output
    assert all(f" {name} " in output for name in COMMANDS)
