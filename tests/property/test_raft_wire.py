"""Messages between voters survive the wire, whatever pieces they arrive in, and damage is told."""

from typing import Any, get_args

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from envelope.errors import RemoteProtocolError
from envelope.types import LogIndex, NodeId, Term
from metadata.limits import ENTRY_BYTES_MAX
from metadata.raft.configuration import Configuration
from metadata.raft.messages import voter_messages as messages
from metadata.raft.messages.node_messages import NodeMessage
from metadata.raft.messages.observer_messages import CommittedEntries, CommittedState, ObserverMessage
from metadata.raft.messages.voter_messages import AppendRequest, Heartbeat, SnapshotRequest
from metadata.raft.messages.wire import MESSAGE_BYTES_MAX, Forwarded, MessageReader, Sent, encode
from metadata.raft.state import Entry, Snapshot

A, B = NodeId("a"), NodeId("b")
CHANGING = Configuration((A,), outgoing=(A, B), learners=(B,))
NUMBERS = st.integers(0, 2**64 - 1)
SPECIAL: dict[str, st.SearchStrategy[Any]] = {
    "source": st.just(A),
    "target": st.just(B),
    "node": st.text(max_size=130),
    "granted": st.booleans(),
    "transferred": st.booleans(),
    "is_empty": st.booleans(),
    "payloads": st.lists(st.binary(max_size=50), max_size=4).map(tuple),
    "snapshot": st.builds(
        Snapshot,
        NUMBERS,
        NUMBERS,
        st.binary(max_size=200),
        st.sampled_from((None, Configuration((A, B)), CHANGING)),
    ),
}
KINDS: list[type[Any]] = [
    Forwarded,
    *get_args(NodeMessage),
    *get_args(ObserverMessage),
    *(
        kind
        for kind in vars(messages).values()
        if isinstance(kind, type)
        and issubclass(kind, messages.MessageHeader)
        and kind is not messages.MessageHeader
    ),
]


@st.composite
def appends(draw: st.DrawFn) -> AppendRequest:
    """An append as a leader can send it."""
    previous, count = draw(st.integers(0, 2**64 - 9)), draw(st.integers(0, 4))
    previous_term, *terms, term = sorted(draw(st.lists(NUMBERS, min_size=count + 2, max_size=count + 2)))
    entries = tuple(
        Entry(LogIndex(index), Term(own_term), draw(st.binary(max_size=50)))
        for index, own_term in enumerate(terms, previous + 1)
    )
    commit = LogIndex(draw(NUMBERS))
    return AppendRequest(
        source=A,
        target=B,
        term=Term(term),
        previous_index=LogIndex(previous),
        previous_term=Term(previous_term),
        entries=entries,
        commit=commit,
    )


COMMITTED = appends().map(lambda a: CommittedEntries(A, B, a.previous_index, a.previous_term, a.entries))
MESSAGES: st.SearchStrategy[Any] = (
    appends()
    | COMMITTED
    | st.sampled_from(sorted(set(KINDS) - {AppendRequest, CommittedEntries}, key=str)).flatmap(
        lambda kind: st.builds(kind, **{name: SPECIAL.get(name, NUMBERS) for name in kind.__match_args__})
    )
).filter(lambda sent: not isinstance(sent, SnapshotRequest) or sent.snapshot.term <= sent.term)


def test_every_kind_of_message_has_bytes() -> None:
    assert len(KINDS) == 23


@given(st.lists(MESSAGES, max_size=5), st.lists(st.integers(1, 60)))
def test_messages_arrive_as_they_left_in_any_pieces(sent: list[Sent], cuts: list[int]) -> None:
    data = b"".join(map(encode, sent))
    reader = MessageReader(A, B)
    got: list[Sent] = []
    for cut in [*cuts, len(data)]:
        got += reader.feed(data[:cut])
        data = data[cut:]
    assert got == sent


@given(MESSAGES, st.data())
def test_a_flipped_bit_is_never_another_message(message: Sent, data: st.DataObject) -> None:
    frame = bytearray(encode(message))
    place = data.draw(st.integers(0, len(frame) * 8 - 1))
    frame[place // 8] ^= 1 << place % 8
    reader = MessageReader(A, B)
    try:
        got = list(reader.feed(bytes(frame)))
    except RemoteProtocolError:
        return
    assert got == [], "a longer length waits for more"


@pytest.mark.parametrize(
    "entries",
    [[(2, 5), (4, 5)], [(3, 5), (3, 5)], [(4, 5)], [(3, 6), (4, 5)], [(3, 3)], [(3, 8)]],
)
def test_entries_that_no_leader_has_are_refused(entries: list[tuple[int, int]]) -> None:
    made = tuple(Entry(LogIndex(index), Term(term), b"x") for index, term in entries)
    append = AppendRequest(
        source=A,
        target=B,
        term=Term(7),
        previous_index=LogIndex(2),
        previous_term=Term(4),
        entries=made,
        commit=LogIndex(0),
    )
    with pytest.raises(RemoteProtocolError, match="do not follow each other"):
        list(MessageReader(A, B).feed(encode(append)))
    if max(term for _, term in entries) < append.term:  # a voter that gives entries names no term of its own
        committed = CommittedEntries(A, B, append.previous_index, append.previous_term, made)
        with pytest.raises(RemoteProtocolError, match="do not follow each other"):
            list(MessageReader(A, B).feed(encode(committed)))


def test_a_snapshot_of_a_later_term_than_its_leaders_is_refused() -> None:
    sent = SnapshotRequest(A, B, Term(3), Snapshot(LogIndex(2), Term(4), b""))
    with pytest.raises(RemoteProtocolError, match="of a later term"):
        list(MessageReader(A, B).feed(encode(sent)))


@pytest.mark.parametrize("kind", [SnapshotRequest, CommittedState])
@pytest.mark.parametrize("damage", [(b"a", b"b"), (b'"a"', b"1  "), (b"voters", b"voter:")])
def test_a_snapshot_with_members_that_make_no_sense_is_refused(
    kind: type[SnapshotRequest | CommittedState], damage: tuple[bytes, bytes]
) -> None:
    snapshot = Snapshot(LogIndex(2), Term(1), b"state", CHANGING)
    is_request = kind is SnapshotRequest
    sent = SnapshotRequest(A, B, Term(1), snapshot) if is_request else CommittedState(A, B, snapshot)
    body = encode(sent)[8:].replace(*damage, 1)
    head = len(body).to_bytes(4, "little") + crc32c(body).to_bytes(4, "little")
    with pytest.raises(RemoteProtocolError, match="makes no sense: a metadata configuration"):
        list(MessageReader(A, B).feed(head + body))


def test_an_entry_with_members_that_make_no_sense_is_refused() -> None:
    """Else the log would refuse it, and the voter stop."""
    entry = Entry(LogIndex(1), Term(1), bytes(16) + b'{"voters":["a"],"witnesses":[]}')
    committed = CommittedEntries(A, B, LogIndex(0), Term(0), (entry,))
    with pytest.raises(RemoteProtocolError, match="makes no sense: a metadata configuration"):
        list(MessageReader(A, B).feed(encode(committed)))


def test_a_snapshot_without_members_is_sent_as_ever() -> None:
    """Voters of earlier versions know no other."""
    snapshot = Snapshot(LogIndex(2), Term(1), b"state")
    assert encode(SnapshotRequest(A, B, Term(1), snapshot))[8:].hex() == (
        "08" + "0100000000000000" + "0200000000000000" + "0100000000000000" + b"state".hex()
    )


def test_an_entry_that_no_disk_takes_is_refused() -> None:
    entry = Entry(LogIndex(1), Term(1), bytes(ENTRY_BYTES_MAX + 1))
    append = AppendRequest(
        source=A,
        target=B,
        term=Term(1),
        previous_index=LogIndex(0),
        previous_term=Term(0),
        entries=(entry,),
        commit=LogIndex(0),
    )
    for sent in (append, Forwarded(A, B, (entry.payload,))):
        with pytest.raises(RemoteProtocolError, match="an entry of"):
            list(MessageReader(A, B).feed(encode(sent)))


@pytest.mark.parametrize(
    ("frame", "problem"),
    [
        (b"", "no known kind"),
        (b"\x18" + bytes(8), "no known kind"),
        (b"\x10\xff", "makes no sense"),
        (b"\x0d" + bytes(8), "makes no sense"),
        (b"\x11" + bytes(9), "1 bytes too many"),
        (b"\x09" + bytes(8), "makes no sense"),
        (b"\x0b" + bytes(9), "1 bytes too many"),
        (b"\x05" + bytes(32 + 16) + b"\x05\0\0\0abcd", "5 bytes wanted, 4 left"),
        (b"\x08" + bytes(8 + 15), "makes no sense"),
        (b"\x88" + bytes(8) + b"\xff\0\0\0", "makes no sense"),
        (b"\x89" + bytes(24), "no known kind"),
    ],
)
def test_what_is_no_message_is_refused(frame: bytes, problem: str) -> None:
    head = len(frame).to_bytes(4, "little") + crc32c(frame).to_bytes(4, "little")
    with pytest.raises(RemoteProtocolError, match=problem):
        list(MessageReader(A, B).feed(head + frame))


def test_a_length_that_no_message_has_is_refused_before_it_is_waited_for() -> None:
    with pytest.raises(RemoteProtocolError, match="bytes from a"):
        list(MessageReader(A, B).feed((MESSAGE_BYTES_MAX + 1).to_bytes(4, "little") + bytes(4)))


def test_what_arrives_is_said_to_come_from_the_other_end_of_the_connection() -> None:
    heartbeat = Heartbeat(NodeId("x"), NodeId("y"), Term(3), LogIndex(2), 1)
    assert list(MessageReader(A, B).feed(encode(heartbeat))) == [Heartbeat(A, B, Term(3), LogIndex(2), 1)]


def test_entries_and_snapshots_keep_their_bytes() -> None:
    entries = tuple(Entry(LogIndex(index), Term(1), bytes([index]) * index) for index in range(1, 4))
    append = AppendRequest(
        source=A,
        target=B,
        term=Term(1),
        previous_index=LogIndex(0),
        previous_term=Term(0),
        entries=entries,
        commit=LogIndex(0),
    )
    install = SnapshotRequest(A, B, Term(1), Snapshot(LogIndex(9), Term(1), b"state"))
    assert list(MessageReader(A, B).feed(encode(append) + encode(install))) == [append, install]
