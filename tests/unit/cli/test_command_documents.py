"""What the help and the pages say of the command is what it takes."""

import re
import shlex
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from jetstream.cli.main import app
from jetstream.cli.output.exit_codes import ExitCode
from jetstream.node.runtime.version import VERSION
from jetstream.node.settings.node_config import load_config

ROOT = Path(__file__).resolve().parents[3]
PAGES = (
    ROOT / "README.md",
    ROOT / "docs" / "cli.md",
    ROOT / "docs" / "operations.md",
    ROOT / "docs" / "runbook.md",
    ROOT / "docs" / "spark.md",
    ROOT / "docs" / "tiers.md",
)


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


EXAMPLES = [
    example
    for path in sorted((ROOT / "jetstream" / "cli").rglob("*.py"))
    for name, examples in sorted(vars(import_module(_module(path))).items())
    if name.endswith("_EXAMPLES")
    for example in examples
]


def commands_of(page: Path) -> Iterator[str]:
    """Yield the lines of a page's shell blocks that run the command."""
    for block in re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL):
        yield from (line for line in block.splitlines() if line.startswith("jetstream "))


def arguments_of(line: str) -> list[str]:
    """Return the arguments behind the word ``jetstream`` up to a pipe, a redirection or the end."""
    words = shlex.split(line, comments=True)
    words = words[words.index("jetstream") + 1 :]
    ends = [index for index, word in enumerate(words) if word in ("|", "<", ">")]
    return words[: min(ends, default=len(words))]


def parse(arguments: list[str]) -> None:
    """Parse a command line without running it."""
    command: Any = typer.main.get_command(app)
    context = command.make_context("jetstream", list(arguments))
    while hasattr(command, "resolve_command"):
        name, command, arguments = command.resolve_command(context, arguments)
        context = command.make_context(name, list(arguments), parent=context)


@pytest.mark.parametrize("line", EXAMPLES)
def test_every_example_of_the_help_is_a_command_line(line: str) -> None:
    parse(arguments_of(line))


@pytest.mark.parametrize("line", [line for page in PAGES for line in commands_of(page)])
def test_every_command_in_the_pages_is_a_command_line(line: str) -> None:
    parse(arguments_of(line))


def all_commands() -> Iterator[list[str]]:
    root: Any = typer.main.get_command(app)
    for name, command in root.commands.items():
        yield [name]
        yield from ([name, sub] for sub in getattr(command, "commands", ()))


@pytest.mark.parametrize("command", list(all_commands()), ids=" ".join)
def test_every_command_has_help_with_examples(command: list[str]) -> None:
    result = CliRunner().invoke(app, [*command, "--help"])
    assert result.exit_code == 0
    assert "Examples:" in result.output or command in (
        ["stream"],
        ["bench"],
        ["cluster"],
        ["cursor"],
        ["namespace"],
        ["group"],
        ["pipeline"],
        ["tier"],
    )


def test_the_page_lists_every_command_and_every_exit_code() -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    for command in all_commands():
        assert command[-1] in page
    rows = {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    assert rows == {int(code) for code in ExitCode}


def test_the_settings_in_the_page_are_a_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "operations.md").read_text(), re.DOTALL)
    assert set(tomllib.loads(samples[0])) >= {"data", "nats", "socket"}
    settings = tmp_path / "node.toml"
    for sample in samples:
        settings.write_text(sample)
        config = load_config(settings)
        if config.peers is not None:
            assert config.node_id is not None
            assert config.peers.address_of(config.node_id).port
        else:
            assert config.socket.advertise == "log1.example.com"
            assert config.socket.tls is not None


def test_the_version_is_printed() -> None:
    assert CliRunner().invoke(app, ["--version"]).output == f"{VERSION}\n"
