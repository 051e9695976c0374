"""The log of a real node as lines of JSON, while strangers try to write lines of their own into it."""

import json
import re
import signal
from pathlib import Path
from typing import Any

import nats
import pytest

from tests.support.commands import CommandProcess, jetstream
from tests.support.nats_server import NatsServer
from tests.support.nodes import request, run

FORGED = 'a\n{"time":"2026-01-01T00:00:00.000000Z","level":"ERROR","message":"all is lost"}\x1b[31m'
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


async def refused(url: str) -> None:
    async with await nats.connect(url) as client:
        for operation, more in (("stream.info", {}), ("stream.create", {"subject": "orders.>"})):
            assert "error" in await request(client, operation, name=FORGED, **more)


@pytest.mark.parametrize("by_environment", [True, False], ids=["environment", "option"])
def test_each_line_of_a_nodes_log_is_an_object_with_the_fields_of_its_event(
    tmp_path: Path, nats_server: NatsServer, by_environment: bool
) -> None:
    options = () if by_environment else ("--log-format", "json")
    environment = {"JETSTREAM_NODE_LOG_FORMAT": "json"} if by_environment else {}
    data = ("--data", str(tmp_path / "data"), "--port", "0", "--nats", nats_server.url)
    with CommandProcess("node", *data, *options, environment=environment) as node:
        node.lines_until("ready")
        run(refused(nats_server.url))
        code, _, log = node.signalled(signal.SIGTERM)
    assert code == 0
    events: list[dict[str, Any]] = [json.loads(line) for line in log.splitlines()]
    assert all(TIME.fullmatch(event["time"]) for event in events)
    assert {event["level"] for event in events} <= {"INFO", "WARNING"}, "nobody else wrote a line"
    [refusal] = [event for event in events if event["message"].startswith("request refused")]
    assert (refusal["logger"], refusal["request"]) == ("jetstream.node.api.server", "stream.info")
    assert "all is lost" in refusal["error"]
    [change] = [json.loads(event["message"]) for event in events if event["logger"] == "jetstream.audit"]
    assert change["operation"] == "stream.create"
    assert [event["node"] for event in events if event["message"].startswith("node ready")]
    assert "stopping (again to end at once)" in [event["message"] for event in events]


def test_a_format_that_there_is_not_is_refused(tmp_path: Path) -> None:
    result = jetstream("node", "--data", str(tmp_path), "--log-format", "xml")
    assert (result.exit_code, "xml" in result.stderr) == (2, True)
