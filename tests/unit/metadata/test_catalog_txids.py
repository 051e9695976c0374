"""A last txid that an operator set is the word of the stream's leader, and stays whoever leads next."""

from dataclasses import replace

import pytest

from envelope.errors import Fenced, UnknownStream
from envelope.types import Incarnation, LeaderEpoch, NodeEpoch, NodeId, Offset, StreamName
from metadata.catalog import snapshot
from metadata.catalog.commands import ChangeLeader, SetTxid, decode_command, encode_command
from metadata.catalog.tables import TxidSet
from tests.support.catalogs import apply, catalog_of, create, refusal, register

NAME, A, B = StreamName("orders"), NodeId("n1"), NodeId("n2")
SET = SetTxid(
    stream=NAME,
    incarnation=Incarnation("l1"),
    leader=A,
    leader_epoch=LeaderEpoch(1),
    offset=Offset(92),
    txid=5,
)


def test_what_was_set_outlives_its_leader_and_a_snapshot_and_the_newest_one_counts() -> None:
    catalog = catalog_of(register("n1"), register("n2"), create("orders", "l1", nodes=("n1", "n2")))
    for command in (SET, replace(SET, txid=-(1 << 63))):
        assert decode_command(encode_command(command), catalog.applied) == command
        assert refusal(apply(catalog, command)) is None
    apply(catalog, ChangeLeader(NAME, SET.incarnation, B, NodeEpoch(1), LeaderEpoch(1)))
    for known in (catalog, snapshot.decode(snapshot.encode(catalog))):
        row = known.stream(NAME)
        assert row is not None
        assert (row.leader, row.txid_set) == (B, TxidSet(LeaderEpoch(1), Offset(92), -(1 << 63)))


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (replace(SET, leader=B), Fenced),
        (replace(SET, leader_epoch=LeaderEpoch(2)), Fenced),
        (replace(SET, incarnation=Incarnation("l2")), UnknownStream),
        (replace(SET, stream=StreamName("nobody")), UnknownStream),
    ],
)
def test_who_does_not_lead_in_that_life_sets_nothing(command: SetTxid, error: type[Exception]) -> None:
    catalog = catalog_of(register("n1"), register("n2"), create("orders", "l1", nodes=("n1", "n2")))
    assert isinstance(refusal(apply(catalog, command)), error)
    assert catalog.streams()[0].txid_set is None
