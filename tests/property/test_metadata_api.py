"""Requests and responses under any bytes at all."""

import json
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from envelope.errors import JetstreamError, RequestError
from metadata.api.requests import REQUESTS, CreateStreamRequest
from metadata.api.responses import RESPONSES
from metadata.api.wire import decode_response, encode_error, encode_request, parse_request
from metadata.stream_config import StreamConfig
from metadata.stream_patch import StreamPatch, patched
from tests.support.catalogs import configs, patches

suffixes = st.sampled_from(sorted(REQUESTS))
keys = st.sampled_from([*StreamConfig.model_fields, "before", "limit", "offset", "prefix", "compact", "x"])
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(("a", "a.>", "P1D", "all", 65536, 1)),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
objects = st.dictionaries(keys, values, max_size=6).map(lambda body: json.dumps(body).encode())


@given(suffixes, st.binary(max_size=200) | objects)
def test_any_payload_is_a_request_or_a_typed_refusal_that_can_be_told(suffix: str, payload: bytes) -> None:
    request, refusal = None, None
    try:
        request = parse_request(suffix, payload)
    except RequestError as error:
        refusal = error
    if request is not None:
        assert parse_request(suffix, encode_request(request)) == request
    if refusal is not None:
        assert json.loads(encode_error(refusal))["error"]["description"]


@given(suffixes, st.binary(max_size=200) | objects)
def test_any_payload_is_a_response_or_a_typed_error(suffix: str, payload: bytes) -> None:
    model = RESPONSES[suffix]
    try:
        response = decode_response(model, payload)
    except JetstreamError:
        return
    assert isinstance(response, model)


@given(configs)
def test_a_configuration_survives_the_wire(config: StreamConfig) -> None:
    request = parse_request("stream.create", encode_request(CreateStreamRequest.of(config)))
    assert isinstance(request, CreateStreamRequest)
    assert request.config() == config


@given(configs, patches)
def test_a_patch_applied_twice_changes_no_more_than_once(config: StreamConfig, patch: StreamPatch) -> None:
    try:
        once = patched(config, patch)
    except JetstreamError:
        return
    assert patched(once, patch) == once


@given(configs, configs)
def test_a_whole_configuration_as_a_patch_makes_the_two_equal(
    config: StreamConfig, wanted: StreamConfig
) -> None:
    body = wanted.model_dump(mode="json") | {"name": config.name, "replicas": config.replicas}
    body["labels"] = dict.fromkeys(config.labels) | wanted.labels
    result = patched(config, StreamPatch.model_validate(body))
    assert result == wanted.model_copy(update={"name": config.name, "replicas": config.replicas})
    assert result.dedupe_window >= timedelta(0)
