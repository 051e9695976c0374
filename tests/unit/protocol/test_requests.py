"""Requests and responses: typed values from untrusted JSON."""

import json

import pytest
from crc32c import crc32c

from envelope.errors import (
    InternalError,
    JetstreamError,
    OffsetOutOfRange,
    RemoteProtocolError,
    RequestError,
    UnavailableError,
    Unsupported,
    registry,
)
from envelope.limits import FETCH_BYTES_MAX, FETCH_WAIT_MS_MAX, FRAME_HEADER_BYTES_MAX
from jetstream.protocol.requests import (
    Fetch,
    GetMetadata,
    Hello,
    ListOffsets,
    RefusedRequest,
    Request,
    decode_request,
    encode_request,
)
from jetstream.protocol.responses import (
    FetchResponse,
    HelloResponse,
    decode_error,
    decode_response,
    encode_error,
    encode_response,
    response_id,
)


def refusal(**fields: object) -> JetstreamError:
    with pytest.raises(RefusedRequest) as caught:
        decode_request(json.dumps({"id": 7, **fields}).encode())
    assert caught.value.request_id == 7
    return caught.value.error


@pytest.mark.parametrize(
    "request_",
    [
        Hello(id=0, protocol=1, client="c", client_version="v"),
        GetMetadata(id=1),
        GetMetadata(id=1, streams=["a", "b"], after="a"),
        ListOffsets(id=2, stream="s", at="earliest"),
        ListOffsets(id=2, stream="s", at="timestamp", timestamp=-5, incarnation="i"),
        ListOffsets(id=2, stream="s", at="bytes", offset=0, bytes=1),
        ListOffsets(id=2, stream="s", at="bytes", offset=2**63 - 1, bytes=2**63 - 1, incarnation="i"),
        Fetch(id=3, stream="s", offset=0),
        Fetch(id=2**63 - 1, stream="s", offset=2**63 - 1, max_bytes=1, max_wait_ms=5, last_epoch=0),
    ],
)
def test_what_is_encoded_is_decoded(request_: Request) -> None:
    assert decode_request(encode_request(request_)) == request_


@pytest.mark.parametrize(
    "header",
    [
        b"", b"{", b"nonsense", b"[]", b"null", b"1", b'"x"', b"\xff\xfe", b"[" * 60_000, b'{"op":"hello"}',
        b'{"id":null}', b'{"id":"1"}', b'{"id":1.0}', b'{"id":true}', b'{"id":-1}',
        b'{"id":9223372036854775808}',
        b'{"id":' + b"9" * 5000 + b"}", b'{"id":NaN}', b'{"id":1,"op":"\\ud800"}',
    ],
)  # fmt: skip
def test_a_header_without_a_usable_id_breaks_the_connection(header: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_request(header)


@pytest.mark.parametrize("op", ["produce", "", None, 1, [], {}, "FETCH", "x" * 10_000])
def test_an_unknown_op_is_unsupported(op: object) -> None:
    assert isinstance(refusal(op=op), Unsupported)


def test_an_unknown_field_is_unsupported_and_not_overlooked() -> None:
    error = refusal(op="fetch", stream="s", offset=0, filter="orders.*")
    assert isinstance(error, Unsupported)
    assert "filter" in error.description


@pytest.mark.parametrize(
    "fields",
    [
        {}, {"stream": 1}, {"stream": None}, {"offset": -1}, {"offset": "0"}, {"offset": 1.5},
        {"offset": True},
        {"offset": 2**63}, {"max_bytes": 0}, {"max_bytes": FETCH_BYTES_MAX + 1}, {"max_wait_ms": -1},
        {"max_wait_ms": FETCH_WAIT_MS_MAX + 1}, {"last_epoch": -1}, {"incarnation": 3},
        {"stream": "x" * 1025},
    ],
)  # fmt: skip
def test_a_field_of_the_wrong_type_or_range_is_a_bad_request(fields: dict[str, object]) -> None:
    complete: dict[str, object] = {"op": "fetch", "stream": "s", "offset": 0, **fields}
    if not fields:
        del complete["offset"]
    error = refusal(**complete)
    assert type(error) is RequestError
    assert len(error.description) < 1000


@pytest.mark.parametrize("fields", [{"at": "timestamp"}, {"at": "latest", "timestamp": 1}, {"at": "now"}])
def test_a_timestamp_goes_with_its_place(fields: dict[str, object]) -> None:
    assert isinstance(refusal(op="list_offsets", stream="s", **fields), RequestError)


BYTES: dict[str, object] = {"at": "bytes", "offset": 1, "bytes": 1}


@pytest.mark.parametrize("missing", ["offset", "bytes", "at"])
def test_an_offset_and_bytes_go_together_with_their_place(missing: str) -> None:
    fields = {name: value for name, value in BYTES.items() if name != missing}
    assert type(refusal(op="list_offsets", stream="s", **fields)) is RequestError


@pytest.mark.parametrize(
    "fields",
    [
        {"at": "latest"}, {"at": "earliest"}, {"at": "byte"}, {"bytes": 0}, {"bytes": -1}, {"bytes": 2**63},
        {"bytes": "1"}, {"bytes": 1.0}, {"bytes": True}, {"bytes": None}, {"offset": -1}, {"offset": 2**63},
        {"offset": "next"}, {"offset": None}, {"timestamp": 1}, {"txid": 1},
    ],
)  # fmt: skip
def test_bytes_that_cannot_be_are_a_bad_request(fields: dict[str, object]) -> None:
    assert type(refusal(op="list_offsets", stream="s", **{**BYTES, **fields})) is RequestError


@pytest.mark.parametrize("error_class", registry().values())
def test_every_error_survives_the_wire(error_class: type[JetstreamError]) -> None:
    fields, answered = response_id(encode_error(3, error_class("why", offset=5, name="n")))
    error = decode_error(fields)
    assert answered == 3
    assert type(error) is (InternalError if error_class is JetstreamError else error_class)
    assert (error.description, error.detail) == ("why", {"offset": 5, "name": "n"})


def test_an_error_of_a_newer_server_keeps_whether_to_retry() -> None:
    def from_server(retriable: bool) -> JetstreamError:
        body = {"code": 500, "err_code": "new_thing", "description": "d", "retriable": retriable}
        return decode_error({"id": 1, "error": body})

    assert type(from_server(retriable=True)) is UnavailableError
    assert type(from_server(retriable=False)) is InternalError


def test_a_detail_named_like_a_parameter_is_harmless() -> None:
    body = {"code": 416, "err_code": "offset_out_of_range", "description": "d", "retriable": False}
    error = decode_error({"id": 1, "error": {**body, "detail": {"self": 1, "description": "x", "offset": 2}}})
    assert isinstance(error, OffsetOutOfRange)
    assert error.detail == {"offset": 2}


def test_no_error_outgrows_a_header() -> None:
    detail: dict[str, int | str] = {f"key{number}": "\x00" * 100_000 for number in range(100)}
    header = encode_error(1, RequestError("\x00\ud800" * 100_000, **detail))
    assert len(header) <= FRAME_HEADER_BYTES_MAX
    assert isinstance(decode_error(response_id(header)[0]), RequestError)


def test_a_response_with_fields_of_a_newer_server_is_read() -> None:
    response = FetchResponse(
        id=1, epoch=2, schema_id=1, start_offset=0, next_offset=3, records=3, high_watermark=3,
        log_start_offset=0, incarnation="i",
    )  # fmt: skip
    fields, _ = response_id(encode_response(response))
    assert decode_response(FetchResponse, {**fields, "compressed": True}) == response
    with pytest.raises(RemoteProtocolError, match="next_offset"):
        decode_response(FetchResponse, {**fields, "next_offset": "3"})


def test_a_response_header_has_its_crc_and_is_refused_without() -> None:
    sealed = encode_response(HelloResponse(id=1, protocol=1, node="n", node_version="0"))
    whole = json.loads(sealed)
    assert list(whole)[-1] == "crc"
    assert int(whole["crc"], 16) == crc32c(sealed[: sealed.index(b',"crc"')] + b"}")
    assert response_id(sealed)[1] == 1
    for damaged in (sealed[:-1], sealed[:-18] + b"}", sealed.replace(b'"n"', b'"m"'), b"", b"{}"):
        with pytest.raises(RemoteProtocolError, match="CRC32C"):
            response_id(damaged)
