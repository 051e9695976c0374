"""Any sequence of updates of a stream's number of replicas, placed as a node places them."""

from hypothesis import given, settings
from hypothesis import strategies as st

from envelope.errors import InvalidConfig, ReassignmentUnderWay
from envelope.types import NodeEpoch, NodeId, StreamName
from metadata.catalog.catalog import Catalog
from metadata.catalog.commands import (
    CancelReassignment,
    ChangeIsr,
    ChangeLeader,
    Command,
    ConfirmRemoval,
    FinishReassignment,
    NodeAtEpoch,
    UpdateStream,
)
from metadata.catalog.holders import wanted_replicas
from metadata.catalog.reassignment import is_ready
from metadata.catalog.tables import Stream
from metadata.placement import PlacementCandidate, loads, place_changes
from metadata.stream_patch import StreamPatch
from tests.support.catalogs import apply, catalog_of, create, refusal, register
from tests.support.example_counts import examples

NODES = tuple(map(NodeId, "abcde"))
ORDERS = StreamName("orders")


class Cluster:
    """One stream on some of five nodes; checks after every step what must hold for each."""

    def __init__(self) -> None:
        self.catalog: Catalog = catalog_of(*map(register, NODES), create("orders", nodes="a"))

    @property
    def row(self) -> Stream:
        row = self.catalog.stream(ORDERS)
        assert row is not None
        return row

    def done(self, command: Command) -> None:
        before = self.row
        error = refusal(apply(self.catalog, command))
        self.catalog.audit()
        if error is not None:
            assert self.row == before
            return
        assert set(self.row.isr_nodes) & set(before.isr_nodes), "somebody has all that was committed"
        for node in NODES:  # the files of those that left are gone before the next step
            apply(self.catalog, ConfirmRemoval(node, before.incarnation))

    def update(self, count: int, alive: list[NodeId]) -> None:
        before = self.row
        patch = StreamPatch.model_validate({"replicas": count})
        held, led = loads(self.catalog.streams())
        nodes = [PlacementCandidate(node, None, held[node], led[node]) for node in alive]
        number = wanted_replicas(before, patch) if before.target is None else None
        try:
            target, _ = place_changes(nodes, before, number, None)
        except InvalidConfig:
            assert count > len({*before.replicas, *alive}), "there is a node for each"
            return
        command = UpdateStream(stream=ORDERS, patch=patch, replicas=target)
        is_third = before.target is not None and wanted_replicas(before, patch) is not None
        assert isinstance(refusal(apply(self.catalog, command)), ReassignmentUnderWay) == is_third
        self.catalog.audit()
        after = self.row
        assert after.settled_replicas == before.settled_replicas, "all that there are stay for now"
        assert after.isr == before.isr
        if number is None:
            assert after == before
        elif number > before.config.replicas:
            assert set(after.target or ()) > set(before.replicas)
        else:
            assert set(after.target or ()) < set(before.replicas)
            assert before.leader in (None, *(after.target or ()))
            assert set(after.target or ()) & set(before.isr_nodes)

    def join(self, members: set[NodeId]) -> None:
        row = self.row
        if row.leader is None:
            return
        isr = tuple(NodeAtEpoch(node, NodeEpoch(1)) for node in sorted({*members, row.leader}))
        self.done(
            ChangeIsr(
                stream=ORDERS,
                incarnation=row.incarnation,
                leader=row.leader,
                leader_epoch=row.leader_epoch,
                expected_isr_version=row.isr_version,
                isr=isr,
            )
        )

    def elect(self, node: NodeId) -> None:
        row = self.row
        self.done(ChangeLeader(ORDERS, row.incarnation, node, NodeEpoch(1), row.leader_epoch))

    def finish(self) -> None:
        before = self.row
        self.done(FinishReassignment(ORDERS, before.incarnation, before.isr_version, before.leader_epoch))
        if is_ready(before) and before.leader in (before.target or ()):
            assert self.row.replicas == before.target
            assert self.row.config.replicas == len(before.target or ())


STEPS = st.one_of(
    st.tuples(st.just("update"), st.integers(1, 5), st.lists(st.sampled_from(NODES), unique=True)),
    st.tuples(st.just("join"), st.sets(st.sampled_from(NODES))),
    st.tuples(st.just("settle")),
    st.tuples(st.just("elect"), st.sampled_from(NODES)),
    st.tuples(st.just("finish")),
    st.tuples(st.just("cancel")),
)


@settings(max_examples=examples(200))
@given(st.lists(STEPS, min_size=10, max_size=30))
def test_copies_are_only_added_until_enough_others_are_in_sync(
    steps: list[tuple[object, ...]],
) -> None:
    cluster = Cluster()
    for step in steps:
        match step:
            case ("update", int(count), list(alive)):
                cluster.update(count, alive)
            case ("join", set(members)):
                cluster.join(members)
            case ("elect", str(node)):
                cluster.elect(NodeId(node))
            case ("settle",):
                cluster.join(set(cluster.row.replicas))
                cluster.finish()
            case ("finish",):
                cluster.finish()
            case _:
                cluster.done(CancelReassignment(ORDERS, cluster.row.incarnation))
