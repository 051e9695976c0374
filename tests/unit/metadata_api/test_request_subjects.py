"""Names in the subjects of requests."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envelope.errors import InvalidName, RequestError, Unsupported
from envelope.subjects import matches
from metadata.api.requests import (
    REQUESTS,
    DeleteGroupRequest,
    GetCursorRequest,
    ListCursorsRequest,
    ListStreamsRequest,
    StreamInfoRequest,
    UpdateStreamRequest,
)
from metadata.api.subjects import named_patterns, naming_field, request_subject, split_subject
from metadata.api.wire import parse_request

NAMED = sorted(operation for operation in REQUESTS if naming_field(operation) not in (None, "prefix"))
LISTS = sorted(operation for operation in REQUESTS if operation.endswith(".list"))

tokens = st.text("abcXYZ019_-", min_size=1, max_size=5).filter(lambda token: token[0] != "-")
names = st.lists(tokens, min_size=1, max_size=4).map("/".join)


def payload(**fields: object) -> bytes:
    return json.dumps(fields).encode()


def test_everything_about_one_stream_group_or_consumer_has_its_name() -> None:
    unnamed = {operation for operation in REQUESTS if naming_field(operation) is None}
    assert unnamed == {
        *("cluster.info", "cluster.drain", "cluster.rebalance", "cluster.remove"),
        "stream.lookup",
    }
    assert named_patterns() == ["cursor.*.>", "group.*.>", "stream.*.>"]


@given(st.sampled_from(NAMED), names)
def test_a_subject_has_the_name_and_gives_it_back(operation: str, name: str) -> None:
    subject = request_subject(operation, {str(naming_field(operation)): name, "before": 1})
    assert split_subject(subject) == (operation, name)
    assert any(matches(pattern, subject) for pattern in named_patterns())
    assert matches(f"*.*.{name.partition('/')[0]}.>", subject) == ("/" in name)


@pytest.mark.parametrize("operation", NAMED)
@pytest.mark.parametrize("name", ["", "a.b", "a b", "a/", "/a", "*", ">", "a/>", "ä", None, 7])
def test_what_is_no_name_stays_out_of_the_subject(operation: str, name: object) -> None:
    assert request_subject(operation, {str(naming_field(operation)): name}) == operation
    assert request_subject(operation, {}) == operation


def test_a_list_is_asked_for_by_its_namespace() -> None:
    assert request_subject("stream.list", {"prefix": "shop/eu/"}) == "stream.list.shop.eu"
    assert request_subject("stream.list", {"prefix": "shop"}) == "stream.list", "also of 'shopping'"
    assert request_subject("stream.list", {"prefix": "/"}) == "stream.list"
    assert request_subject("cursor.list", {"consumer": None, "stream": "a"}) == "cursor.list"
    assert request_subject("cursor.list", {"consumer": "billing"}) == "cursor.list.billing"


@pytest.mark.parametrize("is_required", [False, True])
def test_the_name_may_be_in_the_subject_alone_or_in_both(is_required: bool) -> None:
    def parse(suffix: str, **fields: object) -> object:
        return parse_request(suffix, payload(**fields), names_in_subjects=is_required)

    assert parse("stream.info.shop.orders") == StreamInfoRequest(name="shop/orders")
    assert parse("stream.info.shop.orders", name="shop/orders") == StreamInfoRequest(name="shop/orders")
    assert parse("stream.update.a", labels={}) == UpdateStreamRequest(name="a", labels={})
    assert parse("group.delete.a.b", force=True) == DeleteGroupRequest(group="a/b", force=True)
    assert parse("cursor.get.a", stream="s") == GetCursorRequest(consumer="a", stream="s")
    assert parse("stream.list.shop", limit=3) == ListStreamsRequest(prefix="shop/", limit=3)
    assert parse("stream.list.shop", prefix="shop/e") == ListStreamsRequest(prefix="shop/e")
    assert parse("stream.list", prefix="sh") == ListStreamsRequest(prefix="sh")
    assert parse("cursor.list", consumer="a") == ListCursorsRequest(consumer="a")


@pytest.mark.parametrize(
    ("suffix", "fields"),
    [
        ("stream.info.shop.orders", {"name": "shop/other"}),
        ("stream.info.shop.orders", {"name": "shop.orders"}),
        ("stream.info.shop.orders", {"name": 7}),
        ("group.delete.a", {"group": "b"}),
        ("cursor.get.a", {"consumer": "b", "stream": "s"}),
        ("stream.list.shop", {"prefix": "shop"}),
        ("stream.list.shop", {"prefix": "hr/"}),
        ("cursor.list.a", {"consumer": "b"}),
    ],
)
def test_another_name_in_the_payload_is_refused(suffix: str, fields: dict[str, object]) -> None:
    with pytest.raises(RequestError) as refused:
        parse_request(suffix, payload(**fields))
    assert refused.value.detail["field"] in fields


@pytest.mark.parametrize("suffix", ["stream.info.a b", "stream.info.a..b", "stream.info.", "stream.info.*"])
def test_a_name_in_the_subject_follows_the_grammar_of_names(suffix: str) -> None:
    with pytest.raises((InvalidName, RequestError)):
        parse_request(suffix, b"")


@pytest.mark.parametrize("suffix", ["cluster.info.a", "stream.lookup.a", "cluster", "", "stream.inf.a"])
def test_a_name_where_none_belongs_is_no_request(suffix: str) -> None:
    with pytest.raises(Unsupported):
        parse_request(suffix, b"")


@pytest.mark.parametrize("operation", NAMED)
def test_a_name_in_the_payload_alone_is_refused_where_it_must_be_in_the_subject(operation: str) -> None:
    field = str(naming_field(operation))
    if operation in LISTS:
        return
    with pytest.raises(RequestError, match="must be in the subject") as refused:
        parse_request(operation, payload(**{field: "a"}), names_in_subjects=True)
    assert refused.value.detail == {"field": field}
