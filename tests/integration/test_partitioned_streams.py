"""Partitioned streams over a real NATS server, with plain JSON and the official client."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import nats
import nats.errors
import pytest
from nats.aio.client import Client
from nats.js.errors import APIError, NoStreamResponseError

import jetstream
from envelope.errors import UnavailableError
from envelope.partition_errors import StreamIsPartitioned
from envelope.partitions import partition_of
from jetstream.node.streams.directory import NodeStreams
from metadata.catalog.commands import Command, CreateStream, DeleteStream, UpdateStream
from metadata.catalog.events import Events, PartitionCountChanged
from metadata.node.catalogue.group import DEADLINE_SECONDS, MetadataQuorum
from metadata.node.catalogue.replicated_catalog import Applied
from tests.support.nodes import WAIT_SECONDS, nats_and_node, request, run
from tests.support.pauses import pause

ORDERS: dict[str, Any] = {
    "name": "orders",
    "subject": "orders.>",
    "partitions": 4,
    "partition_by": "key",
}


async def ends(client: Client, name: str = "orders") -> list[int]:
    """How many records each partition has."""
    info = await request(client, "stream.info", name=name)
    return [partition["log_end_offset"] for partition in info["partitions"]]


async def until_unheard(client: Client, subject: str) -> None:
    """Wait until nobody is subscribed: at once where it was asked for, a moment later where others follow."""
    while True:
        try:
            await client.jetstream().publish(subject, b"", timeout=0.5)
        except NoStreamResponseError:
            return
        except nats.errors.TimeoutError:
            continue
        raise AssertionError("a message was stored")


def code(answer: dict[str, Any]) -> str:
    word: str = answer["error"]["err_code"]
    return word


def test_a_partitioned_stream_is_its_partitions(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), await nats.connect(url) as client:
            made = await request(client, "stream.create", **ORDERS)
            names = [f"orders/{number}" for number in range(4)]
            assert [partition["name"] for partition in made["partitions"]] == names
            assert (made["created"], made["effective_partitions"], made["missing"]) == (True, 4, [])
            assert made["config"]["name"] == "orders"
            again = await request(client, "stream.create", **ORDERS)
            assert again == {**made, "created": False}
            found = await request(client, "stream.info", name="orders")
            assert {**found, "created": False} == again
            for number, name in enumerate(names):
                one = await request(client, "stream.info", name=name)
                assert one["state"] == "online"
                own = {"name": name, "partition_of": "orders", "partition": number}
                assert one["config"] == made["config"] | own
            listed = await request(client, "stream.list", prefix="orders")
            assert [(one["name"], one["partition_of"], one["partition"]) for one in listed["streams"]] == [
                (name, "orders", number) for number, name in enumerate(names)
            ]
            heard = await request(client, "stream.lookup", subject="orders.x")
            assert [one["name"] for one in heard["streams"]] == names

    run(scenario())


def test_official_clients_publish_to_it_by_key(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), await nats.connect(url) as client:
            await request(client, "stream.create", **ORDERS)
            js = client.jetstream()
            expected: Counter[int] = Counter()
            for number in range(40):
                key = f"order-{number % 10}"
                ack = await js.publish(
                    "orders.new", b"%d" % number, headers={"Jetstream-Key": key}, stream="orders"
                )
                partition = partition_of(key.encode(), 4)
                assert (ack.stream, ack.seq) == (f"orders/{partition}", expected[partition] + 1)
                expected[partition] += 1
            without_key = await js.publish("orders.new", b"x")
            assert without_key.stream == f"orders/{partition_of(b'orders.new', 4)}"
            expected[partition_of(b"orders.new", 4)] += 1
            assert await ends(client) == [expected[number] for number in range(4)]
            other = f"orders/{(partition_of(b'k', 4) + 1) % 4}"
            with pytest.raises(APIError, match="expected stream does not match"):
                await js.publish("orders.new", b"x", headers={"Jetstream-Key": "k"}, stream=other)
            headers = {"Jetstream-Key": "k", "Nats-Msg-Id": "once"}
            first = await js.publish("orders.new", b"x", headers=headers)
            second = await js.publish("orders.new", b"x", headers=headers)
            assert (second.stream, second.seq, second.duplicate) == (first.stream, first.seq, True)

    run(scenario())


@pytest.mark.parametrize("by", ["subject", "queue"])
def test_every_message_is_in_one_partition(by: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await request(js.nats, "stream.create", **{**ORDERS, "partition_by": by})
            await request(js.nats, "stream.create", name="audit", subject="orders.>")
            subjects = [f"orders.{number % 20}" for number in range(100)]
            acks = [
                await js.publish(subject, b"%d" % place, stream="orders")
                for place, subject in enumerate(subjects)
            ]
            stored: dict[bytes | None, tuple[str, int]] = {}
            for number in range(4):
                async for record in js.read(f"orders/{number}"):
                    assert record.value not in stored
                    stored[record.value] = (f"orders/{number}", record.offset)
                    assert by == "queue" or partition_of(record.subject.encode(), 4) == number
            assert [stored[b"%d" % place] for place in range(100)] == [
                (ack.stream, ack.offset) for ack in acks
            ]
            assert len({name for name, _ in stored.values()}) == 4
            assert (await js.streams.info("audit")).log_end_offset == 100

    run(scenario())


def test_an_update_is_one_of_all_partitions_and_adds_some(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), await nats.connect(url) as client:
            await request(client, "stream.create", **ORDERS)
            changed = await request(client, "stream.update", name="orders", labels={"team": "shop"})
            assert changed["config"]["labels"] == {"team": "shop"}
            config = changed["config"] | {"partitions": 6, "subject": "shop.>"}
            grown = await request(client, "stream.update", **config)
            assert (grown["config"], grown["effective_partitions"]) == (config, 6)
            for number in range(6):
                one = (await request(client, "stream.info", name=f"orders/{number}"))["config"]
                assert (one["subject"], one["labels"]) == ("shop.>", {"team": "shop"})
                assert one["partitions"] == (4 if number < 4 else 6)
            for number in range(12):
                key = f"k{number}"
                ack = await client.jetstream().publish("shop.x", b"", headers={"Jetstream-Key": key})
                assert ack.stream == f"orders/{partition_of(key.encode(), 6)}"
            again = await request(client, "stream.create", **(config))
            assert again["created"] is False
            await until_unheard(client, "orders.x")
            for fewer in (5, None):
                refused = await request(client, "stream.update", name="orders", partitions=fewer)
                assert refused["error"]["detail"] == {"field": "partitions"}
            refused = await request(client, "stream.update", name="orders", group="g")
            assert code(refused) == "invalid_config"

    run(scenario())


def test_a_deleted_one_is_gone_with_its_files_and_its_name_is_free(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), await nats.connect(url) as client:
            await request(client, "stream.create", **ORDERS)
            gone = await request(client, "stream.delete", name="orders")
            assert [one["name"] for one in gone["partitions"]] == [f"orders/{number}" for number in range(4)]
            assert list((tmp_path / "data" / "streams").iterdir()) == []
            assert code(await request(client, "stream.info", name="orders")) == "stream_not_found"
            assert code(await request(client, "stream.delete", name="orders")) == "stream_not_found"
            await until_unheard(client, "orders.x")
            assert (await request(client, "stream.create", name="orders", subject="orders.>"))["created"]

    run(scenario())


def test_what_is_of_the_whole_and_what_is_of_one_partition_are_told_apart(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), await nats.connect(url) as client:
            await request(client, "stream.create", **ORDERS)
            of_partitions: dict[str, dict[str, object]] = {
                "stream.truncate": {"before": 0},
                "stream.set_txid": {"txid": 0},
                "stream.reassign": {"cancel": True},
                "stream.elect": {"node": "n", "unclean": True},
                "stream.restore": {},
            }
            for operation, more in of_partitions.items():
                refused = await request(client, operation, name="orders", **more)
                assert code(refused) == "stream_is_partitioned"
                assert "orders/0 … orders/3" in refused["error"]["description"]
            of_all: dict[str, dict[str, object]] = {
                "stream.delete": {},
                "stream.update": {"subject": "elsewhere.>"},
            }
            for operation, more in of_all.items():
                refused = await request(client, operation, name="orders/1", **more)
                assert code(refused) == "stream_is_partition"
                assert refused["error"]["detail"]["partition_of"] == "orders"
            alone = await request(client, "stream.update", name="orders/1", read_only=True)
            assert alone["config"]["read_only"] is True
            assert (await request(client, "stream.truncate", name="orders/1", before=0))["name"] == "orders/1"
            assert code(await request(client, "stream.reset_time", name="orders")) == "stream_is_partitioned"
            assert (await request(client, "stream.reset_time", name="orders/1"))["name"] == "orders/1"
            plain = {"name": "orders", "subject": "orders.>"}
            assert code(await request(client, "stream.create", **plain)) == "stream_exists"
            await request(client, "stream.create", name="plain", subject="plain.>")
            clash = {**ORDERS, "name": "plain"}
            assert code(await request(client, "stream.create", **clash)) == "stream_exists"
            async with jetstream.connect(url) as js:
                with pytest.raises(StreamIsPartitioned):
                    await js.read_table("orders")

    run(scenario())


class Interrupted:
    """Lets the metadata log fail for some partitions, as it does when its leader is lost."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failing: set[str] = set()
        propose = MetadataQuorum.propose

        async def fails(
            group: MetadataQuorum, command: Command, deadline_seconds: float | None = DEADLINE_SECONDS
        ) -> Applied:
            name = command.config.name if isinstance(command, CreateStream) else ""
            if isinstance(command, UpdateStream | DeleteStream):
                name = command.stream
            if name in self.failing:
                raise UnavailableError("the metadata log is away")
            return await propose(group, command, deadline_seconds)

        monkeypatch.setattr(MetadataQuorum, "propose", fails)

    async def request(self, client: Client, operation: str, **body: object) -> None:
        """Send a request that fails for a partition, and says so."""
        self.failing = {"orders/2", "orders/5"}
        refused = await request(client, operation, **body)
        assert code(refused) == "unavailable"
        assert refused["error"]["retriable"] is True
        assert "the same request does the rest" in refused["error"]["description"]
        self.failing = set()


async def until_waiting(client: Client, name: str) -> None:
    """Wait until a partition says that it waits for others."""
    async with asyncio.timeout(WAIT_SECONDS):
        while (one := await request(client, "stream.info", name=name))["reason_code"] != "partitions_missing":
            await pause()
    assert one["state"] == "offline"


async def until_online(client: Client, partitions: int) -> None:
    """Wait until every partition takes messages: those that waited for others hear of it a moment later."""
    async with asyncio.timeout(WAIT_SECONDS):
        for number in range(partitions):
            while (await request(client, "stream.info", name=f"orders/{number}"))["state"] != "online":
                await pause()


@pytest.mark.parametrize("by", ["key", "queue"])
def test_partitions_whose_making_was_cut_off_are_made_by_the_same_request(
    by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted = Interrupted(monkeypatch)
    orders = {**ORDERS, "partition_by": by}

    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, node), await nats.connect(url) as client:
            await interrupted.request(client, "stream.create", **orders)
            half = await request(client, "stream.info", name="orders")
            assert (half["effective_partitions"], half["missing"]) == (0, [2])
            await until_unheard(client, "orders.x")
            await until_waiting(client, "orders/1")
            assert node._streams is not None
            assert list(node._streams.problems()) == [], "a node is well while somebody is to ask again"
            whole = await request(client, "stream.create", **orders)
            assert (whole["created"], whole["effective_partitions"], whole["missing"]) == (True, 4, [])
            await until_online(client, 4)
            await client.jetstream().publish("orders.x", b"")

            await interrupted.request(client, "stream.update", name="orders", partitions=6)
            half = await request(client, "stream.info", name="orders")
            assert (half["effective_partitions"], half["missing"]) == (4, [5])
            await client.jetstream().publish("orders.x", b"")
            whole = await request(client, "stream.update", name="orders", partitions=6)
            assert (whole["effective_partitions"], whole["missing"]) == (6, [])
            await until_online(client, 6)

    run(scenario())


def test_a_change_or_a_deletion_that_was_cut_off_is_completed_by_the_same_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted = Interrupted(monkeypatch)

    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), await nats.connect(url) as client:
            await request(client, "stream.create", **ORDERS)
            await interrupted.request(client, "stream.update", name="orders", labels={"a": "b"})
            labels = [
                (await request(client, "stream.info", name=f"orders/{n}"))["config"]["labels"]
                for n in range(4)
            ]
            assert labels == [{"a": "b"}, {"a": "b"}, {}, {"a": "b"}]
            changed = await request(client, "stream.update", name="orders", labels={"a": "b"})
            assert changed["config"]["labels"] == {"a": "b"}
            assert (await request(client, "stream.info", name="orders/2"))["config"]["labels"] == {"a": "b"}

            await interrupted.request(client, "stream.delete", name="orders")
            half = await request(client, "stream.info", name="orders")
            assert half["effective_partitions"] == 0
            assert [one["name"] for one in half["partitions"]] == ["orders/2"]
            await until_unheard(client, "orders.x")
            await request(client, "stream.delete", name="orders")
            assert code(await request(client, "stream.info", name="orders")) == "stream_not_found"

    run(scenario())


def test_a_node_that_gets_a_snapshot_of_the_catalogue_learns_what_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted, applied = Interrupted(monkeypatch), NodeStreams.applied

    def hears_no_counts(streams: NodeStreams, events: Events) -> None:
        applied(streams, tuple(event for event in events if not isinstance(event, PartitionCountChanged)))

    monkeypatch.setattr(NodeStreams, "applied", hears_no_counts)

    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, node), await nats.connect(url) as client:
            orders = {**ORDERS, "partition_by": "queue"}
            await interrupted.request(client, "stream.create", **orders)
            await until_waiting(client, "orders/0")
            await request(client, "stream.create", **orders)
            assert (await request(client, "stream.info", name="orders/0"))["state"] == "offline"
            assert node._streams is not None
            node._streams.restored()
            await until_online(client, 4)

    run(scenario())


def test_a_node_that_starts_again_goes_on_with_its_partitions(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), await nats.connect(url) as client:
            await request(client, "stream.create", **ORDERS)
            await asyncio.gather(
                *(
                    client.jetstream().publish("orders.x", b"", headers={"Jetstream-Key": f"{key}"})
                    for key in range(20)
                )
            )
            before = await ends(client)
        async with nats_and_node(tmp_path) as (url, _), await nats.connect(url) as client:
            assert await ends(client) == before
            ack = await client.jetstream().publish("orders.x", b"", headers={"Jetstream-Key": "1"})
            number = partition_of(b"1", 4)
            assert (ack.stream, ack.seq) == (f"orders/{number}", before[number] + 1)

    run(scenario())
