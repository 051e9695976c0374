"""``jetstream stream …`` with partitioned streams."""

import signal
from collections.abc import Iterator

import pytest

from envelope.partitions import partition_of
from tests.support.commands import jetstream, json_lines, succeeded, up


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of the NATS server of one running ``jetstream up``."""
    process, endpoints = up(tmp_path_factory.mktemp("data"))
    with process:
        yield endpoints["nats"]
        code, _, error = process.signalled(signal.SIGTERM)
        assert (code, error) == (0, "")


def test_a_partitioned_stream_is_made_shown_grown_and_deleted(nats: str) -> None:
    options = ("--subject", "orders.>", "--partition-by", "key")
    made = succeeded("stream", "create", "orders", *options, "--partitions", "2", nats=nats)
    assert made == "created stream orders on orders.> in 2 partitions\n"
    again = succeeded("stream", "create", "orders", *options, "--partitions", "2", nats=nats)
    assert again.startswith("found stream orders")
    [ack] = json_lines(succeeded("pub", "orders.x", "hello", "--key", "k", "--json", nats=nats))
    name = f"orders/{partition_of(b'k', 2)}"
    assert ack["stream"] == name
    [record] = json_lines(succeeded("read", name, nats=nats))
    assert record["value"] == "hello"

    listed = succeeded("stream", "ls", nats=nats)
    assert "2 streams" in listed
    assert "orders/0" in listed
    assert "orders/1" in listed
    lines = json_lines(succeeded("stream", "ls", "--json", nats=nats))
    assert [(line["partition_of"], line["partition"]) for line in lines] == [("orders", 0), ("orders", 1)]

    shown = succeeded("stream", "info", "orders", nats=nats)
    assert "2, 2 of which share the messages" in shown
    assert "orders/1" in shown
    [whole] = json_lines(succeeded("stream", "info", "orders", "--json", nats=nats))
    assert (whole["effective_partitions"], whole["config"]["partition_by"]) == (2, "key")
    one = succeeded("stream", "info", name, nats=nats)
    assert "partition of" in one

    grown = succeeded("stream", "update", "orders", "--partitions", "3", "--label", "team=a", nats=nats)
    assert "3, 3 of which share the messages" in grown
    assert (
        succeeded("stream", "delete", "orders", "--yes", nats=nats)
        == "deleted stream orders with 3 partitions\n"
    )
    assert json_lines(succeeded("stream", "ls", "--json", nats=nats)) == []


def test_what_cannot_be_is_said(nats: str) -> None:
    alone = jetstream("stream", "create", "orders", "--subject", "a.>", "--partitions", "2", nats=nats)
    assert alone.exit_code == 4
    assert "partition_by: say queue, key or subject" in alone.stderr
    succeeded(
        "stream",
        "create",
        "shop",
        "--subject",
        "shop.>",
        "--partitions",
        "2",
        "--partition-by",
        "queue",
        nats=nats,
    )
    fewer = jetstream("stream", "update", "shop", "--partitions", "1", nats=nats)
    assert (fewer.exit_code, "partitions are only added" in fewer.stderr) == (4, True)
    child = jetstream("stream", "delete", "shop/1", "--yes", nats=nats)
    assert (child.exit_code, "is a partition of 'shop'" in child.stderr) == (4, True)
    whole = jetstream("read", "shop", nats=nats)
    assert (whole.exit_code, "shop/0 … shop/1" in whole.stderr) == (4, True)
    succeeded("stream", "delete", "shop", "--yes", nats=nats)
