"""Notices: what is said is heard, from who knows the token, and nothing else is taken for one."""

import json
from dataclasses import replace

import pytest

from envelope.errors import RemoteProtocolError, Unauthorized
from envelope.types import LogIndex, NodeId
from metadata.discovery.notices import (
    NOTICE_BYTES_MAX,
    NodePlace,
    Notice,
    decode_notice,
    encode_notice,
    is_kin,
)
from metadata.raft.configuration import Configuration

A, B = NodeId("a"), NodeId("b")
NOTICE = Notice(
    NodePlace(A, "h", 1),
    "d",
    cluster_id="c1",
    asks=True,
    voters=(NodePlace(A, "h", 1), NodePlace(B, "h", 2)),
    as_of=LogIndex(7),
    configuration=Configuration((A, B), (A,), (NodeId("c@d"),)),
)


@pytest.mark.parametrize("token", [None, "s"])
@pytest.mark.parametrize("notice", [NOTICE, Notice(NodePlace(A, "h", 1), "d", begins=True)])
def test_what_is_said_is_heard(notice: Notice, token: str | None) -> None:
    assert decode_notice(encode_notice(notice, "ours", token), "ours", token) == notice
    assert decode_notice(encode_notice(notice, "theirs", token), "ours", token) is None


@pytest.mark.parametrize("theirs", [None, "other"])
def test_who_does_not_know_the_token_is_not_heard(theirs: str | None) -> None:
    with pytest.raises(Unauthorized, match="'a' does not prove the token"):
        decode_notice(encode_notice(NOTICE, "ours", theirs), "ours", "s")


def test_a_notice_that_was_changed_on_the_way_proves_nothing() -> None:
    body = json.loads(encode_notice(NOTICE, "ours", "s"))
    body["notice"]["as_of"] = 8
    with pytest.raises(Unauthorized):
        decode_notice(json.dumps(body).encode(), "ours", "s")


@pytest.mark.parametrize(
    "wrong",
    [
        replace(NOTICE, configuration=Configuration((B, A))),
        replace(NOTICE, configuration=Configuration((A,), (), (A,))),
        replace(NOTICE, configuration=Configuration(())),
        replace(NOTICE, source=NodePlace(A, "h", 0)),
        replace(NOTICE, source=NodePlace(NodeId(""), "h", 1)),
        replace(NOTICE, as_of=LogIndex(-1)),
        replace(NOTICE, directory="d" * 256),
    ],
)
def test_what_no_node_says_is_refused(wrong: Notice) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_notice(encode_notice(wrong, "ours", None), "ours", None)


@pytest.mark.parametrize(
    ("said", "own", "voters", "directory", "kin"),
    [
        ("c1", "c1", (), None, True),
        ("c1", "c2", (A,), None, False),
        (None, "c1", (A,), None, False),
        ("c1", None, (A,), None, True),
        ("c1", None, (B,), None, False),
        (None, None, (), None, False),
        # A node that is registered with that very directory is one of ours, whatever it knows.
        (None, "c1", (), "d", True),
        (None, None, (), "d", True),
        (None, "c1", (), "another", False),
    ],
)
def test_a_notice_counts_if_its_node_is_of_this_cluster(
    said: str | None, own: str | None, voters: tuple[NodeId, ...], directory: str | None, *, kin: bool
) -> None:
    assert is_kin(replace(NOTICE, cluster_id=said), own, voters, directory) is kin


def test_a_large_notice_is_not_read() -> None:
    many = tuple(NodePlace(NodeId(f"n{number:05}"), "h", 1) for number in range(2000))
    data = encode_notice(replace(NOTICE, voters=many), "ours", None)
    assert len(data) > NOTICE_BYTES_MAX
    with pytest.raises(RemoteProtocolError, match="bytes"):
        decode_notice(data, "ours", None)
