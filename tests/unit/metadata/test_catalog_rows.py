"""No row that breaks an invariant comes into the catalogue, whatever a command has decided."""

from dataclasses import replace

import pytest

from envelope.types import Incarnation, LeaderEpoch, NodeId
from metadata.catalog.catalog import Catalog
from metadata.catalog.tables import InSyncReplica, Stream, Tables
from tests.support.catalogs import apply, create, register, update

OTHER = NodeId("n2")


def tables_and_row() -> tuple[Tables, Stream]:
    tables = Tables()
    apply(catalog := Catalog(tables), register())
    apply(catalog, register("n2"))
    apply(catalog, create(nodes=("n1", "n2"), min_insync_replicas=1))
    return tables, next(iter(tables.streams.values()))


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({"incarnation": Incarnation("another")}, "K2"),
        ({"leader_epoch": LeaderEpoch(0)}, "K6"),
        ({"isr_version": 0}, "K6"),
        ({"leader": OTHER}, "K6"),
    ],
)
def test_a_row_that_cannot_follow_the_one_before_is_not_put(changes: dict[str, object], broken: str) -> None:
    tables, row = tables_and_row()
    with pytest.raises(AssertionError, match=broken):
        tables.put(replace(row, **changes))  # type: ignore[arg-type]  # one of its fields
    tables.put(replace(row, leader=OTHER, leader_epoch=LeaderEpoch(2)))


def test_the_life_of_a_stream_is_not_put_under_a_second_name() -> None:
    tables, row = tables_and_row()
    config = row.config.model_copy(update={"name": "clicks"})
    with pytest.raises(AssertionError, match="K2"):
        tables.put(replace(row, config=config))


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({"isr": ()}, "K4"),
        ({"isr": (InSyncReplica(NodeId("n1"), "another-disk"),)}, "K5"),
        ({"replicas": (NodeId("n1"), NodeId("n9"))}, "K3"),
    ],
)
def test_a_command_that_leaves_a_broken_row_stops_the_process(
    changes: dict[str, object], broken: str
) -> None:
    tables, row = tables_and_row()
    tables.put(replace(row, **changes))  # type: ignore[arg-type]  # one of its fields
    with pytest.raises(AssertionError, match=broken):
        apply(Catalog(tables), update(read_only=True))
