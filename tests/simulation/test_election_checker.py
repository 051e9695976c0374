"""The checker of unclean elections is not mute: each law, broken by hand, is a violation."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from envelope.types import LeaderEpoch, LogIndex, MonotonicNs, NodeEpoch, NodeId, Offset, StreamName
from metadata.catalog.catalog import Catalog
from metadata.catalog.commands import ChangeIsr, ChangeLeader, Command, NodeAtEpoch
from metadata.catalog.tables import Stream, Tables, UncleanElection
from tests.simulation.replica.checkers.elections import Elections
from tests.simulation.replica.checkers.truths import Truths
from tests.simulation.replica.log_image import Batch, LogImage
from tests.simulation.violation import Violation
from tests.support.catalogs import create, register

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")
STREAM = StreamName("orders")
LEASE = 100
LATER = MonotonicNs(LEASE)


class _Group:
    """A stream on three nodes of which only the first is in sync, and what the checker was told of them."""

    def __init__(self, *, unclean_election: bool = True) -> None:
        self._tables = Tables()
        self.catalog = Catalog(self._tables)
        self.elections = Elections(LEASE, tolerance=0)
        self.truths, self.images = Truths(), {f"disk-of-{node}": _log("x", "y") for node in (A, B, C)}
        for node in (A, B, C):
            self.catalog.apply(self._next(), register(node))
        created = create(STREAM, nodes=(A, B, C), unclean_election=unclean_election, min_insync_replicas=1)
        self.catalog.apply(self._next(), created)
        self.elections.begun(self.catalog)
        self.in_sync(A)
        self.truths.newest.by_leader("a/orders", self.images["disk-of-a"], Offset(2))
        for node in (B, C):
            self.elections.heard(node, LATER)

    @property
    def row(self) -> Stream:
        row = self.catalog.stream(STREAM)
        assert row is not None
        return row

    def _next(self) -> LogIndex:
        return LogIndex(self.catalog.applied + 1)

    def in_sync(self, *nodes: NodeId) -> None:
        isr = tuple(NodeAtEpoch(node, NodeEpoch(1)) for node in nodes)
        row = self.row
        command = ChangeIsr(
            stream=STREAM,
            incarnation=row.incarnation,
            leader=A,
            leader_epoch=row.leader_epoch,
            expected_isr_version=row.isr_version,
            isr=isr,
        )
        self.catalog.apply(self._next(), command)
        self._applied(command)

    def registers(self, node: NodeId, directory: str) -> None:
        command = replace(register(node), directory=directory)
        self.catalog.apply(self._next(), command)
        self._applied(command)
        self.elections.registered(node, LATER)

    def wipe(self, node: NodeId) -> None:
        self.registers(node, f"disk-2-of-{node}")

    def election(self, leader: NodeId) -> ChangeLeader:
        row = self.row
        return ChangeLeader(STREAM, row.incarnation, leader, NodeEpoch(1), row.leader_epoch, unclean=True)

    def decide(self, leader: NodeId, now: int = LEASE, *, ordered: bool = False) -> ChangeLeader:
        command = self.election(leader)
        self.elections.decided(self.catalog, command, MonotonicNs(now), ordered=ordered)
        return command

    def elect(self, command: ChangeLeader, change: Callable[[Stream], Stream] = lambda row: row) -> None:
        """Apply an election that leaves another row than it should."""
        self.catalog.apply(self._next(), command)
        self._tables.put(change(self.row))
        self._applied(command)

    def _applied(self, command: Command) -> None:
        self.elections.applied(self.catalog, command, {STREAM: self.truths}, {STREAM: self.images})


def _log(*values: str) -> LogImage:
    image = LogImage(STREAM)
    for row, value in enumerate(values):
        image.append(Batch(Offset(row), LeaderEpoch(1), (value,)))
    image.sync()
    return image


def _without_permission() -> None:
    _Group(unclean_election=False).decide(B)


def _while_a_lease_is_known() -> None:
    group = _Group()
    group.elections.heard(A, MonotonicNs(1))
    group.decide(B)


def _by_order_while_a_lease_is_known() -> None:
    _Group().decide(B, LEASE - 1, ordered=True)


def _while_a_process_has_a_lease() -> None:
    group = _Group()
    group.elections.left = lambda node: 5
    group.decide(B)


def _in_a_new_term_that_knows_nothing() -> None:
    group = _Group()
    group.elections.term_began(MonotonicNs(1))
    group.decide(B)


def _of_the_second_choice() -> None:
    _Group().decide(C)


def _of_an_empty_disk() -> None:
    group = _Group()
    group.wipe(B)
    group.decide(B)


def _of_a_disk_that_is_heard_behind_the_next() -> None:
    group = _Group()
    group.wipe(B)
    group.registers(B, "disk-of-b")
    group.decide(B)


def _of_who_is_about_to_stop() -> None:
    group = _Group()
    group.elections.stopping(B)
    group.decide(B)


def _of_who_is_dead() -> None:
    _Group().decide(B, 2 * LEASE)


def _that_nobody_decided() -> None:
    group = _Group()
    group.elect(group.election(B))


def _that_is_not_told() -> None:
    group = _Group()
    group.elect(group.decide(B), lambda row: replace(row, last_unclean=None))


def _that_does_not_name_who_was_given_up() -> None:
    group = _Group()
    told = UncleanElection(B, LeaderEpoch(2), None, given_up=(C,))
    group.elect(group.decide(B), lambda row: replace(row, last_unclean=told))


def _beside_who_was_given_up() -> None:
    group = _Group()
    command, isr = group.decide(B), group.row.isr
    group.elect(command, lambda row: replace(row, isr=(*row.isr, *isr)))


def _that_is_clean_and_told_as_unclean() -> None:
    group = _Group()
    told = UncleanElection(A, LeaderEpoch(2), None, given_up=(A,))
    group.elect(group.election(A), lambda row: replace(row, last_unclean=told))


def _with_less_than_was_kept() -> None:
    group = _Group()
    group.elect(group.decide(B))
    group.truths.begun(LeaderEpoch(2), _log("x"))


_BROKEN: list[tuple[Callable[[], None], str]] = [
    (_without_permission, "b is to lead orders uncleanly, which does not permit it"),
    (_while_a_lease_is_known, "the lease of a, in it with its disk"),
    (_by_order_while_a_lease_is_known, "the lease of a, in it with its disk"),
    (_while_a_process_has_a_lease, "the lease of a, in it with its disk"),
    (_in_a_new_term_that_knows_nothing, "the lease of a, in it with its disk"),
    (_of_the_second_choice, r"those who can are \['b', 'c'\]"),
    (_of_an_empty_disk, r"those who can are \['c'\]"),
    (_of_a_disk_that_is_heard_behind_the_next, r"those who can are \['c'\]"),
    (_of_who_is_about_to_stop, r"those who can are \['c'\]"),
    (_of_who_is_dead, r"those who can are \[\]"),
    (_that_nobody_decided, "nobody decided that"),
    (_that_is_not_told, r"instead of \('a',\), all that were in sync, and it says None"),
    (_that_does_not_name_who_was_given_up, "all that were in sync, and it says Unclean"),
    (_beside_who_was_given_up, "are in sync with it"),
    (_that_is_clean_and_told_as_unclean, "a was in sync, and orders says that it was not"),
    (_with_less_than_was_kept, "in epoch 2 with 1 of what was committed; 2 was not lost"),
]


@pytest.mark.parametrize(
    ("breaks", "message"), _BROKEN, ids=[breaks.__name__.strip("_") for breaks, _ in _BROKEN]
)
def test_an_unclean_election_that_must_not_be_is_a_violation(
    breaks: Callable[[], None], message: str
) -> None:
    with pytest.raises(Violation, match=message):
        breaks()


def test_the_first_who_has_been_in_sync_leads_with_what_it_has() -> None:
    group = _Group()
    group.images["disk-of-b"] = _log("x")
    group.elect(group.decide(B))
    assert group.truths.is_parting
    group.truths.begun(LeaderEpoch(2), group.images["disk-of-b"])
    assert (group.truths.newest.end, group.truths.newest.shared) == (1, 1)
    assert group.elections.have_been_in_sync(group.row) == {(node, f"disk-of-{node}") for node in (A, B, C)}


def test_an_operator_may_name_anybody_for_any_stream() -> None:
    group = _Group(unclean_election=False)
    group.elect(group.decide(C, ordered=True))
    assert group.truths.is_parting


def test_who_leads_after_a_second_loss_brings_back_what_the_first_took() -> None:
    group = _Group()
    group.truths.part(LeaderEpoch(2), Offset(0))
    group.truths.begun(LeaderEpoch(2), _log("x"))
    group.truths.part(LeaderEpoch(3), Offset(0))
    group.truths.begun(LeaderEpoch(3), _log("x", "y", "z"))
    assert (group.truths.newest.end, group.truths.newest.shared) == (2, 1)


def test_what_retention_removed_in_one_history_is_not_what_another_had_there() -> None:
    truths, first = Truths(), _log("x", "y", "z")
    second = _log("x")
    second.append(Batch(Offset(1), LeaderEpoch(2), ("other",)))
    truths.newest.by_leader("b/orders", second, Offset(2))
    first.move_start(Offset(2))
    assert truths.newest.shared_with(first) == 1
    truths.part(LeaderEpoch(3), Offset(1))
    truths.begun(LeaderEpoch(3), first)
    assert truths.is_lost(Offset(1), LeaderEpoch(2), LeaderEpoch(3))
    first.reset(Offset(2))
    assert truths.known[0].shared_with(first) == 2


def test_what_was_removed_before_another_record_is_not_known() -> None:
    truths, copied = Truths(), LogImage(STREAM)
    truths.newest.by_leader("a/orders", _log("x", "y", "z"), Offset(3))
    copied.reset(Offset(2))
    assert truths.newest.shared_with(copied) == 2, "it may be all that was there"
    other = copied.copy()
    copied.append(Batch(Offset(2), LeaderEpoch(1), ("z",)))
    assert truths.newest.shared_with(copied) == 3
    other.append(Batch(Offset(2), LeaderEpoch(1), ("other",)))
    assert truths.newest.shared_with(other) == 0


def test_a_leader_behind_one_loss_may_begin_after_the_next_was_allowed() -> None:
    truths, more, less = Truths(), _log("x", "y", "z"), _log("x")
    truths.newest.by_leader("a/orders", more, Offset(3))
    truths.part(LeaderEpoch(2), Offset(1))
    truths.part(LeaderEpoch(4), Offset(3))
    truths.begun(LeaderEpoch(3), less)
    assert truths.newest.end == 1
    with pytest.raises(Violation, match="in epoch 4 with 1 of what was committed; 3 was not lost"):
        truths.begun(LeaderEpoch(4), less)
    truths.begun(LeaderEpoch(4), more)
    assert (truths.newest.end, truths.newest.shared) == (3, 1)
