"""What the audit says of a change, whatever the request and NATS's header have in them."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envelope.errors import JetstreamError, UnknownStream
from envelope.headers import HEADER_BLOCK_BYTES_MAX, REQUEST_INFO
from envelope.types import NodeId, TimestampUs
from metadata.api.audit import AuditEvent, client_of, encode_event, requested_change
from metadata.api.requests import QUESTIONS, REQUESTS, RebalanceRequest
from metadata.api.wire import parse_request
from tests.support.messages import header_block

N1 = NodeId("n1")
NATS = (
    '{"start":"2026-11-28T09:15:39.803756371Z","host":"127.0.0.1","id":11,"acc":"SHOP","user":"shop",'
    '"name":"till","lang":"python3","ver":"2.16.0","rtt":247639,"server":"NCZE","kind":"Client"}'
)
"""As nats-server 2.12 writes it."""


def said(
    name: str | None = "orders", error: JetstreamError | None = None, info: str | None = None
) -> dict[str, Any]:
    headers = None if info is None else header_block((REQUEST_INFO, info))
    event = AuditEvent(
        operation="stream.delete", name=name, time=TimestampUs(1_500_000), error=error, headers=headers
    )
    line = encode_event(event, N1, "n1-7")
    assert line.isprintable()
    assert line.isascii()
    record: dict[str, Any] = json.loads(line)
    return record


def client(info: str | bytes) -> dict[str, str | int] | None:
    return client_of(header_block((REQUEST_INFO, info)))


def test_a_change_says_what_of_what_with_which_result_by_which_node_and_when() -> None:
    record = {"id": "n1-7", "time": "1970-01-01T00:00:01.500000Z", "node": "n1", "operation": "stream.delete"}
    assert said() == {**record, "name": "orders", "result": "done"}
    error = UnknownStream("no stream 'orders'", stream="orders")
    reason = {"result": "stream_not_found", "code": 404, "reason": "no stream 'orders'"}
    assert said(error=error) == {**record, "name": "orders", **reason}
    assert said(name=None) == {**record, "result": "done"}


def test_the_client_is_what_nats_says_of_it() -> None:
    known = {"acc": "SHOP", "user": "shop", "name": "till", "host": "127.0.0.1", "server": "NCZE", "id": 11}
    assert said(info=NATS)["client"] == known
    assert said(info='{"acc":"PLAIN","rtt":297864}')["client"] == {"acc": "PLAIN"}, "without `share`"


@pytest.mark.parametrize(
    "info",
    [
        "",
        "{",
        "[]",
        '"SHOP"',
        "null",
        "{}",
        '{"acc":""}',
        '{"acc":7,"user":["root"],"name":null,"id":"11"}',
        '{"id":-1}',
        '{"id":true}',
        '{"id":1.5}',
        '{"id":NaN}',
        '{"id":1' + "0" * 4000 + "}",
        '{"acc":"\\ud800"}',
        "[" * 8000,
        '{"acc":' * 1000,
        '{"acc":"' + "x" * 8192 + '"}',
    ],
    ids=lambda info: info[:24],
)
def test_a_header_that_nats_does_not_write_says_nothing(info: str) -> None:
    assert client(info) is None
    assert "client" not in said(info=info)


@pytest.mark.parametrize(
    "headers",
    [
        None,
        b"",
        b"garbage",
        b"NATS/1.0\r\n",
        b"NATS/1.0\r\nNats-Request-Info\r\n\r\n",
        header_block((REQUEST_INFO, b'{"acc":"\xff"}')),
        header_block(("nats-request-info", NATS)),
        header_block(("x", "y" * HEADER_BLOCK_BYTES_MAX), (REQUEST_INFO, NATS)),
    ],
    ids=str,
)
def test_headers_without_it_say_nothing(headers: bytes | None) -> None:
    assert client_of(headers) is None


def test_of_two_the_first_one_counts_and_of_a_key_that_occurs_twice_the_last_one() -> None:
    assert client_of(header_block((REQUEST_INFO, '{"acc":"A"}'), (REQUEST_INFO, '{"acc":"B"}'))) == {
        "acc": "A"
    }
    assert client('{"acc":"A","acc":"B"}') == {"acc": "B"}


def test_no_value_from_outside_makes_a_line_or_a_field_of_its_own() -> None:
    forged = 'x", "result": "done"}\n2026-01-01T00:00:00.000Z INFO jetstream.audit {"\x1b[31m\u2028\x7f'
    record = said(
        name=forged, error=UnknownStream(forged), info=json.dumps({"user": forged, "password": "x"})
    )
    assert (record["name"], record["reason"], record["client"]) == (forged, forged, {"user": forged})
    assert record["result"] == "stream_not_found"


@given(st.text(), st.text(), st.dictionaries(st.text(), st.text() | st.integers() | st.none()), st.binary())
def test_a_record_is_one_short_line_whatever_there_is(
    name: str, reason: str, info: dict[str, object], garbage: bytes
) -> None:
    record = said(name=name, error=UnknownStream(reason), info=json.dumps({"acc": name, **info}))
    assert {*record} - {"client"} == {"id", "time", "node", "operation", "name", "result", "code", "reason"}
    assert (record["name"], record["reason"]) == (name[:256], reason[:256])
    assert client_of(garbage) is None
    assert client(b'{"acc":' + garbage.replace(b"\r\n", b"")) is None


@pytest.mark.parametrize("operation", REQUESTS)
def test_everything_that_is_no_question_is_a_change(operation: str) -> None:
    assert (requested_change(operation, b"") is None) == (REQUESTS[operation] in QUESTIONS)


@pytest.mark.parametrize(
    ("suffix", "payload", "change"),
    [
        ("stream.delete", b'{"name":"orders"}', ("stream.delete", "orders")),
        ("stream.delete.shop.orders", b"", ("stream.delete", "shop/orders")),
        ("stream.elect", b'{"name":"orders","node":"n1","unclean":true}', ("stream.elect", "orders")),
        ("group.delete", b'{"group":"billing"}', ("group.delete", "billing")),
        ("cluster.drain", b'{"node":"n1"}', ("cluster.drain", "n1")),
        ("cluster.update", b'{"default_replicas":3}', ("cluster.update", None)),
        ("cluster.rebalance", b"", ("cluster.rebalance", None)),
        ("cluster.rotate_key", b"", ("cluster.rotate_key", None)),
        ("namespace.limit.shop", b'{"streams":20}', ("namespace.limit", "shop")),
    ],
)
def test_a_change_is_of_the_stream_the_group_or_the_node_that_it_names(
    suffix: str, payload: bytes, change: tuple[str, str | None]
) -> None:
    assert requested_change(suffix, parse_request(suffix, payload)) == change
    assert requested_change(suffix, payload) == change, "as far as it was read"


@pytest.mark.parametrize(
    "payload", [b"", b"{", b"[]", b'{"name":7}', b'{"name":"' + b"x" * (1 << 16) + b'"}']
)
def test_a_request_that_cannot_be_read_names_nothing_but_in_its_subject(payload: bytes) -> None:
    assert requested_change("stream.delete", payload) == ("stream.delete", None)
    assert requested_change("stream.delete.orders", payload) == ("stream.delete", "orders")


def test_what_is_no_request_and_what_is_only_planned_changes_nothing() -> None:
    assert requested_change("stream.burn", b"{}") is None
    assert requested_change("cluster.rebalance", RebalanceRequest(dry_run=True)) is None
