"""Events as lines of JSON: fields come from our own text, and words from outside stay where they are put."""

import json
import logging
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream.cli.output.log_lines import JsonLines, fields_of

OWN = {"time", "level", "logger", "message"}


def record(text: str, *arguments: object) -> logging.LogRecord:
    return logging.LogRecord("jetstream.node", logging.WARNING, "", 0, text, arguments, None)


def shown(event: logging.LogRecord) -> dict[str, Any]:
    line = JsonLines().event(event, event.getMessage())
    assert line.isascii()
    assert line.isprintable()
    document: dict[str, Any] = json.loads(line)
    return document


def test_an_event_is_one_object_with_its_fields() -> None:
    event = record(
        "append refused stream=%s offset=%d error=%r runbook=RB-04", "orders", 7, ValueError("full")
    )
    event.created = 1_700_000_000.000250
    assert shown(event) == {
        "time": "2023-11-14T22:13:20.000250Z",
        "level": "WARNING",
        "logger": "jetstream.node",
        "message": "append refused stream=orders offset=7 error=ValueError('full') runbook=RB-04",
        "runbook": "RB-04",
        "stream": "orders",
        "offset": 7,
        "error": "ValueError('full')",
    }


@given(st.text(), st.text())
def test_words_from_outside_make_no_line_and_no_field(name: str, reason: str) -> None:
    hostile = f'{name}\n{{"level":"ERROR"}} level=ERROR role=root {reason}'
    found = shown(record("refused stream=%s: %s error=%s", hostile, hostile, reason))
    assert found.keys() == {*OWN, "stream", "error"}
    assert (found["level"], found["stream"], found["error"]) == ("WARNING", hostile, reason)
    assert found["message"] == f"refused stream={hostile}: {hostile} error={reason}"


def test_a_field_takes_the_place_of_none_that_each_line_has() -> None:
    found = shown(record("said level=%s time=%s", "ERROR", "never"))
    assert (found["level"], found["message"]) == ("WARNING", "said level=ERROR time=never")
    assert datetime.fromisoformat(found["time"]).tzinfo == UTC


def test_a_traceback_is_a_member_of_the_same_line() -> None:
    event = record("failed")
    event.exc_info = (ValueError, ValueError("a\nb"), None)
    found = shown(event)
    assert found["traceback"].endswith("ValueError: a\nb")


@pytest.mark.parametrize(
    ("text", "arguments", "fields"),
    [
        ("waits seconds=%.1f of 100%% for=%s", (1.25, None), {"seconds": 1.25, "for": None}),
        ("is it alive=%s, at=%s", (True, float("nan")), {"alive": True, "at": "nan"}),
        ("begun stream=%s %s", ("a", "epoch=3"), {"stream": "a"}),
        ("too few stream=%s offset=%d", ("a",), {}),
        ("of another kind offset=%d", ("none",), {"offset": "none"}),
        ("no fields at all", (), {}),
    ],
)
def test_fields_are_what_the_text_says(text: str, arguments: tuple[object, ...], fields: object) -> None:
    assert dict(fields_of(record(text, *arguments))) == fields


def test_what_is_passed_on_gets_the_name_of_its_node() -> None:
    lines = JsonLines()
    event = lines.event(record("ready node=%s", "a"), "ready node=a")
    assert json.loads(lines.passed_on("a", event)) == {**json.loads(event), "node_id": "a"}
    torn = json.loads(lines.passed_on("b", "Fatal Python error\n"))
    assert (torn["message"], torn["node_id"]) == ("Fatal Python error\n", "b")
    assert json.loads(lines.passed_on("b", "7"))["message"] == "7"
