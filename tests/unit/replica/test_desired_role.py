"""What a node has to do about a replica, by what it does now and what the catalogue says."""

from dataclasses import replace

import pytest

from envelope.types import Incarnation, LeaderEpoch, NodeId, TimestampUs
from jetstream.replica.desired_role import (
    End,
    Follow,
    Open,
    Reconfigure,
    Repair,
    Resign,
    RoleStatus,
    Step,
    TakeOver,
    may_lead_soon,
    next_step,
)
from metadata.catalog.tables import InSyncReplica, Stream
from metadata.stream_config import StreamConfig
from tests.support.replica_cluster import A, B, C, D

CONFIG = StreamConfig(name="orders", subject="orders.>", replicas=3)
ROW = Stream(
    config=CONFIG,
    incarnation=Incarnation("life"),
    created=TimestampUs(0),
    replicas=(A, B, C),
    leader=A,
    leader_epoch=LeaderEpoch(4),
    isr=tuple(InSyncReplica(node, f"disk-{node}") for node in (A, B, C)),
    isr_version=1,
)
FOLLOWS = RoleStatus(
    is_open=True,
    config=CONFIG,
    leads=False,
    leader=A,
    leader_epoch=LeaderEpoch(4),
    declined_epoch=LeaderEpoch(0),
    is_damaged=False,
)
LEADS = replace(FOLLOWS, leads=True, leader=None)
CHANGED = CONFIG.model_copy(update={"subject": "other.>"})
NEXT = LeaderEpoch(5)


@pytest.mark.parametrize(
    ("standing", "row", "node", "step"),
    [
        (FOLLOWS, ROW, B, None),
        (LEADS, ROW, A, None),
        (replace(FOLLOWS, is_open=False), ROW, B, Open()),
        (FOLLOWS, None, B, End()),
        (FOLLOWS, replace(ROW, replicas=(A, C, D)), B, End()),
        (replace(FOLLOWS, is_open=False), None, B, End()),
        (FOLLOWS, replace(ROW, config=CHANGED), B, Reconfigure(CHANGED)),
        (LEADS, replace(ROW, leader_epoch=NEXT, leader=B), A, Resign()),
        (LEADS, replace(ROW, leader=None), A, Resign()),
        (LEADS, replace(ROW, leader_epoch=NEXT), A, Resign()),
        (FOLLOWS, replace(ROW, leader_epoch=NEXT, leader=C), B, Follow(C, NEXT)),
        (FOLLOWS, replace(ROW, leader_epoch=NEXT), B, Follow(A, NEXT)),
        (FOLLOWS, replace(ROW, leader=None), B, Follow(None, LeaderEpoch(4))),
        (
            FOLLOWS,
            replace(ROW, leader=B, leader_epoch=NEXT),
            B,
            TakeOver(replace(ROW, leader=B, leader_epoch=NEXT)),
        ),
        (replace(FOLLOWS, declined_epoch=NEXT), replace(ROW, leader=B, leader_epoch=NEXT), B, None),
        (replace(FOLLOWS, awaits_retry=True), replace(ROW, leader=B, leader_epoch=NEXT), B, None),
        (replace(FOLLOWS, awaits_retry=True), replace(ROW, leader=C, leader_epoch=NEXT), B, Follow(C, NEXT)),
    ],
)
def test_one_step_leads_towards_the_row(
    standing: RoleStatus, row: Stream | None, node: NodeId, step: Step | None
) -> None:
    assert next_step(standing, row, node) == step


def test_a_reign_that_was_taken_over_by_a_new_one_of_the_same_node_is_ended_first() -> None:
    row = replace(ROW, leader_epoch=NEXT)
    assert next_step(LEADS, row, A) == Resign()
    assert next_step(replace(FOLLOWS, leader=None), row, A) == TakeOver(row)


def test_a_damaged_log_is_removed_only_when_others_lead_and_nobody_counts_on_it() -> None:
    damaged = replace(FOLLOWS, is_damaged=True)
    left = replace(ROW, isr=ROW.isr[:1])
    assert next_step(damaged, ROW, B) is None
    assert next_step(damaged, replace(left, leader=None), B) == Follow(None, LeaderEpoch(4))
    assert next_step(replace(damaged, leads=True), left, A) is None
    assert next_step(damaged, left, B) == Repair()


@pytest.mark.parametrize(
    ("asked", "row", "soon"),
    [
        (5, None, True),
        (5, ROW, True),
        (4, ROW, True),
        (3, ROW, False),
        (4, replace(ROW, leader=B), False),
        (4, replace(ROW, leader=None), False),
    ],
)
def test_who_may_lead_soon_keeps_what_is_asked(asked: int, row: Stream | None, soon: bool) -> None:
    assert may_lead_soon(LeaderEpoch(asked), row, A) is soon
