"""What an answer of the metadata leader is worth to a node, and what it should hand over before it stops."""

from typing import Final

import pytest

from envelope.types import LogIndex, MonotonicNs, NodeEpoch, NodeId
from metadata.catalog.commands import Command
from metadata.controller.lease_client import LeaseClient, streams_to_hand_over
from metadata.lease import Lease, unlimited
from metadata.raft.messages.node_messages import LeaseGranted, LeaseRefused
from tests.support.catalogs import catalog_of, create, register

A, B = NodeId("a"), NodeId("b")
LEASE_NS: Final = 1600
USABLE_NS: Final = 1500


def begun(until: int = 0) -> tuple[LeaseClient, Lease]:
    lease = Lease(MonotonicNs(until))
    tenure = LeaseClient(lease)
    tenure.begin(NodeEpoch(3))
    return tenure, lease


def grant(asked_at: int, node_epoch: int = 3) -> LeaseGranted:
    return LeaseGranted(
        source=B,
        target=A,
        node_epoch=NodeEpoch(node_epoch),
        asked_at=MonotonicNs(asked_at),
        lease_ns=LEASE_NS,
        index=LogIndex(0),
    )


def test_a_lease_counts_from_when_it_was_asked_for_less_a_margin() -> None:
    tenure, lease = begun()
    assert tenure.granted(grant(asked_at=100), MonotonicNs(200))
    assert lease.until == 100 + USABLE_NS


@pytest.mark.parametrize(
    ("until", "asked_at", "arrives_at", "resumes"),
    [
        (0, 100, 100, True),
        (1000, 999, 999, False),
        (1000, 999, 1000, True),
        (1000, 100, 1000, True),
        (1000, 100, 100 + USABLE_NS - 1, True),
        (1000, 100, 100 + USABLE_NS, False),
    ],
)
def test_only_a_lease_that_had_lapsed_and_is_valid_again_is_resumed(
    until: int, asked_at: int, arrives_at: int, *, resumes: bool
) -> None:
    tenure, lease = begun(until)
    assert tenure.granted(grant(asked_at), MonotonicNs(arrives_at)) is resumes
    assert lease.until == max(until, asked_at + USABLE_NS)


def test_a_late_answer_takes_nothing_back() -> None:
    tenure, lease = begun(until=5000)
    assert not tenure.granted(grant(asked_at=100), MonotonicNs(200))
    assert lease.until == 5000


@pytest.mark.parametrize(("node_epoch", "asked_at"), [(2, 100), (4, 100), (3, 201)])
def test_an_answer_to_what_this_start_did_not_ask_is_worth_nothing(node_epoch: int, asked_at: int) -> None:
    tenure, lease = begun()
    assert not tenure.granted(grant(asked_at, node_epoch), MonotonicNs(200))
    assert lease.until == 0


def test_before_it_has_registered_a_node_takes_no_answer() -> None:
    lease = Lease()
    tenure = LeaseClient(lease)
    assert not tenure.granted(grant(100), MonotonicNs(200))
    assert lease.until == 0
    assert not tenure.is_over(LeaseRefused(B, A, NodeEpoch(9)))


def test_a_lease_without_end_stays_so() -> None:
    lease = unlimited()
    tenure = LeaseClient(lease)
    tenure.begin(NodeEpoch(3))
    assert not tenure.granted(grant(100), MonotonicNs(200))
    assert lease == unlimited()


@pytest.mark.parametrize(("registered", "is_over"), [(2, False), (3, False), (4, True)])
def test_only_a_newer_start_ends_this_one(registered: int, *, is_over: bool) -> None:
    tenure, _ = begun()
    assert tenure.is_over(LeaseRefused(B, A, NodeEpoch(registered))) is is_over


@pytest.mark.parametrize(
    ("commands", "names"),
    [
        ((create("s", nodes="ab"),), ("s",)),
        ((create("s", nodes="ba"),), ()),
        ((create("s", nodes="a"),), ()),
        ((create("s", nodes="ab"), create("t", nodes="a"), create("u", nodes="ab")), ("s", "u")),
        ((create("s", nodes="ab"), register("b", directory="other")), ()),
    ],
)
def test_what_another_member_of_the_isr_could_lead_is_to_be_handed_over(
    commands: tuple[Command, ...], names: tuple[str, ...]
) -> None:
    catalog = catalog_of(register("a"), register("b"), *commands)
    assert streams_to_hand_over(catalog, A, frozenset()) == names


def test_what_only_nodes_could_lead_that_are_not_heard_is_not_handed_over() -> None:
    streams = (create("s", nodes="ab"), create("t", nodes="abc"))
    catalog = catalog_of(register("a"), register("b"), register("c"), *streams)
    assert streams_to_hand_over(catalog, A, frozenset((B,))) == ("t",)
    assert streams_to_hand_over(catalog, A, frozenset((B, NodeId("c")))) == ()
