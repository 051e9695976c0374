"""``jetstream bench`` against a real node: its numbers are those of what happened; no time is expected."""

import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.commands import CommandProcess, jetstream, succeeded, up


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of the NATS server of a running node."""
    process, endpoints = up(tmp_path_factory.mktemp("data"))
    with process:
        yield endpoints["nats"]
        assert process.signalled(signal.SIGTERM)[0] == 0


@pytest.fixture
def stream(nats: str, request: pytest.FixtureRequest) -> str:
    """A stream of the test's own, with one literal subject."""
    name = request.node.name.removeprefix("test_")[:60]
    succeeded("stream", "create", name, "--subject", f"{name}.a", nats=nats)
    return str(name)


def bench(*arguments: str, nats: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(succeeded("bench", *arguments, "--json", nats=nats))
    return result


def info(stream: str, nats: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(succeeded("stream", "info", stream, "--json", nats=nats))
    return result


def names(nats: str) -> list[str]:
    return [json.loads(line)["name"] for line in succeeded("stream", "ls", "--json", nats=nats).splitlines()]


def test_what_is_acked_is_stored_and_what_is_stored_is_read(nats: str, stream: str) -> None:
    succeeded("pub", f"{stream}.a", "before", nats=nats)
    published = bench("publish", stream, "--count", "3000", "--size", "1KiB", "--in-flight", "100", nats=nats)
    assert (published["bench"], published["stream"], published["messages"]) == ("publish", stream, 3000)
    assert (published["start_offset"], published["end_offset"]) == (1, 3001)
    assert published["value_bytes"] == 3000 * 1024
    assert published["latency_ms"]["ack"]["samples"] == 3000
    assert info(stream, nats)["high_watermark"] == 3001

    read = bench("read", stream, "--from", "1", nats=nats)
    assert (read["messages"], read["value_bytes"]) == (3000, 3000 * 1024)
    assert (read["start_offset"], read["end_offset"]) == (1, 3001)
    for report in (published, read):
        assert report["messages_per_second"] == pytest.approx(report["messages"] / report["seconds"])
        assert report["megabytes_per_second"] == pytest.approx(
            report["value_bytes"] / report["seconds"] / 1e6
        )
        for latency in report["latency_ms"].values():
            assert latency["p50"] <= latency["p99"] <= latency["p99_9"] <= latency["max"]
            assert latency["max"] <= report["seconds"] * 1000


def test_a_read_stops_at_its_count_and_at_the_end(nats: str, stream: str) -> None:
    assert bench("read", stream, nats=nats)["messages"] == 0
    succeeded("pub", f"{stream}.a", "x", "--count", "500", nats=nats)
    some = bench("read", stream, "--count", "123", nats=nats)
    assert (some["messages"], some["end_offset"], some["value_bytes"]) == (123, 123, 123)
    assert bench("read", stream, "--count", "1000", nats=nats)["messages"] == 500


def test_a_duration_ends_a_measurement_before_its_count(nats: str, stream: str) -> None:
    nothing = bench("publish", stream, "--duration", "0s", nats=nats)
    assert (nothing["messages"], nothing["start_offset"], nothing["latency_ms"]) == (0, None, {"ack": None})
    some = bench("publish", stream, "--count", "100000000", "--duration", "200ms", nats=nats)
    assert some["messages"] == info(stream, nats)["high_watermark"]
    assert bench("read", stream, "--duration", "0s", nats=nats)["messages"] == 0
    assert bench("latency", stream, "--duration", "0s", nats=nats)["messages"] == 0


def test_every_message_of_a_latency_run_is_acked_and_delivered(nats: str, stream: str) -> None:
    succeeded("pub", f"{stream}.a", "before", nats=nats)
    report = bench("latency", stream, "--count", "30", "--size", "16", nats=nats)
    assert (report["messages"], report["start_offset"], report["end_offset"]) == (30, 1, 31)
    assert {name: latency["samples"] for name, latency in report["latency_ms"].items()} == {
        "ack": 30,
        "delivery": 30,
    }
    assert info(stream, nats)["high_watermark"] == 31


def test_people_get_a_table(nats: str, stream: str) -> None:
    shown = succeeded("bench", "publish", stream, "--count", "1234", nats=nats)
    assert f"publish {stream}" in shown
    assert "1,234" in shown
    assert "p99.9" in shown


# --- the stream -----------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["publish", "latency"])
def test_a_stream_is_created_only_when_asked_and_deleted_unless_kept(nats: str, command: str) -> None:
    arguments = (command, "made/here", "--count", "20")
    assert jetstream("bench", *arguments, nats=nats).exit_code == 3
    assert bench(*arguments, "--create", nats=nats)["messages"] == 20
    assert "made/here" not in names(nats)
    bench(*arguments, "--create", "--keep", nats=nats)
    assert info("made/here", nats)["high_watermark"] == 20
    refused = jetstream("bench", *arguments, "--create", nats=nats)
    assert (refused.exit_code, refused.stdout) == (4, "")
    assert "is there already" in refused.stderr
    assert info("made/here", nats)["high_watermark"] == 20
    succeeded("stream", "delete", "made/here", "--yes", nats=nats)


def test_an_interrupted_run_deletes_what_it_has_created(nats: str) -> None:
    arguments = ("publish", "interrupted", "--create", "--count", "100000000", "--in-flight", "10")
    with CommandProcess("bench", *arguments, nats=nats) as process:
        while "interrupted" not in names(nats) or not info("interrupted", nats)["high_watermark"]:
            assert process.running
        assert process.signalled(signal.SIGINT) == (130, "", "")
    assert "interrupted" not in names(nats)


def test_a_run_that_fails_deletes_what_it_has_created(nats: str) -> None:
    failed = jetstream("bench", "publish", "failing", "--create", "--subject", "a b", nats=nats)
    assert failed.exit_code == 4
    assert "failing" not in names(nats)


def test_another_streams_acks_are_not_taken_for_this_ones(nats: str) -> None:
    succeeded("stream", "create", "silent", "--subject", "both", "--ack", "none", nats=nats)
    succeeded("stream", "create", "loud", "--subject", "both", nats=nats)
    for command in ("publish", "latency"):
        result = jetstream("bench", command, "silent", "--count", "5", "--json", nats=nats)
        assert result.exit_code == 4
        error = json.loads(result.stderr)["error"]
        assert (error["err_code"], error["exit_code"]) == ("bad_request", 4)
        assert error["description"] == "loud stores this subject too, and acks it"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("publish", "nowhere"), 3),
        (("read", "nowhere"), 3),
        (("latency", "nowhere"), 3),
        (("publish", "bad name", "--create"), 4),
        (("publish", "pattern"), 4),
        (("latency", "pattern"), 4),
        (("read", "pattern", "--from", "99"), 4),
        (("publish", "pattern", "--subject", "elsewhere"), 5),
        (("publish", "pattern", "--subject", "pattern.a", "--size", "17MB", "--in-flight", "1"), 4),
        (("publish", "pattern", "--subject", "pattern.*"), 2),
        (("publish", "pattern", "--count", "0"), 2),
        (("publish", "pattern", "--in-flight", "0"), 2),
        (("publish", "pattern", "--size", "1MiB", "--in-flight", "65"), 2),
        (("publish", "pattern", "--size", "big"), 2),
        (("publish", "pattern", "--size", "65MiB", "--in-flight", "1"), 2),
        (("publish", "pattern", "--duration", "soon"), 2),
        (("publish", "pattern", "--keep"), 2),
        (("latency", "pattern", "--size", "15"), 2),
        (("read", "pattern", "--from", "yesterday"), 2),
        (("read",), 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_what_is_wrong_is_one_error_and_its_exit_code(
    nats: str, arguments: tuple[str, ...], code: int
) -> None:
    succeeded("stream", "create", "pattern", "--subject", "pattern.>", nats=nats)
    result = jetstream("bench", *arguments, nats=nats)
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert info("pattern", nats)["high_watermark"] == 0
    if code != 2:
        assert result.stderr.startswith("error: ")
        assert len(result.stderr.splitlines()) == 1


def test_a_server_that_is_away_is_said_at_once() -> None:
    for command in ("publish", "read", "latency"):
        result = jetstream("bench", command, "a", nats="nats://127.0.0.1:1")
        assert result.exit_code == 5
        assert result.stderr.startswith("error: no NATS server at nats://127.0.0.1:1: ")
