"""Nodes agree on the voters once; whatever contradicts that is told with names."""

import pytest

from envelope.errors import InvalidConfig, RemoteProtocolError, Unauthorized
from envelope.types import MonotonicNs
from metadata.formation.machine import (
    HEARD_NS,
    Formation,
    FormationRecord,
    NoticeReceived,
    Persist,
    PublishNotice,
    Tick,
)
from metadata.formation.notices import (
    NOTICE_BYTES_MAX,
    Notice,
    decode_notice,
    encode_notice,
    voters_of,
)
from tests.support.formations import FormingCluster, FormingNode, candidate

A, B, C, D = (candidate(name) for name in "abcd")
ABC, BCD = (A, B, C), (B, C, D)
NOW = MonotonicNs(1)


def node(own: str = "a", record: FormationRecord | None = None) -> Formation:
    return Formation(candidate(own), 3, record or FormationRecord())


def hear(formation: Formation, notice: Notice) -> list[Notice | FormationRecord]:
    """What it stores and says for a notice."""
    done: list[Notice | FormationRecord] = []
    for action in formation.handle(NoticeReceived(notice), NOW):
        if isinstance(action, Persist):
            done.append(action.record)
        done.append(action.then.notice if isinstance(action, Persist) else action.notice)
    return done


def test_three_nodes_that_hear_each_other_become_the_voters() -> None:
    cluster = FormingCluster("abc")
    cluster.run()
    assert {node.record for node in cluster.nodes} == {FormationRecord(ABC, voters_of(ABC))}
    cluster.check()


def test_too_few_nodes_wait_and_say_whom_they_hear() -> None:
    cluster = FormingCluster("ab")
    cluster.run()
    assert [node.record for node in cluster.nodes] == [FormationRecord()] * 2
    assert cluster.nodes[0].formation.heard == ("a", "b")


def test_of_more_nodes_the_first_are_the_voters_and_the_others_join_them() -> None:
    cluster = FormingCluster("dbcea")
    cluster.run()
    assert {node.record.formed for node in cluster.nodes} == {voters_of(ABC)}
    assert [bool(node.record.promised) for node in cluster.nodes] == [False, True, True, False, True]
    cluster.check()


def test_a_node_that_comes_when_the_cluster_is_there_joins_it() -> None:
    cluster = FormingCluster("bcd")
    cluster.run()
    cluster.nodes.append(FormingNode(A, 3))
    cluster.run()
    assert cluster.nodes[-1].record == FormationRecord((), voters_of(BCD))
    cluster.check()


def test_nobody_promises_before_all_of_a_view_have_that_view() -> None:
    formation = node()
    assert hear(formation, Notice(B, 3, (A, B, C))) == []
    assert hear(formation, Notice(C, 3, (B, C))) == []
    record, said = hear(formation, Notice(C, 3, (A, B, C)))
    assert record == FormationRecord(ABC)
    assert said == Notice(A, 3, (), ABC)


def test_only_the_first_of_a_view_begins_and_a_promise_is_followed() -> None:
    formation = node("b")
    hear(formation, Notice(A, 3, ABC))
    assert hear(formation, Notice(C, 3, ABC)) == []
    assert hear(formation, Notice(A, 3, (), ABC)) == [FormationRecord(ABC), Notice(B, 3, (), ABC)]


def test_the_last_promise_forms_the_cluster() -> None:
    formation = node("b", FormationRecord(ABC))
    assert hear(formation, Notice(A, 3, (), ABC)) == []
    formed = voters_of(ABC)
    assert hear(formation, Notice(C, 3, (), ABC)) == [
        FormationRecord(ABC, formed),
        Notice(B, 3, (), ABC, formed),
    ]
    assert hear(formation, Notice(D, 3, BCD)) == [Notice(B, 3, (), ABC, formed)], (
        "it answers who looks for it"
    )
    assert hear(formation, Notice(A, 3, (), ABC, formed)) == []
    assert formation.handle(Tick(), NOW) == ()


def test_a_node_that_is_not_heard_any_more_is_no_candidate() -> None:
    formation = node()
    hear(formation, Notice(B, 3))
    (said,) = formation.handle(Tick(), MonotonicNs(NOW + HEARD_NS - 1))
    assert said == PublishNotice(Notice(A, 3, (A, B)))
    (said,) = formation.handle(Tick(), MonotonicNs(NOW + HEARD_NS))
    assert said == PublishNotice(Notice(A, 3, (A,)))


def test_a_promise_that_cannot_be_formed_any_more_lets_a_node_join_the_cluster_that_is() -> None:
    formation = node("a", FormationRecord(ABC))
    assert hear(formation, Notice(D, 3, (), BCD, voters_of(BCD)))[0] == FormationRecord(ABC, voters_of(BCD))


DEF = (D, candidate("e"), candidate("f"))


def test_a_voter_whose_directory_was_lost_belongs_to_its_cluster_again() -> None:
    formation = node()
    [written] = formation.handle(NoticeReceived(Notice(B, 0, (), ABC, voters_of(ABC))), NOW)
    assert isinstance(written, Persist)
    assert written.record == FormationRecord((), voters_of(ABC))


@pytest.mark.parametrize(
    ("record", "heard", "problem"),
    [
        (None, Notice(B, 5), "node a waits for 3 voters, and node b for 5"),
        (None, Notice(candidate("a", directory="other"), 3), "directory dir-a here, other there"),
        (None, Notice(candidate("a", host="other"), 3), "is at host-a:9294 here, and at other:9294"),
        (None, Notice(candidate("b", host="host-a"), 3), "is at host-a:9294, where node b says that it is"),
        (None, Notice(B, 3, (), (candidate("a", host="h"), B, C)), "node b has promised it as a at h:9294"),
        (ABC, Notice(B, 3, (), BCD), "promised to form a, b, c, and node b b, c, d: that can never be"),
        (ABC, Notice(candidate("b", directory="new"), 3), "which is b at host-b:9294 with directory new now"),
        (ABC, Notice(D, 3, (), DEF, voters_of(DEF)), "there is a cluster of d, e, f"),
        (
            None,
            Notice(B, 3, (), (), voters_of((candidate("a", host="h"), B, C))),
            "is a voter of the cluster of a, b, c, but not with",
        ),
    ],
)
def test_contradictions_are_told_with_names(
    record: tuple[object, ...] | None, heard: Notice, problem: str
) -> None:
    formation = node(record=FormationRecord(ABC) if record else None)
    before = formation.record
    with pytest.raises(InvalidConfig, match=problem):
        hear(formation, heard)
    assert formation.record == before


def test_a_node_whose_address_has_changed_since_it_promised_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="has promised itself as a at host-a:9294"):
        Formation(candidate("a", host="other"), 3, FormationRecord(ABC))


def test_a_cluster_that_is_there_is_not_disturbed_by_what_others_say() -> None:
    formation = node(record=FormationRecord(ABC, voters_of(ABC)))
    for notice in (Notice(candidate("a", directory="other"), 7), Notice(B, 3, (), BCD)):
        assert hear(formation, notice) == [Notice(A, 3, (), ABC, voters_of(ABC))]


# --- notices as bytes ---------------------------------------------------------------------------------


FULL = Notice(A, 3, ABC, ABC, voters_of(ABC))


@pytest.mark.parametrize("token", [None, "secret"])
@pytest.mark.parametrize("notice", [Notice(A, 3), FULL])
def test_a_notice_arrives_as_it_left(notice: Notice, token: str | None) -> None:
    assert decode_notice(encode_notice(notice, "c", token), "c", token) == notice
    assert decode_notice(encode_notice(notice, "c", token), "other", token) is None


@pytest.mark.parametrize(
    "data",
    [
        encode_notice(FULL, "c", None),
        encode_notice(FULL, "c", "other"),
        encode_notice(FULL, "c", "secret").replace(b"host-b", b"host-x"),
    ],
)
def test_what_does_not_prove_the_token_is_not_heard(data: bytes) -> None:
    with pytest.raises(Unauthorized, match="'a' does not prove the token"):
        decode_notice(data, "c", "secret")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"cluster":"c"}',
        b"\xff",
        encode_notice(FULL, "c", None).replace(b"9294", b"0"),
        encode_notice(Notice(A, 3, (B, A)), "c", None),
        encode_notice(Notice(A, 3, (), (A, candidate("a", host="x"))), "c", None),
        b"[" * 50_000,
        b"x" * (NOTICE_BYTES_MAX + 1),
    ],
)
def test_what_is_no_notice_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="notice"):
        decode_notice(data, "c", None)
