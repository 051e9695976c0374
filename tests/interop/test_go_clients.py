"""The ``nats`` command, which is built on the official Go client, against ``jetstream up``.

The NATS server that it starts has no JetStream of its own: every ack comes from us. The command is built
from the Go module proxy; without Go or the proxy these tests are skipped and say why.
"""

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from metadata.api.requests import REQUESTS
from tests.support.commands import REPOSITORY, WAIT_SECONDS, json_lines, succeeded, up
from tests.support.go_programs import NotBuildable, nats_command

API_PAGE = (REPOSITORY / "docs" / "api.md").read_text(encoding="utf-8")
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def command() -> Path:
    try:
        return nats_command()
    except NotBuildable as reason:
        pytest.skip(str(reason))


@dataclass(frozen=True, slots=True)
class Terminal:
    """A person at a shell, with ``nats`` on the path and a node on the server it speaks to."""

    url: str
    home: Path
    command: Path

    def shell(self, script: str) -> subprocess.CompletedProcess[str]:
        """Run a script; it stops at its first failure."""
        return subprocess.run(
            ["sh", "-ec", script],
            capture_output=True,
            text=True,
            check=False,
            timeout=WAIT_SECONDS,
            env={
                **os.environ,
                "PATH": f"{self.command}{os.pathsep}{os.environ['PATH']}",
                "NATS_URL": self.url,
                "HOME": str(self.home),  # not the contexts of whoever runs the tests
                "XDG_CONFIG_HOME": str(self.home),
            },
        )

    def answers(self, script: str) -> list[dict[str, Any]]:
        """Run a script of ``nats req`` lines that succeed; return what was answered."""
        done = self.shell(script)
        assert done.returncode == 0, done.stderr
        return json_lines("\n".join(filter(None, done.stdout.splitlines())))

    def stored(self) -> list[str]:
        """Return the values in the stream ``orders``."""
        return [record["value"] for record in json_lines(succeeded("read", "orders", nats=self.url))]


@pytest.fixture
def terminal(tmp_path: Path, command: Path) -> Iterator[Terminal]:
    process, endpoints = up(tmp_path / "data")
    with process:
        (tmp_path / "home").mkdir()
        yield Terminal(endpoints["nats"], tmp_path / "home", command)
        assert process.signalled(signal.SIGTERM)[0] == 0


@pytest.fixture
def orders(terminal: Terminal) -> Terminal:
    """A terminal where the stream ``orders`` on ``orders.>`` exists."""
    succeeded("stream", "create", "orders", "--subject", "orders.>", nats=terminal.url)
    return terminal


def test_the_session_in_the_request_apis_page_runs_as_it_is_written(terminal: Terminal) -> None:
    (session,) = re.findall(r"^```sh\n(nats .*?)^```$", API_PAGE, re.MULTILINE | re.DOTALL)
    answers = terminal.answers(session)
    assert [answer for answer in answers if "error" in answer] == []
    asked = re.findall(r"^nats req (\S+)", session, re.MULTILINE)
    assert len(answers) == len(asked)
    by_subject = dict(zip(asked, answers, strict=True))
    assert by_subject["jetstream.api.stream.create"]["created"] is True
    assert by_subject["jetstream.api.stream.update"]["config"]["retention"]["age"] == "P7D"
    assert by_subject["orders.eu.1"] == {"stream": "orders", "seq": 1, "offset": 0, "epoch": 1}
    assert by_subject["jetstream.api.stream.truncate"]["log_start_offset"] == 1
    assert by_subject["jetstream.api.stream.delete"]["name"] == "orders"
    assert by_subject["jetstream.api.cluster.info"]["streams"] == 0


def test_the_line_in_the_readme_runs_as_it_is_written(orders: Terminal) -> None:
    (line,) = re.findall(r"`(nats request [^`]+)`", README)
    (answer,) = orders.answers(line)
    assert (answer["config"]["subject"], answer["log_end_offset"]) == ("orders.>", 0)


def test_the_command_shows_the_error_of_a_request_as_the_page_does(terminal: Terminal) -> None:
    (example,) = re.findall(r"^(\{\"error\":.*\})$", API_PAGE, re.MULTILINE)
    assert terminal.answers("""nats req jetstream.api.stream.info '{"name":"orders"}'""") == [
        json.loads(example)
    ]


def test_every_request_refuses_what_it_does_not_know(terminal: Terminal) -> None:
    asked = [f"""nats req jetstream.api.{suffix} '{{"colour":"red"}}'""" for suffix in sorted(REQUESTS)]
    answers = terminal.answers("\n".join(asked))
    assert [answer["error"]["err_code"] for answer in answers] == ["bad_request"] * len(REQUESTS)


def test_the_command_publishes_and_knows_duplicates_and_refusals(orders: Terminal) -> None:
    done = orders.shell(
        """
        nats pub orders.new 'without an ack'
        nats pub --jetstream orders.new one -H Nats-Msg-Id:order-1
        nats pub --jetstream orders.new one -H Nats-Msg-Id:order-1
        nats pub --jetstream orders.new two -H Nats-Expected-Last-Sequence:2
        nats pub --jetstream orders.new three -H Nats-Expected-Last-Sequence:2
        """
    )
    assert re.findall(r"Stored in Stream: (.*)$", done.stderr, re.MULTILINE) == [
        "orders Sequence: 2",
        "orders Sequence: 2 Duplicate: true",
        "orders Sequence: 3",
    ]
    assert done.stderr.splitlines()[-1] == "nats: error: wrong last sequence: 3 (10071)"
    assert done.returncode != 0
    assert orders.stored() == ["without an ack", "one", "two"]


def test_the_command_shows_acks_and_refusals_as_they_are(orders: Terminal) -> None:
    answers = orders.answers(
        """
        nats req orders.new one --header Nats-Msg-Id:order-1
        nats req orders.new one --header Nats-Msg-Id:order-1
        nats req orders.new two --header Nats-Expected-Last-Msg-Id:order-7
        """
    )
    refusal = {"code": 400, "err_code": 10070, "description": "wrong last msg ID: order-1"}
    assert answers == [
        {"stream": "orders", "seq": 1, "offset": 0, "epoch": 1},
        {"stream": "orders", "seq": 1, "offset": 0, "epoch": 1, "duplicate": True},
        {"error": refusal, "stream": "orders", "seq": 0},
    ]


def test_the_command_is_told_at_once_that_no_stream_binds_the_subject(terminal: Terminal) -> None:
    done = terminal.shell("nats pub --jetstream nobody.listens one")
    assert done.returncode != 0
    assert "no responders" in done.stderr
