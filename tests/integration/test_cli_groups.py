"""``jetstream group`` against a real node."""

import json
import signal
from collections.abc import Iterator

import pytest
from nats import connect

from tests.support.commands import CommandProcess, jetstream, json_lines, succeeded, up
from tests.support.nodes import request, run


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of the NATS server of one running ``jetstream up``, with two streams."""
    process, endpoints = up(tmp_path_factory.mktemp("data"))
    with process:
        for stream, count in (("orders", 10), ("clicks", 4)):
            succeeded("stream", "create", stream, "--subject", f"{stream}.>", nats=endpoints["nats"])
            succeeded("pub", f"{stream}.x", "v", "--count", str(count), nats=endpoints["nats"])
        yield endpoints["nats"]
        assert process.signalled(signal.SIGTERM)[0] == 0


@pytest.fixture
def group(nats: str) -> Iterator[str]:
    """A group with a cursor in the middle of `orders`."""
    succeeded("group", "reset", "billing", "--to-offset", "4", "--stream", "orders", "--yes", nats=nats)
    yield "billing"
    succeeded("group", "delete", "billing", "--yes", nats=nats)


def test_groups_are_listed_and_shown(nats: str, group: str) -> None:
    [listed] = json_lines(succeeded("group", "ls", "--json", nats=nats))
    assert (listed["group"], listed["members"], listed["generation"]) == (group, 0, 0)
    assert json_lines(succeeded("group", "ls", "other", "--json", nats=nats)) == []
    assert "1 group" in succeeded("group", "ls", nats=nats)
    [info] = json_lines(succeeded("group", "info", group, "--json", nats=nats))
    assert [(each["stream"], each["offset"]) for each in info["cursors"]] == [("orders", 4)]
    shown = succeeded("group", "info", group, nats=nats)
    for word in (group, "__cursors/2", "sticky", "orders", "1 cursors"):
        assert word in shown


def test_the_lag_is_told_with_its_sum(nats: str, group: str) -> None:
    [told] = json_lines(succeeded("group", "lag", group, "--json", nats=nats))
    assert (told["group"], told["members"], told["total"], told["unknown"]) == (group, 0, 6, 0)
    [partition] = told["partitions"]
    assert partition["committed_at"].endswith("Z")
    del partition["committed_at"]
    assert partition == {
        "stream": "orders",
        "partition": 0,
        "standing": "current",
        "cursor": 4,
        "log_start_offset": 0,
        "high_watermark": 10,
        "lag": 6,
        "member": None,
        "client": None,
    }
    shown = succeeded("group", "lag", group, nats=nats)
    assert shown.endswith("behind by 6 in 1 partitions\n")


def test_a_reset_shows_what_it_moves_and_asks(nats: str, group: str) -> None:
    def offset() -> int:
        [info] = json_lines(succeeded("group", "info", group, "--json", nats=nats))
        [cursor] = info["cursors"]
        assert isinstance(cursor["offset"], int)
        return cursor["offset"]

    dry = succeeded("group", "reset", group, "--to-latest", "--dry-run", "--json", nats=nats)
    [move] = json_lines(dry)
    assert (move["stream"], move["partition"], move["before"], move["after"]) == ("orders", 0, 4, 10)
    assert offset() == 4
    refused = jetstream("group", "reset", group, "--to-latest", nats=nats, given="n\n")
    assert (refused.exit_code, offset()) == (1, 4)
    done = succeeded("group", "reset", group, "--to-latest", nats=nats, given="y\n")
    assert "set 1 cursors of billing" in done
    assert offset() == 10
    succeeded("group", "reset", group, "--shift-by", "-3", "--yes", nats=nats)
    assert offset() == 7
    succeeded("group", "reset", group, "--to-time", "2020-01-01", "--yes", nats=nats)
    assert offset() == 0
    succeeded("group", "reset", group, "--to-earliest", "--stream", "clicks", "--yes", nats=nats)
    [told] = json_lines(succeeded("group", "lag", group, "--json", nats=nats))
    assert [(each["stream"], each["lag"]) for each in told["partitions"]] == [("clicks", 4), ("orders", 10)]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("info", "nothing"), 3),
        (("lag", "nothing"), 3),
        (("delete", "nothing", "--yes"), 3),
        (("reset", "nothing", "--to-latest", "--yes"), 3),
        (("reset", "billing", "--to-latest", "--stream", "nothing", "--yes"), 3),
        (("reset", "billing", "--to-latest", "--stream", "orders", "--partition", "7", "--yes"), 3),
        (("info", "a.b"), 4),
        (("reset", "a.b", "--to-latest", "--stream", "orders", "--yes"), 4),
        (("reset", "billing", "--to-offset", "11", "--yes"), 4),
        (("reset", "billing", "--yes"), 2),
        (("reset", "billing", "--to-latest", "--to-earliest", "--yes"), 2),
        (("reset", "billing", "--to-latest", "--partition", "0", "--yes"), 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_done_has_its_exit_code(
    nats: str, group: str, arguments: tuple[str, ...], code: int
) -> None:
    assert jetstream("group", *arguments, nats=nats).exit_code == code
    [info] = json_lines(succeeded("group", "info", group, "--json", nats=nats))
    assert [each["offset"] for each in info["cursors"]] == [4]


def test_a_deletion_asks(nats: str, group: str) -> None:
    assert jetstream("group", "delete", group, nats=nats, given="n\n").exit_code == 1
    assert len(json_lines(succeeded("group", "ls", "--json", nats=nats))) == 1


# --- reading as a member ----------------------------------------------------------------------------------


def lag(nats: str, group: str) -> dict[str, int | None]:
    """The group's cursors by partition: the stream itself, or one of its partitions."""
    [told] = json_lines(succeeded("group", "lag", group, "--json", nats=nats))
    return {f"{each['stream']}/{each['partition']}": each["cursor"] for each in told["partitions"]}


def test_a_member_reads_on_where_the_group_is_and_its_limit_is_exact(nats: str, group: str) -> None:
    def read(*arguments: str) -> list[tuple[str, int]]:
        printed = succeeded("read", "orders", "--group", group, *arguments, nats=nats)
        return [(record["stream"], record["offset"]) for record in json_lines(printed)]

    assert read("--limit", "2") == [("orders", 4), ("orders", 5)]
    assert lag(nats, group) == {"orders/0": 6}
    assert read("--limit", "0") == []
    assert read("--limit", "4", "--commit-every", "1") == [("orders", offset) for offset in range(6, 10)]
    assert lag(nats, group) == {"orders/0": 10}
    assert read("--timeout", "100ms") == []
    [info] = json_lines(succeeded("group", "info", group, "--json", nats=nats))
    assert info["members"] == [], "each has left"


def test_a_new_group_begins_where_it_is_said(nats: str) -> None:
    arguments = ("read", "clicks", "--group", "new", "--from", "2", "--limit", "1", "--format", "text")
    [line] = succeeded(*arguments, nats=nats).splitlines()
    assert line.split()[:2] == ["clicks", "2"]
    assert lag(nats, "new") == {"clicks/0": 3}
    succeeded("group", "delete", "new", "--yes", nats=nats)


def test_an_interrupted_member_has_committed_what_it_wrote(nats: str, group: str) -> None:
    with CommandProcess("read", "orders", "--group", group, nats=nats) as process:
        offsets = [json.loads(process.line())["offset"] for _ in range(6)]
        assert offsets == list(range(4, 10))
        assert process.signalled(signal.SIGINT)[0] == 130
    assert lag(nats, group) == {"orders/0": 10}


def test_a_member_reads_all_partitions(nats: str) -> None:
    async def create() -> None:
        async with await connect(nats) as client:
            made = {"name": "parts", "subject": "parts.*", "partitions": 3, "partition_by": "subject"}
            assert "error" not in await request(client, "stream.create", **made)

    run(create())
    for number in range(12):
        succeeded("pub", f"parts.{number}", "v", nats=nats)
    printed = succeeded("read", "parts", "--group", "of-parts", "--limit", "12", nats=nats)
    places: dict[str, list[int]] = {}
    for record in json_lines(printed):
        places.setdefault(record["stream"], []).append(record["offset"])
    assert sum(map(len, places.values())) == 12
    assert all(offsets == list(range(len(offsets))) for offsets in places.values())
    read = {stream: len(offsets) for stream, offsets in places.items()}
    assert {name: cursor for name, cursor in lag(nats, "of-parts").items() if cursor is not None} == read
    succeeded("group", "delete", "of-parts", "--yes", nats=nats)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--timeout", "1s"),
        ("--commit-every", "5"),
        ("--group", "g", "--to", "end"),
        ("--group", "g", "--latest-by-key"),
        ("--group", "g", "--output", "file"),
        ("--group", "g", "--format", "parquet"),
        ("--group", "g", "--timeout", "0"),
        ("--group", "g", "--commit-every", "0"),
    ],
    ids=" ".join,
)
def test_what_is_not_for_members_is_refused(nats: str, arguments: tuple[str, ...]) -> None:
    assert jetstream("read", "orders", *arguments, nats=nats).exit_code == 2
