"""The cluster's feature level: what older nodes could not read is refused until all nodes can."""

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from envelope.errors import (
    CorruptDataError,
    FeatureLevelTooLow,
    InvalidConfig,
    JetstreamError,
    NodesTooOld,
    UnsupportedFeatureLevel,
)
from envelope.types import Incarnation, LogIndex, NodeEpoch, NodeId, StreamName
from metadata.catalog import snapshot
from metadata.catalog.catalog import Catalog, registered_level
from metadata.catalog.commands import (
    _KINDS,
    _LATER_FIELDS,
    _LATER_KINDS,
    Command,
    NameCluster,
    NodeLevel,
    ReassignReplicas,
    SetDefaultReplicas,
    SetFeatureLevel,
    SetVoters,
    decode_command,
    encode_command,
    feature_of,
)
from metadata.catalog.events import ClusterChanged, CommandRefused
from metadata.catalog.tables import ClusterRow
from metadata.features import LATEST_LEVEL, LEVELS, Feature, require
from tests.support.catalogs import apply, catalog_of, create, register, update

GOLDEN = Path(__file__).parent / "golden"
"""Made by the last version without feature levels, with its own commands and its own encoder."""


def golden_commands() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((GOLDEN / "level_0_commands.json").read_text())
    return found


def at_level_0(*nodes: str) -> Catalog:
    return catalog_of(*(register(node, feature_level=None) for node in nodes))


def error_of(catalog: Catalog, command: Command) -> JetstreamError:
    answer = apply(catalog, command)[0]
    assert isinstance(answer, CommandRefused), f"{command} is answered by {answer}"
    return answer.exception()


def all_can(catalog: Catalog, level: int = LATEST_LEVEL) -> tuple[NodeLevel, ...]:
    return tuple(NodeLevel(node.node_id, node.node_epoch, level) for node in catalog.nodes())


def above_level_0() -> list[Command]:
    """Every kind of entry that nodes of level 0 cannot read."""
    life = Incarnation("l1")
    target = (NodeId("a"), NodeId("b"))
    return [
        SetDefaultReplicas(1),
        SetVoters(1),
        NameCluster("f" * 32),
        replace(update("orders", replicas=2), replicas=target),
        ReassignReplicas(StreamName("orders"), life, target, expected_isr_version=1),
        register("b"),
    ]


def test_at_level_0_everything_is_decided_and_stored_as_by_the_version_before() -> None:
    """Byte for byte: nodes of both versions have one log, and read each other's snapshots."""
    catalog = Catalog()
    for number, entry in enumerate(golden_commands(), 1):
        data = entry["command"].encode()
        command = decode_command(data, LogIndex(number))
        assert encode_command(command) == data
        answer = catalog.apply(LogIndex(number), command)[0]
        assert isinstance(answer, CommandRefused) == (entry["refused"] is not None), (command, answer)
    assert catalog.cluster.feature_level == 0
    golden = (GOLDEN / "level_0_snapshot.bin").read_bytes()
    assert snapshot.encode(catalog) == golden
    restored = snapshot.decode(golden)
    assert restored.cluster.feature_level == 0
    assert snapshot.encode(restored) == golden


@pytest.mark.parametrize("command", above_level_0(), ids=lambda command: type(command).__name__)
def test_entries_that_nodes_of_level_0_cannot_read_are_refused_there(command: Command) -> None:
    catalog = at_level_0("a", "b")
    apply(catalog, create("orders", "l1", nodes=("a",)))
    before = snapshot.encode(catalog)
    error = error_of(catalog, command)
    assert isinstance(error, FeatureLevelTooLow)
    assert "jetstream cluster update --feature-level 1" in error.description
    assert error.detail == {"feature_level": 0, "needed": 1}
    assert json.loads(snapshot.encode(catalog)[20:]) == {
        **json.loads(before[20:]),
        "applied": catalog.applied,
    }
    apply(catalog, SetFeatureLevel(LATEST_LEVEL, all_can(catalog)))
    assert not isinstance(apply(catalog, command)[0], CommandRefused)


def test_at_level_0_a_patch_is_refused_that_names_the_replicas_a_stream_is_being_moved_to() -> None:
    """The version before refused it too, and all nodes must decide alike."""
    catalog = at_level_0("a", "b")
    apply(catalog, create("orders", "l1", nodes=("a",)))
    target = (NodeId("a"), NodeId("b"))
    apply(catalog, ReassignReplicas(StreamName("orders"), Incarnation("l1"), target))
    assert isinstance(error_of(catalog, update("orders", replicas=2)), FeatureLevelTooLow)
    assert not isinstance(apply(catalog, update("orders", replicas=1))[0], CommandRefused)


def test_the_first_node_of_a_cluster_brings_its_level() -> None:
    catalog = Catalog()
    assert registered_level(catalog) == LATEST_LEVEL
    apply(catalog, register("a"))
    assert catalog.cluster.feature_level == registered_level(catalog) == LATEST_LEVEL
    older = at_level_0("a")
    assert (older.cluster.feature_level, registered_level(older)) == (0, None)


def test_a_node_that_can_less_is_not_registered() -> None:
    catalog = catalog_of(register("a"))
    for can in (None, LATEST_LEVEL - 1):
        error = error_of(catalog, register("b", feature_level=can))
        assert isinstance(error, UnsupportedFeatureLevel)
        assert f"this node can feature level 0, and the cluster is at {LATEST_LEVEL}" in error.description
    assert catalog.node(NodeId("b")) is None
    apply(catalog, register("b", feature_level=LATEST_LEVEL + 1))
    assert catalog.node(NodeId("b")) is not None
    assert catalog.cluster.feature_level == LATEST_LEVEL


def test_the_level_is_raised_when_every_registered_node_has_said_that_it_can() -> None:
    catalog = at_level_0("a", "b", "c")
    a, b, c = all_can(catalog)
    for said, who in (
        ((), "a,b,c"),
        ((a, b), "c"),
        ((a, replace(b, feature_level=0), c), "b"),
        ((a, b, replace(c, node_epoch=NodeEpoch(2))), "c"),
    ):
        error = error_of(catalog, SetFeatureLevel(1, said))
        assert isinstance(error, NodesTooOld)
        assert error.detail == {"feature_level": 0, "nodes": who}
    assert (
        "node b can 0"
        in error_of(catalog, SetFeatureLevel(1, (a, replace(b, feature_level=0), c))).description
    )
    assert apply(catalog, SetFeatureLevel(1, (a, b, c))) == (ClusterChanged(ClusterRow(feature_level=1)),)
    assert catalog.cluster.feature_level == 1


def test_what_an_earlier_start_of_a_node_could_does_not_count() -> None:
    """It may have come back in the older version, and could not read what the level brings."""
    catalog = at_level_0("a", "b")
    said = all_can(catalog)
    apply(catalog, register("b", feature_level=None))
    error = error_of(catalog, SetFeatureLevel(1, said))
    assert isinstance(error, NodesTooOld)
    assert error.detail["nodes"] == "b"


def test_the_level_does_not_go_back_and_may_be_set_again() -> None:
    catalog = catalog_of(register("a"))
    assert isinstance(error_of(catalog, SetFeatureLevel(LATEST_LEVEL - 1, ())), InvalidConfig)
    older = at_level_0("a")
    assert isinstance(error_of(older, SetFeatureLevel(0, all_can(older))), InvalidConfig), (
        "an entry is an entry"
    )
    assert apply(catalog, SetFeatureLevel(LATEST_LEVEL, ())) == (ClusterChanged(catalog.cluster),)


def test_an_older_node_stops_at_the_entry_that_raises_the_level_above_its_own() -> None:
    newer = LATEST_LEVEL + 1
    catalog = catalog_of(register("a"), register("b"))
    refused = error_of(catalog, SetFeatureLevel(newer, all_can(catalog)))
    assert isinstance(refused, NodesTooOld), "a level that is not raised stops nobody"
    command = decode_command(encode_command(SetFeatureLevel(newer, all_can(catalog, newer))), LogIndex(4))
    with pytest.raises(UnsupportedFeatureLevel, match=f"can feature level {LATEST_LEVEL}, .* is at {newer}"):
        apply(catalog, command)
    with pytest.raises(UnsupportedFeatureLevel):
        apply(Catalog(), register("a", feature_level=newer))


def test_a_snapshot_keeps_the_level() -> None:
    catalog = at_level_0("a")
    for level in range(LATEST_LEVEL + 1):
        if level:
            apply(catalog, SetFeatureLevel(level, all_can(catalog)))
        data = snapshot.encode(catalog)
        assert int.from_bytes(data[4:8], "little") == 9 + level
        assert snapshot.decode(data).cluster == catalog.cluster


def test_every_feature_has_one_level_above_that_of_the_beginning() -> None:
    assert sorted(feature.name for features in LEVELS for feature in features) == sorted(Feature.__members__)
    assert LEVELS[0] == ()
    for feature in Feature:
        require(feature, feature.level)
        with pytest.raises(FeatureLevelTooLow, match=f"needs feature level {feature.level}"):
            require(feature, feature.level - 1)


def test_the_entries_of_level_0_need_no_feature() -> None:
    for entry in golden_commands():
        assert feature_of(decode_command(entry["command"].encode(), LogIndex(1))) is None
    assert {feature_of(command) for command in above_level_0()} == set(Feature)


def test_every_kind_and_field_of_commands_is_of_level_0_or_names_its_feature() -> None:
    """A new one that is in neither place would stop the nodes of before."""
    of_level_0: dict[str, set[str]] = {}
    for entry in golden_commands():
        body = json.loads(entry["command"])
        of_level_0.setdefault(body.pop("kind"), set()).update(body)
    for kind, command in _KINDS.items():
        known = of_level_0.get(kind, set()) | set(_LATER_FIELDS.get(kind, ()))
        names = {field.name for field in fields(command)}
        assert kind in _LATER_KINDS or command is SetFeatureLevel or names == known, kind


def test_damage_is_no_newer_version() -> None:
    data = bytearray(snapshot.encode(catalog_of(register("a"))))
    data[4] += 1
    with pytest.raises(CorruptDataError, match="checksum"):
        snapshot.decode(bytes(data))
