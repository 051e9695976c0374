"""Tickets and the keys that sign them: who has no key makes none, and no bit of one can be changed."""

from base64 import urlsafe_b64encode
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envelope.errors import InvalidTicket
from envelope.types import LogIndex, TimestampUs
from metadata.catalog import snapshot
from metadata.catalog.commands import RotateTicketKey, decode_command, encode_command
from metadata.catalog.tables import TICKET_KEYS_MAX
from metadata.tickets import SECRET_BYTES, Ticket, TicketKey, opened, signed
from tests.support.catalogs import apply, catalog_of


def key(number: int) -> TicketKey:
    return TicketKey(f"k{number}", f"{number:0{2 * SECRET_BYTES}x}", TimestampUs(number))


KEYS = (key(1), key(2))
NAMES = st.none() | st.text(min_size=1, max_size=20)
TICKETS = st.builds(
    Ticket,
    key_id=st.just("k2"),
    expires=st.integers(0, 1 << 60).map(TimestampUs),
    stream=NAMES,
    subject=NAMES,
    group=NAMES,
)


@given(TICKETS)
def test_a_signed_ticket_is_opened_with_its_key_and_with_no_other(ticket: Ticket) -> None:
    text = signed(ticket, KEYS[1])
    assert opened(text, KEYS) == ticket
    for others in ((), KEYS[:1], (replace(KEYS[1], secret=key(3).secret),)):
        with pytest.raises(InvalidTicket):
            opened(text, others)


@given(TICKETS, st.data())
def test_a_ticket_of_which_any_bit_is_another_is_refused(ticket: Ticket, data: st.DataObject) -> None:
    text = signed(ticket, KEYS[1]).encode()
    place = data.draw(st.integers(0, 8 * len(text) - 1))
    changed = bytearray(text)
    changed[place // 8] ^= 1 << place % 8
    with pytest.raises(InvalidTicket):
        opened(changed.decode("utf-8", "replace"), KEYS)


@given(TICKETS, st.data())
def test_a_ticket_that_is_cut_or_longer_is_refused(ticket: Ticket, data: st.DataObject) -> None:
    text = signed(ticket, KEYS[1])
    cut = text[: data.draw(st.integers(0, len(text) - 1))]
    for changed in (cut, text + data.draw(st.text(min_size=1, max_size=4)), text + "="):
        with pytest.raises(InvalidTicket):
            opened(changed, KEYS)


@given(st.text(max_size=200) | st.binary(max_size=60).map(lambda body: urlsafe_b64encode(body).decode()))
def test_whatever_else_is_no_ticket(text: str) -> None:
    with pytest.raises(InvalidTicket):
        opened(text, KEYS)


@given(TICKETS, TICKETS)
def test_the_body_of_one_ticket_has_not_the_signature_of_another(first: Ticket, second: Ticket) -> None:
    if first == second:
        return
    body, signature = signed(first, KEYS[1]).split(".")[0], signed(second, KEYS[1]).split(".")[1]
    with pytest.raises(InvalidTicket):
        opened(f"{body}.{signature}", KEYS)


def test_a_key_is_in_no_repr() -> None:
    assert key(7).secret not in f"{key(7)!r} {RotateTicketKey(key(7), None)!r}"


def test_the_newest_two_keys_are_kept_and_who_is_second_changes_nothing() -> None:
    catalog = catalog_of()
    for command, kept in (
        (RotateTicketKey(key(1), None), [1]),
        (RotateTicketKey(key(9), None), [1]),
        (RotateTicketKey(key(1), "k1"), [1]),
        (RotateTicketKey(key(2), "k1"), [1, 2]),
        (RotateTicketKey(key(3), "k2"), [2, 3]),
        (RotateTicketKey(key(4), "k2"), [2, 3]),
        (RotateTicketKey(key(4), "k3", revoke=True), [4]),
    ):
        apply(catalog, command)
        assert catalog.ticket_keys == tuple(map(key, kept))
        assert len(catalog.ticket_keys) <= TICKET_KEYS_MAX
    catalog.audit()
    restored = snapshot.decode(snapshot.encode(catalog))
    assert restored.ticket_keys == catalog.ticket_keys
    restored.audit()


def test_the_command_is_read_back() -> None:
    command = RotateTicketKey(key(2), "k1", revoke=True)
    assert decode_command(encode_command(command), LogIndex(7)) == command
