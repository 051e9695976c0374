"""No checker of replication is mute: each law, broken by hand, is a violation."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from envelope.types import Incarnation, LeaderEpoch, NodeEpoch, NodeId, Offset, StreamName, TimestampUs
from jetstream.replica.leader_events import AnswerFollower
from jetstream.replica.role_events import AdvanceHighWatermark
from jetstream.replica.wire import FetchRefusal, RefusedMessage
from metadata.catalog.commands import ChangeLeader, NodeAtEpoch
from metadata.catalog.tables import InSyncReplica, Stream, UncleanElection
from metadata.stream_config import StreamConfig
from tests.simulation.replica.checkers.committed import Committed
from tests.simulation.replica.checkers.copies import check_count, check_members
from tests.simulation.replica.checkers.leases import Leases
from tests.simulation.replica.checkers.log_matching import LogMatching
from tests.simulation.replica.checkers.power_losses import PowerLosses
from tests.simulation.replica.checkers.publishing import Publishing
from tests.simulation.replica.checkers.read_replicas import (
    ReadReplicas,
    check_election,
    check_leader,
    check_left,
    check_proposal,
    check_roles,
    without,
)
from tests.simulation.replica.checkers.reigns import Reigns, check_speech
from tests.simulation.replica.checkers.truths import Truths
from tests.simulation.replica.checkers.watermarks import Watermark
from tests.simulation.replica.checks import Checks
from tests.simulation.replica.log_image import Batch, LogImage
from tests.simulation.replica.messages import Publish
from tests.simulation.replica.swarm import LEASE, draw
from tests.simulation.violation import Violation
from tests.support.catalogs import apply, catalog_of, create, register, update

A, B, R = NodeId("a"), NodeId("b"), NodeId("r")
STREAM = StreamName("orders")


def _batch(base: int, epoch: int, *values: str) -> Batch:
    return Batch(Offset(base), LeaderEpoch(epoch), values)


def _log(*batches: Batch, synced: bool = True) -> LogImage:
    image = LogImage(STREAM)
    for batch in batches:
        image.append(batch)
    if synced:
        image.sync()
    return image


def _row(*isr: NodeId, leader: NodeId | None = A, minimum: int = 1, **changed: object) -> Stream:
    config = StreamConfig.model_validate(
        {"name": STREAM, "subject": "orders.>", "replicas": 2, "min_insync_replicas": minimum} | changed
    )
    members = tuple(InSyncReplica(node, f"disk-of-{node}") for node in isr)
    incarnation = Incarnation("life-1")
    return Stream(
        config=config,
        incarnation=incarnation,
        created=TimestampUs(0),
        replicas=(A, B),
        leader=leader,
        leader_epoch=LeaderEpoch(1),
        isr=members,
        isr_version=1,
    )


def _committed(*batches: Batch) -> Committed:
    committed = Committed()
    image = _log(*batches)
    committed.by_leader("a/orders", image, image.log_end)
    return committed


X, Y = _batch(0, 1, "x1", "x2"), _batch(2, 1, "y")


def _other_record_below_a_leaders_high_watermark() -> None:
    _committed(X).by_leader("b/orders", _log(_batch(0, 2, "z1", "z2")), Offset(2))


def _high_watermark_inside_a_batch() -> None:
    Committed().by_leader("a/orders", _log(X), Offset(1))


def _high_watermark_beyond_the_leaders_log() -> None:
    Committed().by_leader("a/orders", _log(X), Offset(3))


def _value_at_two_offsets() -> None:
    _committed(X, _batch(2, 1, "x1"))


def _follower_ahead_of_every_leader() -> None:
    _committed(X).by_follower("b/orders", _log(X, Y), Offset(3))


def _follower_announces_what_it_has_not_written() -> None:
    _committed(X, Y).by_follower("b/orders", _log(X), Offset(3))


def _follower_with_other_records() -> None:
    _committed(X).by_follower("b/orders", _log(_batch(0, 1, "x1", "z")), Offset(2))


def _member_without_a_committed_record() -> None:
    check_members(_row(A, B), _committed(X, Y), {"disk-of-a": _log(X, Y), "disk-of-b": _log(X)})


def _member_with_a_committed_record_in_memory_only() -> None:
    images = {"disk-of-a": _log(X), "disk-of-b": _log(X, synced=False)}
    check_members(_row(A, B), _committed(X), images)


def _member_with_other_records() -> None:
    other = _log(_batch(0, 2, "z1", "z2"))
    check_members(_row(A, B), _committed(X), {"disk-of-a": _log(X), "disk-of-b": other})


def _too_few_copies() -> None:
    images = {"disk-of-a": _log(X), "disk-of-b": _log(X, synced=False)}
    check_count(_row(A, B, minimum=2), Offset(2), _committed(X), images)


def _two_leaders_in_an_epoch() -> None:
    reigns = Reigns()
    for process in ((A, 1), (A, 2)):
        reigns.begun(process, LeaderEpoch(2), _log(X), _committed(X), LeaderEpoch(2))


def _leader_without_a_committed_record() -> None:
    Reigns().begun((A, 1), LeaderEpoch(2), _log(X), _committed(X, Y), LeaderEpoch(2))


def _word_without_a_lease() -> None:
    check_speech("a/orders", [AdvanceHighWatermark(Offset(1))], holds_leadership=False)


def _two_batches_of_one_epoch_at_one_place() -> None:
    matching = LogMatching()
    matching.written(_log(X), Y)
    matching.written(_log(X), _batch(2, 1, "z"))


def _same_batch_after_other_records() -> None:
    matching = LogMatching()
    matching.written(_log(X), _batch(2, 3, "y"))
    matching.written(_log(_batch(0, 2, "z1", "z2")), _batch(2, 3, "y"))


def _high_watermark_goes_back() -> None:
    watermark = Watermark("a/orders", Offset(2))
    watermark.is_at(Offset(1))


def _publish(value: str, attempt: int = 1) -> Publish:
    return Publish("p1", STREAM, value, attempt)


def _ack_of_what_is_not_committed() -> None:
    Publishing(Truths(_committed(X))).answered(_publish("y"), Offset(2), LeaderEpoch(1))


def _ack_at_the_offset_of_another_value() -> None:
    Publishing(Truths(_committed(X))).answered(_publish("x1"), Offset(1), LeaderEpoch(1))


def _ack_at_two_offsets() -> None:
    publishing = Publishing(Truths(_committed(X)))
    publishing.acked["x1"] = (Offset(1), LeaderEpoch(1))
    publishing.answered(_publish("x1"), Offset(0), LeaderEpoch(1))


def _later_message_before_an_acked_one() -> None:
    publishing = Publishing(Truths(_committed(X)))
    publishing.sent(_publish("x2"))
    publishing.heard(_publish("x2"), Offset(1))
    publishing.sent(_publish("x1"))
    publishing.heard(_publish("x1"), Offset(0))


def _refused_and_stored() -> None:
    publishing = Publishing(Truths(_committed(X)))
    publishing.sent(_publish("x1"))
    publishing.received(_publish("x1"), (A, 1))
    publishing.refused(_publish("x1"), (A, 1))
    publishing.check_refusals()


def _replaced_with_a_lease() -> None:
    leases = Leases(tolerance=10)
    leases.left = lambda node: 11
    leases.replaced(_row(A, B))


def _in_sync_beside_others_after_a_power_loss() -> None:
    _back_after_a_power_loss(_row(A, B, leader=None, sync="os"), _committed(X, Y))


def _more_is_lost_than_the_last_one_lost() -> None:
    truths = _back_after_a_power_loss(_row(A, leader=None, sync="os"), _committed(X, Y))
    truths.begun(LeaderEpoch(2), _log())


def _cut_without_a_loss() -> None:
    Truths(_committed(X, Y)).check_cut("b/orders", Offset(2), Offset(3), LeaderEpoch(2))


def _back_after_a_power_loss(row: Stream, committed: Committed) -> Truths:
    """What is known of the stream once A has come back to it with the first two records."""
    truths, losses = Truths(committed), PowerLosses()
    losses.lost("disk-of-a", [])
    losses.registered(register(A), [row], {STREAM: truths}, {STREAM: {"disk-of-a": _log(X)}})
    return truths


def _read(row: Stream) -> Stream:
    """The row with a read replica."""
    return replace(row, read_replicas=(R,))


def _read_replica_is_a_replica() -> None:
    check_roles(replace(_read(_row(A, B)), replicas=(A, R)))


def _read_replica_in_the_isr() -> None:
    check_roles(_read(_row(A, R)))


def _read_replica_leads() -> None:
    check_roles(_read(_row(A, B, leader=R)))


def _read_replica_is_elected() -> None:
    row = _read(_row(A, B, leader=None))
    check_leader(row, replace(row, leader=R, replicas=(R, B), read_replicas=(A,)))


def _controller_elects_a_read_replica() -> None:
    row = _read(_row(A, B, leader=None))
    election = ChangeLeader(STREAM, row.incarnation, R, NodeEpoch(1), row.leader_epoch, unclean=True)
    check_election(row, election)


def _read_replica_is_proposed() -> None:
    check_proposal(_read(_row(A, B)), [NodeAtEpoch(A, NodeEpoch(1)), NodeAtEpoch(R, NodeEpoch(1))])


def _only_a_read_replica_has_the_second_copy() -> None:
    images = {"disk-of-a": _log(X), "disk-of-b": _log(), "disk-2-of-r": _log(X)}
    check_count(_row(A, B, minimum=2), Offset(2), _committed(X), dict(without((R,), images.items())))


def _replaced_because_of_a_read_replica() -> None:
    checks = Checks(draw(Random(1), frugal=False))
    checks.catalog = catalog_of(register(A), register(R), create("s", nodes=(A,), read_replicas=(R,)))
    checks.leases.left = lambda node: LEASE
    (row,) = checks.catalog.streams()
    checks.silent(R, row.name, row.leader_epoch)
    checks.leases.replaced(row)


def _who_reads_no_more_keeps_its_log() -> None:
    check_left(_read(_row(A, B)), _row(A, B), owing=(A,))


def _gap_between_batches() -> None:
    _log(X, _batch(3, 1, "y"))


def _epoch_that_decreases() -> None:
    _log(_batch(0, 2, "x1", "x2"), Y)


def _epoch_begun_twice() -> None:
    _log(X).begin_epoch(LeaderEpoch(1))


_BROKEN: list[tuple[Callable[[], None], str]] = [
    (_other_record_below_a_leaders_high_watermark, r"offset 0 is \(2, 'z1'\) here"),
    (_high_watermark_inside_a_batch, "is no end of a batch"),
    (_high_watermark_beyond_the_leaders_log, "is no end of a batch"),
    (_value_at_two_offsets, "x1 is at offset 0 and at 2"),
    (_follower_ahead_of_every_leader, "high watermark 3, committed is 2"),
    (_follower_announces_what_it_has_not_written, "its log ends at 2"),
    (_follower_with_other_records, r"offset 1 is \(1, 'z'\) here"),
    (_member_without_a_committed_record, "b is in the ISR of orders .* with 2 on disk"),
    (_member_with_a_committed_record_in_memory_only, "b is in the ISR of orders .* with 0 on disk"),
    (_member_with_other_records, "b is in the ISR of orders .* with other records"),
    (_too_few_copies, r"on disk in \['disk-of-a'\] only"),
    (_two_leaders_in_an_epoch, "epoch 2 of orders has two leaders"),
    (_leader_without_a_committed_record, "a leads orders in epoch 2 with a log to 2"),
    (_word_without_a_lease, "without a lease"),
    (_two_batches_of_one_epoch_at_one_place, "batch 2 of epoch 1"),
    (_same_batch_after_other_records, "batch 2 of epoch 3"),
    (_high_watermark_goes_back, "goes back from 2 to 1"),
    (_ack_of_what_is_not_committed, "y is acked at 2"),
    (_ack_at_the_offset_of_another_value, "x1 is acked at 1"),
    (_ack_at_two_offsets, "x1 is acked at 1 and at 0"),
    (_later_message_before_an_acked_one, "1 was acked before it was sent"),
    (_refused_and_stored, "x1 was refused, and is at 0"),
    (_replaced_with_a_lease, "a is replaced as dead"),
    (_in_sync_beside_others_after_a_power_loss, "a has lost power, and is in the ISR of orders .* beside"),
    (_more_is_lost_than_the_last_one_lost, "in epoch 2 with 0 of what was committed; 2 was not lost"),
    (_cut_without_a_loss, "b/orders: committed records 2 to 3 are about to be removed"),
    (_read_replica_is_a_replica, "read replica r of orders is a replica"),
    (_read_replica_in_the_isr, "read replica r of orders is in the ISR"),
    (_read_replica_leads, "read replica r of orders is the leader"),
    (_read_replica_is_elected, "read replica r of orders is elected"),
    (_controller_elects_a_read_replica, "the controller elects r, a read replica of orders"),
    (_read_replica_is_proposed, "a proposes r, a read replica of orders, as in sync"),
    (_only_a_read_replica_has_the_second_copy, r"on disk in \['disk-of-a'\] only"),
    (_replaced_because_of_a_read_replica, "a is replaced as dead"),
    (_who_reads_no_more_keeps_its_log, "r holds orders no more, and need not remove it"),
    (_gap_between_batches, "batch 3 of epoch 1 is appended to a log that ends at 2"),
    (_epoch_that_decreases, "batch 2 of epoch 1 is appended"),
    (_epoch_begun_twice, "epoch 1 begins in a log that knows epoch 1"),
]


@pytest.mark.parametrize(
    ("breaks", "message"), _BROKEN, ids=[breaks.__name__.strip("_") for breaks, _ in _BROKEN]
)
def test_a_broken_law_of_replication_is_a_violation(breaks: Callable[[], None], message: str) -> None:
    with pytest.raises(Violation, match=message):
        breaks()


def test_what_the_laws_of_replication_permit_is_no_violation() -> None:
    committed = _committed(X, Y)
    committed.by_follower("b/orders", _log(X), Offset(2))
    check_members(_row(A), committed, {"disk-of-a": _log(X, Y, _batch(3, 1, "tail"))})
    refusal = RefusedMessage(LeaderEpoch(2), FetchRefusal.DEPOSED)
    check_speech("a/orders", [AnswerFollower(B, refusal)], holds_leadership=False)
    Reigns().begun((A, 1), LeaderEpoch(2), _log(X), committed, newest=LeaderEpoch(3))
    leases = Leases(tolerance=10)
    leases.left = lambda node: 11
    leases.reported(STREAM, LeaderEpoch(1))
    leases.replaced(_row(A, B))
    leases.replaced(_row(A, B, leader=None))
    publishing = Publishing(Truths(committed))
    publishing.sent(_publish("x1"))
    publishing.received(_publish("x1"), (A, 1))
    publishing.received(_publish("x1"), (B, 1))
    publishing.refused(_publish("x1"), (A, 1))
    assert publishing.check_refusals() == 1


def test_the_last_one_in_sync_goes_on_with_what_a_power_loss_has_left() -> None:
    truths = _back_after_a_power_loss(_row(A, leader=None, sync="os"), _committed(X, Y))
    assert (truths.is_parting, truths.newest.end) == (True, 3)
    truths.begun(LeaderEpoch(2), _log(X))
    assert (truths.is_parting, truths.newest.end) == (False, 2)
    truths.newest.by_leader("a/orders", _log(X, _batch(2, 2, "z")), Offset(3))
    truths.of(LeaderEpoch(1)).by_follower("b/orders", _log(X, Y), Offset(3))
    truths.check_cut("b/orders", Offset(2), Offset(3), LeaderEpoch(2))
    lost = [truths.is_lost(Offset(row), LeaderEpoch(1), LeaderEpoch(2)) for row in range(3)]
    assert lost == [False, False, True]
    assert truths.was_committed(Offset(2), "y")


def test_only_who_syncs_before_it_counts_has_to_hold_everything_before_it_is_back() -> None:
    losses = PowerLosses()
    losses.lost("disk-of-a", [_log(X)])
    assert "disk-of-a" in losses.untold(_row(A, B, sync="interval"))
    assert "disk-of-a" not in losses.untold(_row(A, B))
    images = {"disk-of-a": _log(), "disk-of-b": _log(X)}
    check_count(_row(A, B, minimum=2), Offset(2), _committed(X), images, losses.held(STREAM))


def test_read_replicas_come_and_go_and_an_operator_may_elect_one() -> None:
    laws, name = ReadReplicas(), StreamName("s")
    catalog = catalog_of(register(A), register(B), register(R), create("s", nodes=(A, B), read_replicas=(R,)))
    laws.changed(name, catalog)
    apply(catalog, replace(update("s", read_replicas=0), read_replicas=()))
    laws.changed(name, catalog)
    assert [removal.pending for removal in catalog.removals()] == [(R,)]
    row = _read(_row(A, B, leader=None))
    check_proposal(row, [NodeAtEpoch(A, NodeEpoch(1)), NodeAtEpoch(B, NodeEpoch(1))])
    unclean = UncleanElection(R, LeaderEpoch(2), None, (A, B))
    elected = replace(row, leader=R, leader_epoch=LeaderEpoch(2), replicas=(R, B), read_replicas=(A,))
    check_leader(row, replace(elected, last_unclean=unclean))


def test_a_disk_that_never_had_the_stream_has_an_empty_log() -> None:
    checks = Checks(draw(Random(1), frugal=False))
    (name, logs), *_ = checks.images.items()
    assert (logs["disk-of-nobody"].log_end, list(logs)) == (0, [])
    image = checks.new_image("disk-of-a", name)
    assert logs["disk-of-a"] is image
