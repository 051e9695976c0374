"""Single logs that are gone from a node's disk: what the catalogue makes of it."""

import pytest

from envelope.errors import Fenced, InvalidConfig
from envelope.types import Incarnation, LeaderEpoch, NodeEpoch, NodeId, StreamName
from metadata.catalog.catalog import Catalog
from metadata.catalog.commands import BeginStream, ChangeIsr, ChangeLeader, NodeAtEpoch
from metadata.catalog.nodes import lost_replicas
from metadata.catalog.tables import Stream
from tests.support.catalogs import apply, catalog_of, create, refusal, register

LIFE = Incarnation("l1")
NAME = StreamName("orders")
A, B, C = (NodeId(name) for name in "abc")


def three(*, begun: bool = True, nodes: str = "abc") -> Catalog:
    return catalog_of(*map(register, nodes), create(NAME, LIFE, nodes, begun=begun))


def row(catalog: Catalog) -> Stream:
    found = catalog.stream(NAME)
    assert found is not None
    catalog.audit()
    return found


def lose(catalog: Catalog, node: str) -> Stream:
    assert refusal(apply(catalog, register(node, lost=(LIFE,)))) is None
    return row(catalog)


def test_who_lost_its_log_leaves_the_isr_as_it_registers_and_leads_no_more() -> None:
    catalog = three()
    after = lose(catalog, "a")
    assert (after.isr_nodes, after.blank, after.leader) == ((B, C), (A,), None)
    assert [command.leader for command in catalog.due_elections()] == [B]


def test_it_is_blank_until_it_is_in_sync_again_however_often_it_starts() -> None:
    catalog = three()
    lose(catalog, "a")
    apply(catalog, register("a"))  # it has begun to copy: there is a log
    assert row(catalog).blank == (A,)
    [due] = catalog.due_elections()
    apply(catalog, due)
    members = tuple(NodeAtEpoch(node, NodeEpoch(epoch)) for node, epoch in ((A, 3), (B, 1), (C, 1)))
    assert (
        refusal(
            apply(
                catalog,
                ChangeIsr(
                    stream=NAME,
                    incarnation=LIFE,
                    leader=B,
                    leader_epoch=LeaderEpoch(2),
                    expected_isr_version=2,
                    isr=members,
                ),
            )
        )
        is None
    )
    assert (row(catalog).isr_nodes, row(catalog).blank) == ((A, B, C), ())


@pytest.mark.parametrize("unclean", [False, True])
def test_the_last_one_stays_in_the_isr_and_leads_only_if_an_operator_says_so(unclean: bool) -> None:
    catalog = three(nodes="a")
    after = lose(catalog, "a")
    assert (after.isr_nodes, after.blank, after.leader, after.is_lost) == ((A,), (A,), None, True)
    assert after.is_lost_by(A)
    assert catalog.due_elections() == ()
    elect = ChangeLeader(NAME, LIFE, A, NodeEpoch(2), LeaderEpoch(1), unclean=unclean)
    refused = refusal(apply(catalog, elect))
    assert isinstance(refused, InvalidConfig) is not unclean
    assert row(catalog).blank == (() if unclean else (A,))


def test_the_last_one_is_whole_again_once_its_log_is_back() -> None:
    catalog = three(nodes="a")
    lose(catalog, "a")
    assert lose(catalog, "a").is_lost, "it is still gone"
    apply(catalog, register("a"))
    assert row(catalog).is_lost, "a start with an old catalogue knows nothing of it"
    apply(catalog, register("a", restored=[LIFE]))
    assert not row(catalog).is_lost
    assert [command.leader for command in catalog.due_elections()] == [A]


def test_when_all_have_lost_theirs_nobody_is_elected() -> None:
    catalog = three()
    for node in "abc":
        lose(catalog, node)
    assert (row(catalog).isr_nodes, row(catalog).is_lost) == ((C,), True)
    assert catalog.due_elections() == ()


def test_before_a_stream_has_begun_nobody_can_lose_anything() -> None:
    catalog = three(begun=False)
    assert lost_replicas(catalog.streams(), A, frozenset()) == ()
    after = lose(catalog, "a")
    assert (after.isr_nodes, after.blank) == ((A, B, C), ())


def test_its_leader_begins_a_stream_once_and_for_all() -> None:
    catalog = three(begun=False)
    late = BeginStream(NAME, LIFE, B, LeaderEpoch(1))
    assert isinstance(refusal(apply(catalog, late)), Fenced)
    assert not row(catalog).begun
    for _ in range(2):
        assert refusal(apply(catalog, BeginStream(NAME, LIFE, A, LeaderEpoch(1)))) is None
        assert row(catalog).begun
    assert lost_replicas(catalog.streams(), A, frozenset()) == (LIFE,)
    assert lost_replicas(catalog.streams(), A, frozenset((LIFE,))) == ()
