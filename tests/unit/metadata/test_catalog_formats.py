"""Bytes of commands and snapshots: exact, equal for equal things, refused when damaged."""

import json
from dataclasses import replace

import pytest

from envelope.errors import CorruptDataError, UnsupportedFeatureLevel
from envelope.types import Incarnation, LeaderEpoch, LogIndex, NodeEpoch, NodeId, StreamName
from metadata.catalog import snapshot
from metadata.catalog.catalog import Catalog
from metadata.catalog.commands import (
    ChangeLeader,
    DeleteStream,
    NameCluster,
    ReassignReplicas,
    SetDefaultReplicas,
    SetVoters,
    canonical_json,
    decode_command,
    encode_command,
)
from metadata.catalog.directories import directory_of, incarnation_of, is_incarnation
from metadata.catalog.tables import ClusterRow, UncleanElection
from metadata.features import LATEST_LEVEL
from metadata.stream_config import StreamConfig
from tests.support.catalogs import (
    CREATED,
    apply,
    catalog_of,
    create,
    limit_namespace,
    partition,
    register,
    update,
)

INDEX = LogIndex(7)


def populated() -> Catalog:
    return catalog_of(
        register("n2"),
        register("n1"),
        create("b", "l1", labels={"z": "1", "a": "ä"}),
        create("a/b", "l2", nodes=("n2", "n1")),
        create("gone", "l3"),
        DeleteStream(StreamName("gone")),
        update("b", retention={"age": "P1DT2H"}),
    )


def test_a_command_is_json_with_its_kind_and_sorted_keys() -> None:
    assert encode_command(DeleteStream(StreamName("a"), Incarnation("l1"))) == (
        b'{"incarnation":"l1","kind":"delete_stream","stream":"a"}'
    )


def test_defaults_of_a_configuration_are_written_out() -> None:
    """So that a later version with other defaults replays what was meant."""
    body = json.loads(encode_command(create("a")))
    assert body["config"].keys() == StreamConfig.model_fields.keys()


def test_absent_and_null_differ_in_a_stored_patch() -> None:
    stored = encode_command(update("a", segment_age=None, labels={"x": None}))
    assert json.loads(stored)["patch"] == {"segment_age": None, "labels": {"x": None}}
    decoded = decode_command(stored, INDEX)
    assert encode_command(decoded) == stored


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"{}",
        b"\xff",
        b'{"kind":[]}',
        b'{"kind":"delete_stream"}',
        (
            b'{"kind":"create_stream","config":{"name":"a b","subject":"a"},"incarnation":"l","created":1,'
            b'"replicas":["n"],"leader":"n"}'
        ),
        b"[" * 100_000,
    ],
)
def test_what_is_not_a_command_is_corruption(payload: bytes) -> None:
    with pytest.raises(CorruptDataError, match="metadata entry 7"):
        decode_command(payload, INDEX)


@pytest.mark.parametrize(
    "payload",
    [
        b'{"kind":"make_tea"}',
        b'{"kind":"delete_stream","stream":"a","extra":1}',
        b'{"kind":"update_stream","stream":"a","patch":{"colour":"red"}}',
    ],
)
def test_a_command_of_a_newer_version_is_told_from_damage(payload: bytes) -> None:
    with pytest.raises(UnsupportedFeatureLevel, match="metadata entry 7 is from a newer version"):
        decode_command(payload, INDEX)


def test_canonical_json_has_no_second_way_to_say_the_same() -> None:
    assert canonical_json({"b": 1, "a": {"d": "ä", "c": None}}) == '{"a":{"c":null,"d":"ä"},"b":1}'.encode()


def test_a_snapshot_reads_back_equal_and_encodes_to_the_same_bytes() -> None:
    catalog = populated()
    data = snapshot.encode(catalog)
    restored = snapshot.decode(data)
    restored.audit()
    assert restored.applied == catalog.applied
    assert restored.streams() == catalog.streams()
    assert restored.nodes() == catalog.nodes()
    assert restored.removals() == catalog.removals()
    assert snapshot.encode(restored) == data


def test_a_snapshot_does_not_depend_on_the_order_in_which_rows_or_labels_came() -> None:
    one = catalog_of(register(), create("a", "l1", labels={"x": "1", "y": "2"}), create("b", "l2"))
    other = catalog_of(register(), create("b", "l2"), create("a", "l1", labels={"y": "2", "x": "1"}))
    assert snapshot.encode(one) == snapshot.encode(other)


SHOP = {"streams": 3, "bytes": None, "creations_per_minute": None, "subjects": ["shop.>"]}


def test_the_format_of_a_snapshot_is_pinned() -> None:
    """Format 10: a reader of this version must read these bytes for ever."""
    at_home = replace(register(), peer_host="n1.internal", peer_port=9294, rack="a")
    data = snapshot.encode(catalog_of(at_home, create("a", "l1"), limit_namespace("shop", **SHOP)))
    assert data[:8] == b"JSCS\x0a\x00\x00\x00"
    assert int.from_bytes(data[8:16], "little") == len(data) - snapshot.HEADER_BYTES
    assert json.loads(data[20:]) == {
        "applied": 3,
        "nodes": [
            {
                "node_id": "n1",
                "node_epoch": 1,
                "directory": "disk-of-n1",
                "host": "127.0.0.1",
                "port": 7000,
                "http_port": 8000,
                "version": "0.1.0",
                "peer_host": "n1.internal",
                "peer_port": 9294,
                "rack": "a",
            }
        ],
        "streams": [
            {
                "config": {
                    "name": "a",
                    "subject": "a.>",
                    "replicas": 1,
                    "min_insync_replicas": None,
                    "read_replicas": 0,
                    **dict.fromkeys(("unclean_election", "read_only", "tier"), False),
                    "ack": "all",
                    "sync": "always",
                    "sync_interval": "PT1S",
                    "compression": "none",
                    "segment_bytes": 268435456,
                    "segment_age": None,
                    "record_bytes_max": 67108864,
                    "retention": {"age": None, "bytes": None, "messages": None},
                    **dict.fromkeys(("local_retention", "local_retention_bytes", "txid_max_step", "group")),
                    "compact": "none",
                    "compact_dirty_ratio": 0.5,
                    "compact_age_max": "P1D",
                    "tombstone_retention": "P1D",
                    "rewrite_after": "PT1H",
                    "dedupe_window": "PT2M",
                    "dedupe_ids_max": 500000,
                    "session_window": "P7D",
                    "labels": {},
                    **dict.fromkeys(("partitions", "partition_by", "partition_of", "partition")),
                },
                "incarnation": "l1",
                "created": CREATED,
                "replicas": ["n1"],
                "leader": "n1",
                "leader_epoch": 1,
                "isr": [{"node_id": "n1", "directory": "disk-of-n1"}],
                "isr_version": 1,
                **{key: [] for key in ("departed", "read_replicas", "blank", "unsynced")},
                **dict.fromkeys(("target", "last_unclean", "tier", "txid_set")),
                "begun": True,
            }
        ],
        **{key: [] for key in ("removals", "ticket_keys")},
        "forgotten_epoch": 0,
        "namespaces": [{"name": "shop", "limits": SHOP, "paid_until": 0}],
        "default_replicas": 1,
        **dict.fromkeys(("voters_wanted", "cluster_id")),
    }


def test_every_flipped_bit_of_a_snapshot_is_found() -> None:
    data = bytearray(snapshot.encode(catalog_of(register(), create("a", "l1"))))
    for position in range(len(data)):
        data[position] ^= 1 << position % 8
        with pytest.raises(CorruptDataError):
            snapshot.decode(bytes(data))
        data[position] ^= 1 << position % 8
    snapshot.decode(bytes(data))


def test_a_cut_or_lengthened_snapshot_is_refused() -> None:
    data = snapshot.encode(populated())
    for length in range(len(data)):
        with pytest.raises(CorruptDataError):
            snapshot.decode(data[:length])
    with pytest.raises(CorruptDataError):
        snapshot.decode(data + b"\x00")


def resealed(body: dict[str, object], version: int = 1) -> bytes:
    """A snapshot of ``body`` with a checksum that fits."""
    data = canonical_json(body)
    prefix = snapshot._PREFIX.pack(snapshot.MAGIC, version, len(data))
    return prefix + snapshot._CRC.pack(snapshot._checksum(prefix, data)) + data


def test_a_snapshot_of_another_format_is_refused() -> None:
    with pytest.raises(CorruptDataError, match="format 0"):
        snapshot.decode(resealed({}, version=0))


def test_the_format_of_a_snapshot_says_to_an_older_node_at_which_level_the_cluster_is() -> None:
    with pytest.raises(
        UnsupportedFeatureLevel, match=f"{LATEST_LEVEL}, and the cluster is at {LATEST_LEVEL + 1}"
    ):
        snapshot.decode(resealed({"more": True}, version=9 + LATEST_LEVEL + 1))


def test_format_1_knew_no_racks_and_no_addresses_for_peers() -> None:
    catalog = catalog_of(register(), create("a", "l1"))
    body = json.loads(snapshot.encode(catalog)[snapshot.HEADER_BYTES :])
    for node in body["nodes"]:
        assert [node.pop(field) for field in ("peer_host", "peer_port", "rack")] == [None] * 3
    restored = snapshot.decode(resealed(body, version=1))
    assert restored.nodes() == catalog.nodes()
    assert restored.streams() == catalog.streams()


def test_format_2_knew_no_reassignments() -> None:
    catalog = catalog_of(register(), create("a", "l1"))
    body = json.loads(snapshot.encode(catalog)[snapshot.HEADER_BYTES :])
    assert body["streams"][0].pop("target") is None
    assert body["streams"][0].pop("departed") == []
    assert snapshot.decode(resealed(body, version=2)).streams() == catalog.streams()


def test_format_3_knew_no_read_replicas_and_no_unclean_elections() -> None:
    catalog = catalog_of(register(), create("a", "l1"))
    body = json.loads(snapshot.encode(catalog)[snapshot.HEADER_BYTES :])
    row = body["streams"][0]
    assert [row.pop(field) for field in ("read_replicas", "blank", "unsynced")] == [[], [], []]
    assert row.pop("last_unclean") is None
    assert [row["config"].pop(field) for field in ("read_replicas", "unclean_election")] == [0, False]
    assert snapshot.decode(resealed(body, version=3)).streams() == catalog.streams()


def test_format_5_knew_no_partitions() -> None:
    catalog = catalog_of(register(), create("a", "l1"))
    body = json.loads(snapshot.encode(catalog)[snapshot.HEADER_BYTES :])
    for field in ("partitions", "partition_by", "partition_of", "partition"):
        assert body["streams"][0]["config"].pop(field) is None
    assert snapshot.decode(resealed(body, version=5)).streams() == catalog.streams()


def test_in_format_6_every_stream_has_begun() -> None:
    catalog = catalog_of(register(), create("a", "l1"))
    body = json.loads(snapshot.encode(catalog)[snapshot.HEADER_BYTES :])
    assert body["streams"][0].pop("begun") is True
    assert snapshot.decode(resealed(body, version=6)).streams() == catalog.streams()
    new = catalog_of(register(), create("a", "l1", begun=False))
    assert not snapshot.decode(snapshot.encode(new)).streams()[0].begun


def test_in_format_7_no_txid_was_set() -> None:
    catalog = catalog_of(register(), create("a", "l1"))
    body = json.loads(snapshot.encode(catalog)[snapshot.HEADER_BYTES :])
    row = body["streams"][0]
    assert row.pop("txid_set") is row["config"].pop("txid_max_step") is None
    assert snapshot.decode(resealed(body, version=7)).streams() == catalog.streams()


def test_in_format_8_no_namespace_had_limits() -> None:
    catalog = catalog_of(register(), create("shop/a", "l1"))
    body = json.loads(snapshot.encode(catalog)[snapshot.HEADER_BYTES :])
    assert body.pop("namespaces") == []
    restored = snapshot.decode(resealed(body, version=8))
    assert restored.namespaces == catalog.namespaces
    assert restored.namespaces.uses.of("shop").streams == 1


def test_in_format_9_nothing_was_set_for_the_whole_cluster() -> None:
    catalog = catalog_of(
        register(),
        create("a", "l1"),
        SetDefaultReplicas(3),
        SetVoters(5),
        NameCluster("0f" * 16),
    )
    data = snapshot.encode(catalog)
    row = ClusterRow(feature_level=LATEST_LEVEL, default_replicas=3, voters_wanted=5, cluster_id="0f" * 16)
    assert snapshot.decode(data).cluster == row
    body = json.loads(data[snapshot.HEADER_BYTES :])
    for name in ("default_replicas", "voters_wanted", "cluster_id"):
        assert body.pop(name)
    assert snapshot.decode(resealed(body, version=9)).cluster == ClusterRow()


def test_a_stored_change_of_limits_knows_null_from_absent() -> None:
    stored = encode_command(limit_namespace("shop", streams=None, subjects=["a.>"]))
    assert stored == (
        b'{"changes":{"streams":null,"subjects":["a.>"]},"kind":"limit_namespace","namespace":"shop"}'
    )
    assert encode_command(decode_command(stored, INDEX)) == stored


def test_entries_of_before_streams_began_are_of_streams_that_have() -> None:
    body = json.loads(encode_command(create("a")))
    assert body.pop("begun") is True
    assert decode_command(canonical_json(body), INDEX) == create("a")
    body = json.loads(encode_command(register()))
    assert body.pop("lost") == []
    assert decode_command(canonical_json(body), INDEX) == register()


def test_a_snapshot_keeps_which_partitions_there_are() -> None:
    catalog = catalog_of(register(), *(partition("orders", number, 2) for number in range(2)))
    restored = snapshot.decode(snapshot.encode(catalog))
    assert restored.partitions_of("orders") == 2
    assert restored.partition_rows("orders") == catalog.partition_rows("orders") == catalog.streams()
    apply(restored, DeleteStream(StreamName("orders/1")))
    assert restored.partitions_of("orders") == 0


def test_entries_of_before_there_were_partitions_are_read() -> None:
    body = json.loads(encode_command(create("a")))
    for field in ("partitions", "partition_by", "partition_of", "partition"):
        assert body["config"].pop(field) is None
    assert decode_command(canonical_json(body), INDEX) == create("a")


def test_entries_of_before_there_were_read_replicas_are_read() -> None:
    body = json.loads(encode_command(create("a")))
    assert body.pop("read_replicas") == []
    assert [body["config"].pop(field) for field in ("read_replicas", "unclean_election")] == [0, False]
    assert decode_command(canonical_json(body), INDEX) == create("a")
    body = json.loads(encode_command(update("a", labels={"x": "1"})))
    assert body.pop("read_replicas") is None
    assert "replicas" not in body, "nodes of before could not read it"
    assert decode_command(canonical_json(body), INDEX) == update("a", labels={"x": "1"})
    election = ChangeLeader(StreamName("a"), Incarnation("l1"), NodeId("n1"), NodeEpoch(1), LeaderEpoch(1))
    body = json.loads(encode_command(election))
    assert body.pop("unclean_at") is None
    assert decode_command(canonical_json(body), INDEX) == election
    move = ReassignReplicas(StreamName("a"), Incarnation("l1"), (NodeId("n1"),))
    body = json.loads(encode_command(move))
    assert body.pop("read_replicas") is None
    assert "expected_isr_version" not in body, "nodes of before could not read it"
    assert decode_command(canonical_json(body), INDEX) == move


def test_commands_that_name_new_replicas_are_read_as_they_were_written() -> None:
    grown = replace(update("a", replicas=2), replicas=(NodeId("n1"), NodeId("n2")))
    moved = ReassignReplicas(StreamName("a"), Incarnation("l1"), (NodeId("n1"),), expected_isr_version=3)
    for command in (grown, moved):
        assert decode_command(encode_command(command), INDEX) == command


def test_a_snapshot_keeps_read_replicas_and_what_an_unclean_election_left_behind() -> None:
    catalog = catalog_of(
        *(register(node) for node in ("n1", "n2", "n3")),
        create("a", "l1", nodes=("n1", "n2"), read_replicas=("n3",), sync="os"),
        update("a", sync="always"),
        register("n1", directory="gone"),
        ChangeLeader(
            StreamName("a"),
            Incarnation("l1"),
            NodeId("n3"),
            NodeEpoch(1),
            LeaderEpoch(1),
            unclean=True,
            unclean_at=CREATED,
        ),
    )
    restored = snapshot.decode(snapshot.encode(catalog))
    assert restored.streams() == catalog.streams()
    row = restored.streams()[0]
    assert row.last_unclean == UncleanElection(NodeId("n3"), LeaderEpoch(2), CREATED, (NodeId("n2"),))
    assert (row.replicas, row.read_replicas, row.blank) == (("n1", "n3"), ("n2",), ("n1",))


def test_an_entry_of_a_registration_without_rack_and_peers_is_read() -> None:
    body = json.loads(encode_command(register()))
    for field in ("peer_host", "peer_port", "rack"):
        assert body.pop(field) is None
    assert decode_command(canonical_json(body), INDEX) == register()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda body: body["streams"][0].update(leader="n9"), "K5"),
        (lambda body: body["streams"][0].update(isr=[]), "K4"),
        (lambda body: body["streams"][0].update(replicas=[]), "K3"),
        (lambda body: body["streams"][0].update(leader_epoch=0), "K6"),
        (lambda body: body["streams"].append(body["streams"][0]), "twice"),
        (lambda body: body["nodes"].append(body["nodes"][0]), "twice"),
        (lambda body: body["nodes"].append({**body["nodes"][0], "node_id": "n2"}), "K7"),
        (
            lambda body: body["streams"].append(
                {**body["streams"][0], "config": {"name": "z", "subject": "z"}}
            ),
            "K2",
        ),
        (lambda body: body["removals"].append({"name": "x", "incarnation": "l9", "pending": []}), "K8"),
        (lambda body: body["streams"][0]["config"].update(partitions=2, partition_by="key"), "K11"),
        (lambda body: body["namespaces"].append({"name": "", "limits": {"bytes": 1}}), "K12"),
        (lambda body: body["namespaces"].extend([{"name": "s", "limits": {"streams": 1}}] * 2), "twice"),
        (lambda body: body.update(applied=-1), "applied"),
        (lambda body: body.update(default_replicas=0), "K14: default replicas"),
        (lambda body: body.update(voters_wanted=2), "K14: 2 voters"),
        (lambda body: body.update(cluster_id="0F" * 16), "K14: cluster id"),
        (lambda body: body.update(more=1), "more"),
        (lambda body: body["streams"][0]["config"].update(name="a b"), "a b"),
    ],
)
def test_a_snapshot_whose_rows_contradict_each_other_is_refused(change: object, reason: str) -> None:
    body = json.loads(snapshot.encode(catalog_of(register(), create("a", "l1")))[snapshot.HEADER_BYTES :])
    assert callable(change)
    change(body)
    with pytest.raises(CorruptDataError, match=reason):
        snapshot.decode(resealed(body))


def test_directories_are_one_safe_component_each_and_tell_their_incarnation() -> None:
    life = Incarnation("0f3a-" * 12 + "abcd")
    for name in ("a", "A", "a/b", "a-b", "_", "x" * 255, "/".join("ab" * 60)):
        directory = directory_of(StreamName(name), life)
        assert len(directory.encode()) <= 255
        assert "/" not in directory
        assert not directory.startswith((".", "-"))
        assert incarnation_of(directory) == life
    assert directory_of(StreamName("a/b"), Incarnation("l1")) == "a.b@l1"


@pytest.mark.parametrize("directory", ["", "a", "@", "a@", "lost+found", "a@B", "a@l/1"])
def test_a_directory_that_is_no_streams_has_no_incarnation(directory: str) -> None:
    assert incarnation_of(directory) is None


def test_an_incarnation_that_is_not_validated_never_names_a_directory() -> None:
    assert not is_incarnation("../etc")
    with pytest.raises(AssertionError):
        directory_of(StreamName("a"), Incarnation("../etc"))
