"""What a reader's tickets permit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from envelope.errors import Forbidden, InvalidTicket, JetstreamError, LimitReached, Unauthorized
from envelope.subjects import covers, matches
from envelope.types import TimestampUs
from jetstream.protocol import rights
from jetstream.protocol.requests import Fetch, GetMetadata, Hello, ListOffsets, ShowTicket
from jetstream.protocol.rights import Gate, ReaderRights, Requirement
from metadata.tickets import Ticket, TicketKey, signed
from tests.support.member_requests import member_requests

KEY = TicketKey("k1", "5e" * 32, TimestampUs(0))
NEXT_KEY = TicketKey("k2", "7f" * 32, TimestampUs(0))
LIFETIME, GRACE = 300, 100


class Cluster:
    """Keys, a clock, and which streams are partitions."""

    def __init__(self) -> None:
        self.keys: tuple[TicketKey, ...] = (KEY,)
        self.now = TimestampUs(0)

    def rights(self, require: Requirement = "ticket", token: str | None = None) -> ReaderRights:
        return ReaderRights(
            Gate(
                require,
                None if token is None else SecretStr(token),
                lambda: self.keys,
                lambda: self.now,
                GRACE,
            )
        )

    def holding(self, *tickets: dict[str, str]) -> ReaderRights:
        """Return the rights of a connection on which these tickets were shown."""
        found = self.rights()
        for ticket in tickets:
            found.show(self.ticket(**ticket))
        return found

    def ticket(self, **right: str) -> SecretStr:
        expires = TimestampUs(self.now + LIFETIME)
        return SecretStr(signed(Ticket(key_id="k1", expires=expires, **right), KEY))


def whole_of(stream: str) -> str | None:
    """Every stream whose last part is a number is a partition."""
    whole, _, number = stream.rpartition("/")
    return whole if whole and number.isdecimal() else None


def fetch(stream: str, subject: str | None = None) -> Fetch:
    return Fetch(id=1, stream=stream, offset=0, subject=subject, short_circuit=True)


def hello(token: SecretStr | None = None, ticket: SecretStr | None = None) -> Hello:
    return Hello(id=0, protocol=1, token=token, ticket=ticket)


@pytest.mark.parametrize(
    ("require", "token", "shown", "refused"),
    [
        ("none", None, {}, None),
        ("none", None, {"ticket": "rubbish"}, None),
        ("token", "t", {"token": "t"}, None),
        ("token", "t", {}, Unauthorized),
        ("token", "t", {"token": "u"}, Unauthorized),
        ("token", "t", {"ticket": "good"}, Unauthorized),
        ("ticket", None, {"ticket": "good"}, None),
        ("ticket", None, {}, Unauthorized),
        ("ticket", None, {"ticket": "rubbish"}, InvalidTicket),
        ("ticket", None, {"token": "t"}, Unauthorized),
        ("ticket", "t", {"token": "t"}, None),
        ("ticket", "t", {"token": "u"}, Unauthorized),
        ("ticket", "t", {"ticket": "good"}, None),
        ("ticket", "t", {"token": "u", "ticket": "good"}, Unauthorized),
    ],
)
def test_who_is_let_in(
    require: Requirement, token: str | None, shown: dict[str, str], refused: type[JetstreamError] | None
) -> None:
    cluster = Cluster()
    found = cluster.rights(require, token)
    good = {"good": cluster.ticket(stream="orders")}
    said = hello(**{name: good.get(text, SecretStr(text)) for name, text in shown.items()})
    if refused is None:
        found.admit(said)
        assert found.sees_all == ("ticket" not in shown or require == "none")
        return
    with pytest.raises(refused) as told:
        found.admit(said)
    assert (told.value.detail.get("wants") == "ticket") == (require == "ticket" and not shown)
    assert not found.sees_all


def test_a_ticket_is_for_its_stream_with_its_partitions_and_for_no_other() -> None:
    found = Cluster().holding({"stream": "shop/orders"})
    for stream in ("shop/orders", "shop/orders/0", "shop/orders/17"):
        assert found.permitted(fetch(stream), whole_of) == fetch(stream)
        assert found.sees(stream, whole_of)
        offsets = ListOffsets(id=1, stream=stream, at="latest")
        assert found.permitted(offsets, whole_of) == offsets
        metadata = GetMetadata(id=1, streams=[stream])
        assert found.permitted(metadata, whole_of) == metadata
    for stream in ("shop", "shop/order", "shop/orders2", "shop/orders/x", "orders", "", "shop/orders/0/1"):
        assert not found.sees(stream, whole_of)
        for request in (
            fetch(stream),
            ListOffsets(id=1, stream=stream, at="earliest"),
            GetMetadata(id=1, streams=["shop/orders", stream]),
        ):
            with pytest.raises(Forbidden):
                found.permitted(request, whole_of)
    for asked in member_requests("shop/orders"):
        with pytest.raises(Forbidden):
            found.permitted(asked, whole_of)


def test_a_ticket_for_a_namespace_is_for_the_streams_directly_in_it() -> None:
    found = Cluster().holding({"stream": "shop/*"})
    for stream in ("shop/orders", "shop/orders/0", "shop/0"):
        assert found.permitted(fetch(stream), whole_of) == fetch(stream)
        assert found.sees(stream, whole_of)
    for stream in ("shop", "shop/eu/orders", "hr/orders", "orders", "shops/orders", ""):
        assert not found.sees(stream, whole_of)
        with pytest.raises(Forbidden):
            found.permitted(fetch(stream), whole_of)


def test_tickets_for_a_namespace_and_for_its_streams_are_both_good() -> None:
    cluster = Cluster()
    found = cluster.holding({"stream": "*", "subject": "de"}, {"stream": "orders", "subject": "fr"})
    for subject in ("de", "fr"):
        permitted = found.permitted(fetch("orders", subject), whole_of)
        assert isinstance(permitted, Fetch)
        assert (permitted.subject, permitted.short_circuit) == (subject, None)
    with pytest.raises(Forbidden, match="are for de, fr"):
        found.permitted(fetch("orders"), whole_of)
    selected = found.permitted(fetch("returns"), whole_of)
    assert isinstance(selected, Fetch)
    assert selected.subject == "de"
    cluster.now = TimestampUs(LIFETIME + GRACE + 1)
    with pytest.raises(InvalidTicket):
        found.permitted(fetch("returns"), whole_of)
    found.show(cluster.ticket(stream="*"))
    assert found.permitted(fetch("orders"), whole_of) == fetch("orders")


def test_a_ticket_for_a_group_is_for_that_group_and_reads_nothing() -> None:
    found = Cluster().holding({"group": "billing"})
    for request in member_requests("billing"):
        assert found.permitted(request, whole_of) == request
    found.require_membership("billing")
    for request in (*member_requests("shipping"), fetch("billing")):
        with pytest.raises(Forbidden):
            found.permitted(request, whole_of)
    with pytest.raises(Forbidden):
        found.require_membership("shipping")


def test_a_ticket_for_a_subject_selects_it_where_the_reader_does_not_and_sends_no_file() -> None:
    found = Cluster().holding({"stream": "orders", "subject": "orders.eu.*"})
    chosen = found.permitted(fetch("orders"), whole_of)
    assert isinstance(chosen, Fetch)
    assert (chosen.subject, chosen.short_circuit) == ("orders.eu.*", None)
    assert found.permitted(chosen, whole_of) == chosen, "it may be looked at again"
    narrower = found.permitted(fetch("orders", "orders.eu.de"), whole_of)
    assert isinstance(narrower, Fetch)
    assert (narrower.subject, narrower.short_circuit) == ("orders.eu.de", None)
    for subject in ("orders.>", "orders.*.de", "orders.us.ny", "orders.eu.>", ">", ""):
        with pytest.raises(Forbidden, match=r"orders\.eu\.\*"):
            found.permitted(fetch("orders", subject), whole_of)


def test_of_several_subjects_the_reader_says_which() -> None:
    both = [{"stream": "orders", "subject": f"orders.{country}"} for country in ("de", "fr")]
    found = Cluster().holding(*both)
    with pytest.raises(Forbidden):
        found.permitted(fetch("orders"), whole_of)
    for country in ("de", "fr"):
        permitted = found.permitted(fetch("orders", f"orders.{country}"), whole_of)
        assert isinstance(permitted, Fetch)
        assert permitted.subject == f"orders.{country}"


def test_a_ticket_ends_after_its_grace_and_a_newer_one_takes_its_place() -> None:
    cluster = Cluster()
    found = cluster.holding({"stream": "orders"}, {"stream": "orders", "subject": "orders.de"})
    old = cluster.ticket(stream="orders")
    cluster.now = TimestampUs(LIFETIME + GRACE)
    found.permitted(fetch("orders"), whole_of)
    cluster.now = TimestampUs(LIFETIME + GRACE + 1)
    for request in (fetch("orders"), fetch("orders", "orders.de"), GetMetadata(id=1, streams=["orders"])):
        with pytest.raises(InvalidTicket):
            found.permitted(request, whole_of)
    with pytest.raises(InvalidTicket):
        found.show(old)
    assert not found.sees("orders", whole_of)
    found.show(cluster.ticket(stream="orders", subject="orders.de"))
    found.permitted(fetch("orders", "orders.de"), whole_of)
    with pytest.raises(InvalidTicket):  # not forbidden: a new one may do
        found.permitted(fetch("orders", "orders.fr"), whole_of)


def test_a_ticket_ends_with_its_key() -> None:
    cluster = Cluster()
    found = cluster.holding({"stream": "orders"}, {"group": "billing"})
    old = cluster.ticket(stream="orders")
    cluster.keys = (KEY, NEXT_KEY)
    found.permitted(fetch("orders"), whole_of)
    cluster.keys = (NEXT_KEY,)
    with pytest.raises(InvalidTicket):
        found.permitted(fetch("orders"), whole_of)
    with pytest.raises(InvalidTicket):
        found.require_membership("billing")
    with pytest.raises(InvalidTicket):
        found.show(old)


def test_clocks_of_nodes_that_differ_by_the_grace_end_no_ticket_that_has_just_been_given_out() -> None:
    cluster = Cluster()
    ticket = cluster.ticket(stream="orders")
    for skew in (-GRACE, LIFETIME + GRACE):  # of the node that it is shown to
        cluster.now = TimestampUs(skew)
        found = cluster.rights()
        found.show(ticket)
        found.permitted(fetch("orders"), whole_of)


def test_tickets_of_one_connection_are_bounded_and_those_that_have_ended_make_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rights, "TICKETS_MAX", 3)
    cluster = Cluster()
    found = cluster.holding(*({"stream": f"s{number}"} for number in range(3)))
    found.show(cluster.ticket(stream="s0"))
    with pytest.raises(LimitReached):
        found.show(cluster.ticket(stream="s3"))
    cluster.now = TimestampUs(LIFETIME + GRACE + 1)
    found.show(cluster.ticket(stream="s3"))
    assert found.sees("s3", whole_of)


TOKENS = st.sampled_from(["a", "b", "*"])
PATTERNS = st.builds(
    lambda tokens, tail: ".".join([*tokens, *tail]),
    st.lists(TOKENS, min_size=1, max_size=3),
    st.sampled_from([[], [">"]]),
)
SUBJECTS = st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=4).map(".".join)
RIGHTS = st.lists(
    st.tuples(st.sampled_from(["s", "t", "s/0", "*", "s/*"]), st.none() | PATTERNS), min_size=0, max_size=3
)


def is_of(stream: str, names: str) -> bool:
    """Return whether a ticket for ``names`` is for the stream."""
    patterns = [names.replace("*", part) for part in ("s", "t", "u", "0", "1")]
    return any(each in patterns for each in (stream, whole_of(stream)))


@given(RIGHTS, st.sampled_from(["s", "t", "s/0", "s/1", "t/1", "u", "s/t"]), st.none() | PATTERNS, SUBJECTS)
def test_nothing_outside_of_the_tickets_is_permitted(
    granted: list[tuple[str, str | None]], stream: str, pattern: str | None, subject: str
) -> None:
    """The records that come are those the reader asked for, and each is allowed by one of the tickets."""
    found = Cluster().holding(
        *(
            {"stream": name} if filter_ is None else {"stream": name, "subject": filter_}
            for name, filter_ in granted
        )
    )
    try:
        permitted = found.permitted(fetch(stream, pattern), whole_of)
    except Forbidden:
        covering = [
            filter_
            for name, filter_ in granted
            if is_of(stream, name) and (filter_ is None or (pattern is not None and covers(filter_, pattern)))
        ]
        assert not covering, "what one ticket allows is permitted"
        return
    assert isinstance(permitted, Fetch)
    comes = permitted.subject is None or matches(permitted.subject, subject)
    if comes:
        assert pattern is None or matches(pattern, subject)
        assert any(
            is_of(stream, name) and (filter_ is None or matches(filter_, subject))
            for name, filter_ in granted
        )
    is_whole = any(is_of(stream, name) and filter_ is None for name, filter_ in granted)
    assert permitted.short_circuit is (True if is_whole else None)


def test_more_tickets_are_shown_one_by_one() -> None:
    found = Cluster().holding({"stream": "orders"})
    show = ShowTicket(id=1, ticket=SecretStr("x"))
    assert found.permitted(show, whole_of) is show
