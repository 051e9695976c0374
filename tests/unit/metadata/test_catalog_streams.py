from datetime import timedelta

import pytest

from envelope.errors import (
    InvalidConfig,
    InvalidName,
    JetstreamError,
    LimitReached,
    StreamExists,
    UnknownNode,
    UnknownStream,
)
from envelope.types import AckPolicy, Incarnation, LeaderEpoch, LogIndex, NodeId, StreamName
from metadata.catalog import streams as stream_rules
from metadata.catalog import tables
from metadata.catalog.catalog import Catalog, streams_of
from metadata.catalog.commands import ConfirmRemoval, CreateStream, DeleteStream
from metadata.catalog.events import (
    RemovalConfirmed,
    StreamCreated,
    StreamDeleted,
    StreamFound,
    StreamUpdated,
)
from metadata.stream_config import StreamConfig
from tests.support.catalogs import apply, catalog_of, create, refusal, register, update

ORDERS = StreamName("orders")


def test_a_new_stream_has_all_replicas_in_sync_and_its_leader_in_reign_one() -> None:
    catalog = catalog_of(register("n1"), register("n2"))
    events = apply(catalog, create("orders", nodes=("n2", "n1")))
    stream = catalog.stream(ORDERS)
    assert stream is not None
    assert events == (StreamCreated(stream),)
    assert stream.leader == "n2"
    assert stream.leader_epoch == LeaderEpoch(1)
    assert stream.isr_nodes == ("n2", "n1")
    assert catalog.count_streams() == 1


def test_creating_again_with_an_equal_configuration_finds_the_stream() -> None:
    catalog = catalog_of(register(), create("orders", "first"))
    before = catalog.stream(ORDERS)
    assert before is not None
    assert apply(catalog, create("orders", "second")) == (StreamFound(before),)
    assert catalog.stream(ORDERS) is before


def test_equal_configurations_are_equal_however_they_are_written() -> None:
    as_seconds = StreamConfig.model_validate_json('{"name":"a","subject":"a","dedupe_window":120}')
    as_text = StreamConfig.model_validate_json(
        '{"subject":"a","name":"a","dedupe_window":"PT2M","replicas":1}'
    )
    assert as_seconds == as_text == StreamConfig(name="a", subject="a")


def test_the_same_name_with_another_configuration_is_refused_and_says_what_differs() -> None:
    catalog = catalog_of(register(), create("orders"))
    error = refusal(apply(catalog, create("orders", subject="other", ack="leader")))
    assert isinstance(error, StreamExists)
    assert error.detail == {"fields": "subject, ack"}


def test_names_that_differ_only_in_case_or_namespace_are_different_streams() -> None:
    catalog = catalog_of(
        register(), create("a/b", "l1"), create("a-b", "l2"), create("A/b", "l3"), create("a", "l4")
    )
    assert [stream.name for stream in catalog.streams()] == ["A/b", "a", "a-b", "a/b"]


@pytest.mark.parametrize("subject", [">", "*.x", "$JS.>", "_INBOX.>", "*", "jetstream.api.>", "jetstream.>"])
def test_a_pattern_that_reaches_reserved_subjects_needs_ack_none(subject: str) -> None:
    catalog = catalog_of(register())
    error = refusal(apply(catalog, create("orders", subject=subject)))
    assert isinstance(error, InvalidConfig)
    assert "ack: none" in error.description
    assert error.detail == {"field": "subject"}
    assert refusal(apply(catalog, create("orders", subject=subject, ack="none"))) is None


def test_the_reserved_prefix_is_the_one_of_the_node_that_took_the_request() -> None:
    catalog = catalog_of(register())
    wanted = create("orders", subject="house.>")
    elsewhere = CreateStream(
        config=wanted.config,
        incarnation=wanted.incarnation,
        created=wanted.created,
        replicas=wanted.replicas,
        leader=wanted.leader,
        api_prefix="house.js",
    )
    assert isinstance(refusal(apply(catalog, elsewhere)), InvalidConfig)
    assert refusal(apply(catalog, wanted)) is None


@pytest.mark.parametrize(
    ("nodes", "leader", "replicas", "error"),
    [
        (("n1", "n9"), "n1", 2, UnknownNode),
        (("n1",), "n9", 1, UnknownNode),
        (("n1",), "n1", 2, InvalidConfig),
        (("n1", "n1"), "n1", 2, InvalidConfig),
        (("n1", "n2"), "n1", 1, InvalidConfig),
        (("n1",), "n2", 1, InvalidConfig),
    ],
)
def test_a_placement_that_does_not_fit_is_refused(
    nodes: tuple[str, ...], leader: str, replicas: int, error: type[JetstreamError]
) -> None:
    catalog = catalog_of(register("n1"), register("n2"))
    command = CreateStream(
        config=StreamConfig(name="orders", subject="orders", replicas=replicas),
        incarnation=Incarnation("l1"),
        created=create().created,
        replicas=tuple(NodeId(node) for node in nodes),
        leader=NodeId(leader),
    )
    assert isinstance(refusal(apply(catalog, command)), error)
    assert catalog.count_streams() == 0


@pytest.mark.parametrize("incarnation", ["", "UPPER", "a/b", "..", "a" * 65, "-a", "ä"])
def test_an_incarnation_that_could_not_be_a_directory_is_refused(incarnation: str) -> None:
    catalog = catalog_of(register())
    command = create("orders")
    bad = CreateStream(
        config=command.config,
        incarnation=Incarnation(incarnation),
        created=command.created,
        replicas=command.replicas,
        leader=command.leader,
    )
    assert isinstance(refusal(apply(catalog, bad)), InvalidName)


def test_an_incarnation_is_never_used_twice_while_its_files_may_exist() -> None:
    catalog = catalog_of(register(), create("orders", "l1"))
    assert isinstance(refusal(apply(catalog, create("other", "l1"))), InvalidConfig)
    assert refusal(apply(catalog, DeleteStream(ORDERS))) is None
    assert isinstance(refusal(apply(catalog, create("orders", "l1"))), InvalidConfig)
    assert apply(catalog, ConfirmRemoval(NodeId("n1"), Incarnation("l1")))
    assert refusal(apply(catalog, create("orders", "l1"))) is None


def test_the_number_of_streams_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_rules, "STREAMS_MAX", 2)
    catalog = catalog_of(register(), create("a", "l1"), create("b", "l2"))
    assert isinstance(refusal(apply(catalog, create("c", "l3"))), LimitReached)
    assert refusal(apply(catalog, create("a", "l4"))) is None


def test_an_update_merges_and_leaves_the_rest_alone() -> None:
    catalog = catalog_of(
        register(), create("orders", labels={"team": "a", "tier": "1"}, retention={"age": "P7D"})
    )
    before = catalog.stream(ORDERS)
    assert before is not None
    events = apply(
        catalog,
        update(subject="o.>", ack="leader", retention={"messages": 10}, labels={"tier": None, "new": "x"}),
    )
    after = catalog.stream(ORDERS)
    assert after is not None
    assert events == (StreamUpdated(after, before),)
    assert after.config.subject == "o.>"
    assert after.config.ack is AckPolicy.LEADER
    assert (after.config.retention.age, after.config.retention.messages) == (timedelta(days=7), 10)
    assert after.config.labels == {"team": "a", "new": "x"}
    assert (after.incarnation, after.leader_epoch) == (before.incarnation, before.leader_epoch)


def test_null_in_an_update_goes_back_to_the_default() -> None:
    catalog = catalog_of(
        register(), create("orders", ack="leader", segment_age="P1D", retention={"age": 5}, labels={"a": "b"})
    )
    apply(catalog, update(ack=None, segment_age=None, retention=None, labels=None))
    stream = catalog.stream(ORDERS)
    assert stream is not None
    assert stream.config == create("orders").config


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"replicas": None}, "replicas"),
        ({"name": "else"}, "name"),
        ({"name": None}, "name"),
        ({"subject": None}, "subject"),
        ({"subject": ">"}, "subject"),
        ({"min_insync_replicas": 2}, "min_insync_replicas"),
    ],
)
def test_an_update_that_cannot_be_is_refused_whole(changes: dict[str, object], field: str) -> None:
    catalog = catalog_of(register(), create("orders", replicas=1))
    before = catalog.stream(ORDERS)
    error = refusal(apply(catalog, update("orders", ack="leader", **({"labels": {"a": "b"}} | changes))))
    assert isinstance(error, InvalidConfig)
    assert error.detail["field"] == field
    assert catalog.stream(ORDERS) is before


def test_a_whole_configuration_can_be_sent_back_as_an_update() -> None:
    catalog = catalog_of(register(), create("orders"))
    whole = create("orders").config.model_dump(mode="json")
    assert refusal(apply(catalog, update("orders", **{**whole, "name": "orders", "ack": "leader"}))) is None
    stream = catalog.stream(ORDERS)
    assert stream is not None
    assert stream.config.ack is AckPolicy.LEADER


def test_too_many_labels_after_a_merge_are_refused() -> None:
    catalog = catalog_of(register(), create("orders", labels={f"a{n}": "" for n in range(40)}))
    error = refusal(apply(catalog, update("orders", labels={f"b{n}": "" for n in range(40)})))
    assert isinstance(error, InvalidConfig)
    assert error.detail == {"field": "labels"}


def test_a_deleted_stream_owes_the_removal_of_its_files_until_every_node_confirmed() -> None:
    catalog = catalog_of(register("n1"), register("n2"), create("orders", "l1", nodes=("n1", "n2")))
    (event,) = apply(catalog, DeleteStream(ORDERS))
    assert isinstance(event, StreamDeleted)
    assert event.removal.pending == ("n1", "n2")
    assert catalog.stream(ORDERS) is None
    assert catalog.removals(NodeId("n1")) == catalog.removals() == (event.removal,)
    apply(catalog, ConfirmRemoval(NodeId("n1"), Incarnation("l1")))
    assert catalog.removals(NodeId("n1")) == ()
    assert catalog.removals(NodeId("n2"))[0].pending == ("n2",)
    for _ in range(2):
        (confirmed,) = apply(catalog, ConfirmRemoval(NodeId("n2"), Incarnation("l1")))
        assert isinstance(confirmed, RemovalConfirmed)
    assert catalog.removals() == ()


def test_a_late_deletion_of_an_earlier_life_spares_the_new_one() -> None:
    catalog = catalog_of(register(), create("orders", "l1"), DeleteStream(ORDERS), create("orders", "l2"))
    late = DeleteStream(ORDERS, Incarnation("l1"))
    assert isinstance(refusal(apply(catalog, late)), UnknownStream)
    assert catalog.stream(ORDERS) is not None


def test_commands_to_a_missing_stream_are_refused_by_name() -> None:
    catalog = catalog_of(register())
    for command in (DeleteStream(ORDERS), update("orders")):
        error = refusal(apply(catalog, command))
        assert isinstance(error, UnknownStream)
        assert error.detail == {"stream": "orders"}


def test_owed_removals_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "REMOVALS_MAX", 1)
    catalog = catalog_of(register(), create("a", "l1"), create("b", "l2"), DeleteStream(StreamName("a")))
    assert isinstance(refusal(apply(catalog, DeleteStream(StreamName("b")))), LimitReached)


def test_streams_of_a_subject_are_those_whose_pattern_matches() -> None:
    catalog = catalog_of(
        register(),
        create("all", "l1", subject="orders.>"),
        create("eu", "l2", subject="orders.eu.*"),
        create("other", "l3", subject="stock.>"),
    )
    assert [stream.name for stream in streams_of(catalog, "orders.eu.1")] == ["all", "eu"]
    assert [stream.name for stream in streams_of(catalog, "orders.us.1")] == ["all"]
    assert streams_of(catalog, "orders") == ()


def test_entries_are_applied_without_a_gap() -> None:
    with pytest.raises(AssertionError, match="K9"):
        Catalog().apply(LogIndex(2), register())
