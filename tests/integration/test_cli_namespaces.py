"""``jetstream namespace …`` against a running node."""

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
        code, _, error = process.signalled(signal.SIGTERM)
        assert (code, error) == (0, "")


def test_a_namespace_is_limited_shown_listed_and_freed(nats: str) -> None:
    limits = ("--streams", "2", "--bytes", "1GiB", "--creations-per-minute", "50", "--subject", "shop.>")
    shown = succeeded("namespace", "limit", "shop", *limits, nats=nats)
    assert "0 of 2" in shown
    kept = ("--retention-bytes", "64MiB", "--segment-bytes", "64MiB")
    succeeded("stream", "create", "shop/a", "--subject", "shop.a", *kept, nats=nats)
    [info] = json_lines(succeeded("namespace", "info", "shop", "--json", nats=nats))
    assert info == {
        "name": "shop",
        "streams": 1,
        "bytes": 128 << 20,
        "limits": {"streams": 2, "bytes": 1 << 30, "creations_per_minute": 50, "subjects": ["shop.>"]},
    }
    listed = succeeded("namespace", "ls", nats=nats)
    assert "2 namespaces" in listed
    assert "all streams" in listed
    assert [line["name"] for line in json_lines(succeeded("namespace", "ls", "--json", nats=nats))] == [
        None,
        "shop",
    ]
    assert [
        line["name"] for line in json_lines(succeeded("namespace", "ls", "--limited", "--json", nats=nats))
    ] == ["shop"]
    freed = [
        part
        for limit in ("streams", "bytes", "creations-per-minute", "subjects")
        for part in ("--remove", limit)
    ]
    [info] = json_lines(succeeded("namespace", "limit", "shop", *freed, "--json", nats=nats))
    assert set(info["limits"].values()) == {None}


def test_a_creation_beyond_a_limit_is_refused_as_other_conflicts_are(nats: str) -> None:
    succeeded("namespace", "limit", "pay", "--subject", "pay.>", "--creations-per-minute", "1", nats=nats)
    refused = jetstream("stream", "create", "pay/a", "--subject", "hr.>", nats=nats)
    assert (refused.exit_code, "within no pattern" in refused.stderr) == (4, True)
    succeeded("stream", "create", "pay/a", "--subject", "pay.a", nats=nats)
    refused = jetstream("stream", "create", "pay/b", "--subject", "pay.b", "--json", nats=nats)
    assert refused.exit_code == 4
    [error] = json_lines(refused.stderr)
    assert (error["error"]["err_code"], error["error"]["retriable"]) == ("creations_too_fast", True)
    succeeded("namespace", "limit", "--streams", "0", nats=nats)
    refused = jetstream("stream", "create", "free", "--subject", "free", nats=nats)
    assert (refused.exit_code, "the cluster" in refused.stderr) == (4, True)
    succeeded("namespace", "limit", "--remove", "streams", nats=nats)


def test_a_limit_that_says_nothing_or_both_is_wrong_usage(nats: str) -> None:
    assert jetstream("namespace", "limit", "shop", nats=nats).exit_code == 2
    assert (
        jetstream("namespace", "limit", "shop", "--streams", "1", "--remove", "streams", nats=nats).exit_code
        == 2
    )
    assert jetstream("namespace", "limit", "__cursors", "--streams", "1", nats=nats).exit_code == 4
