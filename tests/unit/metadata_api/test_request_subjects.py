"""Names in the subjects of requests."""

import itertools
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from envelope.errors import InvalidName, InvalidSubject, RequestError, Unsupported
from envelope.subjects import covers, first_level, matches
from metadata.api.requests import (
    REQUESTS,
    DeleteGroupRequest,
    GetCursorRequest,
    LimitNamespaceRequest,
    ListCursorsRequest,
    ListStreamsRequest,
    ReadTicketRequest,
    StreamInfoRequest,
    UpdateStreamRequest,
)
from metadata.api.subjects import (
    READ,
    WIDEST_TOKENS,
    named_patterns,
    naming_field,
    request_subject,
    split_subject,
)
from metadata.api.wire import parse_request
from metadata.namespaces import EVERYWHERE

NAMED = sorted(
    operation
    for operation in REQUESTS
    if naming_field(operation) not in (None, "prefix") and operation != READ
)
LISTS = sorted(operation for operation in REQUESTS if operation.endswith(".list"))

tokens = st.text("abcXYZ019_-", min_size=1, max_size=5).filter(lambda token: token[0] != "-")
names = st.lists(tokens, min_size=1, max_size=4).map("/".join)


def payload(**fields: object) -> bytes:
    return json.dumps(fields).encode()


def test_everything_about_one_stream_group_or_consumer_has_its_name() -> None:
    unnamed = {operation for operation in REQUESTS if naming_field(operation) is None}
    assert unnamed == {
        *("cluster.info", "cluster.drain", "cluster.rebalance", "cluster.remove", "cluster.rotate_key"),
        *("cluster.update", "stream.lookup"),
    }
    assert named_patterns() == ["cursor.*.>", "group.*.>", "namespace.*.>", "read.*.>", "stream.*.>"]


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


patterns = st.builds(
    lambda words, tail: ".".join([*words, *tail]),
    st.lists(tokens | st.just("*") | st.just("subject"), min_size=1, max_size=4),
    st.sampled_from([[], [">"]]),
)
readable = st.lists(tokens | st.just("*"), min_size=1, max_size=4).map("/".join)
readable = readable.filter(lambda name: "subject" not in name.split("/")[1:])
"""Streams, and the streams of namespaces."""


def read_request(subject: str, body: bytes = b"") -> ReadTicketRequest:
    request = parse_request(subject, body)
    assert isinstance(request, ReadTicketRequest)
    return request


@given(readable, st.none() | patterns)
def test_a_request_to_read_says_all_in_its_subject(name: str, pattern: str | None) -> None:
    subject = request_subject(READ, {"stream": name, "subject": pattern})
    body = payload(stream=name, subject=pattern)
    assert (
        read_request(subject, body)
        == read_request(subject)
        == ReadTicketRequest(stream=name, subject=pattern)
    )
    assert any(matches(shape, subject) for shape in ("*.*", *named_patterns()))


alike = st.builds(
    lambda words, tail: ".".join([*words, *tail]),
    st.lists(st.sampled_from("ab*"), max_size=3),
    st.sampled_from([["a"], ["*"], [">"]]),
)
"""Patterns of which one often covers another."""


@given(readable, alike, alike)
@example("orders", "a.>", "a.*.>")
@example("orders", "a.>", "a.*")
@example("orders", ">", "*.>")
def test_a_permission_for_a_pattern_allows_what_covers_and_nothing_else(
    name: str, pattern: str, permitted: str
) -> None:
    """NATS compares the tokens of a subject, wildcards among them, with a permission's."""
    permission = f"read.{name.replace('/', '.')}.subject.{permitted}"
    needed = [each for each in (pattern, first_level(pattern)) if each is not None]
    subjects = [request_subject(READ, {"stream": name, "subject": each}) for each in needed]
    assert all(matches(permission, subject) for subject in subjects) == covers(permitted, pattern)
    assert not any(matches(f"read.{name.replace('/', '.')}", subject) for subject in subjects)


@given(
    st.lists(st.sampled_from("ab*"), min_size=1, max_size=3).map("/".join),
    st.none() | alike,
    st.lists(st.sampled_from(["a", "b", "*", "subject"]), max_size=5),
    st.sampled_from(["a", "*", ">"]),
)
@example("a/*", None, ["a"], "*")
@example("a/*", "b.*", ["a"], ">")
def test_who_may_have_a_ticket_for_a_namespace_may_have_one_for_each_of_its_streams(
    names: str, pattern: str | None, words: list[str], tail: str
) -> None:
    permission = ".".join([READ, *words, tail])
    parts = names.split("/")
    streams = {
        "/".join(each)
        for each in itertools.product(*(("a", "b", "zz") if part == "*" else (part,) for part in parts))
    }
    allowed = [
        matches(permission, request_subject(READ, {"stream": stream, "subject": pattern}))
        for stream in (names, *streams)
    ]
    assert allowed[0] == all(allowed[1:])


@pytest.mark.parametrize(
    ("suffix", "body", "error"),
    [
        ("read", payload(stream="orders"), RequestError),
        ("read", b"", RequestError),
        ("read.orders", payload(stream="others"), RequestError),
        ("read.orders", payload(subject="x"), RequestError),
        ("read.orders.subject.x", payload(subject="y"), RequestError),
        ("read.orders.subject.x", payload(subject=None), RequestError),
        ("read.orders.subject.x", payload(stream="orders/subject/x"), RequestError),
        ("read.orders.subject", b"", InvalidSubject),
        ("read.orders.subject.a.>", b"", InvalidSubject),
        ("read.orders.subject." + ".".join(["a"] * WIDEST_TOKENS), b"", InvalidSubject),
        ("read.orders.subject." + ".".join([">"] * (WIDEST_TOKENS + 1)), b"", InvalidSubject),
        ("read.orders.subject.>.a", b"", InvalidSubject),
        ("read.a*", b"", InvalidName),
        ("read.**", b"", InvalidName),
        ("read.orders.*.", b"", InvalidName),
        ("read.*", payload(stream="orders"), RequestError),
        ("read.orders.>", b"", InvalidName),
        ("read.", b"", RequestError),
        ("group.join", payload(group="g"), RequestError),
    ],
)
def test_a_request_for_a_ticket_that_says_too_little_or_two_things_is_refused(
    suffix: str, body: bytes, error: type[RequestError]
) -> None:
    with pytest.raises(error):
        parse_request(suffix, body)


@pytest.mark.parametrize("name", ["orders/subject/x", "a/subject"])
def test_a_stream_whose_name_has_the_word_is_not_mistaken_for_another(name: str) -> None:
    subject = request_subject(READ, {"stream": name})
    with pytest.raises(RequestError):
        parse_request(subject, payload(stream=name))


def test_the_whole_cluster_is_no_name_and_a_namespace_is_one() -> None:
    for names_in_subjects in (False, True):
        whole = parse_request("namespace.limit", payload(streams=9), names_in_subjects=names_in_subjects)
        assert isinstance(whole, LimitNamespaceRequest)
        assert whole.namespace == EVERYWHERE
        one = parse_request(
            "namespace.limit.shop.eu", payload(streams=9), names_in_subjects=names_in_subjects
        )
        assert isinstance(one, LimitNamespaceRequest)
        assert one.namespace == "shop/eu"
    with pytest.raises(RequestError):
        parse_request("namespace.limit.shop", payload(name="pay", streams=9))


@pytest.mark.parametrize("operation", ["namespace.limit", "namespace.info"])
def test_the_systems_own_namespace_has_no_limits(operation: str) -> None:
    with pytest.raises(InvalidName, match="begins with '__'"):
        parse_request(f"{operation}.__cursors", b"")
