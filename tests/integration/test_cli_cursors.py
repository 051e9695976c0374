"""``jetstream cursor`` against a real node."""

import signal
from collections.abc import Iterator

import pytest

from tests.support.commands import jetstream, json_lines, succeeded, up


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of the NATS server of one running ``jetstream up``."""
    process, endpoints = up(tmp_path_factory.mktemp("data"))
    with process:
        yield endpoints["nats"]
        assert process.signalled(signal.SIGTERM)[0] == 0


def test_a_cursor_is_set_shown_listed_and_deleted(nats: str) -> None:
    def cursor(*arguments: str) -> str:
        return succeeded("cursor", *arguments, nats=nats)

    assert cursor("get", "billing", "orders") == "billing has no cursor in orders\n"
    [nothing] = json_lines(cursor("get", "billing", "orders", "--json"))
    assert nothing["offset"] is None
    assert cursor("set", "billing", "orders", "42") == "billing goes on at offset 42 of orders\n"
    [stored] = json_lines(cursor("set", "a/b", "orders", "7", "--metadata", "m", "--json"))
    assert (stored["offset"], stored["metadata"]) == (7, "m")
    assert stored["committed_at"].endswith("Z")
    assert json_lines(cursor("get", "a/b", "orders", "--json")) == [stored]
    shown = cursor("get", "billing", "orders")
    assert "billing in orders" in shown
    assert "42" in shown
    listed = json_lines(cursor("ls", "--json"))
    assert [(each["consumer"], each["offset"]) for each in listed] == [("a/b", 7), ("billing", 42)]
    assert len(json_lines(cursor("ls", "--consumer", "billing", "--json"))) == 1
    assert json_lines(cursor("ls", "--stream", "other", "--json")) == []
    assert "2 cursors" in cursor("ls")
    assert cursor("delete", "billing", "orders") == "deleted the cursor of billing in orders\n"
    [deleted] = json_lines(cursor("delete", "a/b", "orders", "--json"))
    assert deleted["offset"] is None
    assert json_lines(cursor("ls", "--json")) == []


def test_a_name_that_is_none_is_refused_with_its_exit_code(nats: str) -> None:
    refused = jetstream("cursor", "set", "a.b", "orders", "1", nats=nats)
    assert refused.exit_code == 4
    assert "a.b" in refused.output


def test_internal_streams_are_listed_when_asked_for(nats: str) -> None:
    succeeded("cursor", "get", "billing", "orders", nats=nats)
    assert json_lines(succeeded("stream", "ls", "--json", nats=nats)) == []
    [internal] = json_lines(succeeded("stream", "ls", "--internal", "--json", nats=nats))
    assert internal["name"] == "__cursors"
    refused = jetstream("stream", "delete", "__cursors", "--yes", nats=nats)
    assert refused.exit_code == 4
