"""The shell's completion by its real protocol: variables in, candidates out, against a real node."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE

import pytest

from tests.support.commands import REPOSITORY, WAIT_SECONDS, succeeded, up
from tests.support.forked_process import ForkedProcess
from tests.support.nats_server import NatsServer


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of the NATS server of a node with three streams."""
    process, endpoints = up(tmp_path_factory.mktemp("data"))
    with process:
        for name in ("orders", "orders/eu", "audit"):
            succeeded("stream", "create", name, "--subject", name.replace("/", "."), nats=endpoints["nats"])
        yield endpoints["nats"]
        assert process.signalled(signal.SIGTERM)[0] == 0


_JETSTREAM = (sys.executable, "-m", "jetstream")


def program(*command: str, **environment: str) -> str:
    """Run a program that must succeed without a word on standard error; return what it printed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("JETSTREAM_")}
    all_of_it = {**kept, "PYTHONPATH": str(REPOSITORY), **environment}
    if command == _JETSTREAM:
        process: subprocess.Popen[bytes] = ForkedProcess(
            "jetstream", (), environment=all_of_it, stdout=PIPE, stderr=PIPE
        )
    else:
        process = subprocess.Popen(command, cwd=REPOSITORY, env=all_of_it, stdout=PIPE, stderr=PIPE)
    with process:
        printed, complaint = process.communicate(timeout=WAIT_SECONDS)
    assert (process.returncode, complaint) == (0, b"")
    return printed.decode()


def candidates(*words: str, nats: str = "") -> list[str]:
    """What bash is offered for the last of ``words``, which stand behind the command."""
    environment = {"JETSTREAM_NATS": nats} if nats else {}
    printed = program(
        *_JETSTREAM,
        _JETSTREAM_COMPLETE="complete_bash",
        COMP_WORDS=" ".join(("jetstream", *words)),
        COMP_CWORD=str(len(words)),
        **environment,
    )
    return printed.split()


def test_commands_and_options_are_completed() -> None:
    assert candidates("str") == ["stream"]
    assert candidates("stream", "tr") == ["truncate"]
    assert candidates("read", "--fol") == ["--follow"]
    assert candidates("read", "--format", "p") == ["parquet"]


@pytest.mark.parametrize(
    "before",
    [("read",), ("stream", "info"), ("bench", "read"), ("pub", "a.subject", "--stream")],
    ids=" ".join,
)
def test_stream_names_are_completed_wherever_a_stream_is_named(nats: str, before: tuple[str, ...]) -> None:
    assert candidates(*before, "ord", nats=nats) == ["orders", "orders/eu"]


def test_only_what_begins_so_is_offered(nats: str) -> None:
    assert candidates("read", "orders/", nats=nats) == ["orders/eu"]
    assert candidates("read", "nothing", nats=nats) == []


def test_groups_are_completed_where_a_group_is_named(nats: str) -> None:
    for group in ("billing", "bills/eu", "shipping"):
        arguments = ("group", "reset", group, "--to-latest", "--stream", "orders", "--yes")
        succeeded(*arguments, nats=nats)
    assert candidates("group", "la") == ["lag"]
    for command in ("info", "lag", "reset", "delete"):
        assert candidates("group", command, "bill", nats=nats) == ["billing", "bills/eu"]
    assert candidates("group", "reset", "billing", "--stream", "ord", nats=nats) == ["orders", "orders/eu"]


def test_the_server_of_the_command_line_is_asked(nats: str) -> None:
    nowhere = "nats://127.0.0.1:1"
    assert candidates("read", "--nats", nats, "au", nats=nowhere) == ["audit"]
    assert candidates("read", "--follow", f"--nats={nats}", "au", nats=nowhere) == ["audit"]


@pytest.mark.parametrize(
    "options",
    [
        ("--nats", "nats://127.0.0.1:1"),
        ("--nats", "nats://127.0.0.1:port"),
        ("--user", "only-half-of-it"),
        ("--nkey", "pyproject.toml"),
    ],
    ids=" ".join,
)
def test_what_is_wrong_completes_nothing_and_says_nothing(nats: str, options: tuple[str, ...]) -> None:
    assert candidates("read", *options, "ord", nats=nats) == []


def test_a_server_without_a_node_completes_nothing(tmp_path: Path) -> None:
    with NatsServer(tmp_path) as server:
        assert candidates("read", "ord", nats=server.url) == []


def test_a_server_that_never_answers_completes_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert candidates("read", "ord", nats=f"nats://127.0.0.1:{silent.getsockname()[1]}") == []


@pytest.mark.slow("tests/integration/test_completion.py::test_commands_and_options_are_completed")
def test_bash_completes_by_the_script_that_the_command_shows_and_installs(nats: str, tmp_path: Path) -> None:
    command = tmp_path / "bin" / "jetstream"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m jetstream "$@"\n')
    command.chmod(0o755)
    environment = {
        "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "JETSTREAM_NATS": nats,
    }
    complete = (
        "COMP_WORDS=(jetstream read ord) COMP_CWORD=2; _jetstream_completion jetstream; "
        'echo "${COMPREPLY[@]}"'
    )
    shown = f'eval "$(jetstream --show-completion)"; {complete}'
    assert program("bash", "-c", shown, **environment) == "orders orders/eu\n"
    installed = f"jetstream --install-completion >/dev/null; source ~/.bashrc; {complete}"
    assert program("bash", "-c", installed, **environment) == "orders orders/eu\n"
