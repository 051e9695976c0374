"""Every command against a real node on a real NATS server, as a person or a script would run it."""

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands import CommandProcess, jetstream, json_lines, succeeded, up
from tests.support.nats_server import NatsServer


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of the NATS server of one running ``jetstream up``."""
    process, endpoints = up(tmp_path_factory.mktemp("data"))
    with process:
        yield endpoints["nats"]
        code, _, error = process.signalled(signal.SIGTERM)
        assert (code, error) == (0, "")


@pytest.fixture
def stream(nats: str, request: pytest.FixtureRequest) -> str:
    """A stream of the test's own; its subjects begin with its name."""
    name = request.node.name.removeprefix("test_")[:60]
    succeeded("stream", "create", name, "--subject", f"{name}.>", nats=nats)
    return str(name)


# --- up and node ----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_up_says_its_endpoints_and_ready_and_stops_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    with CommandProcess("up", "--data", str(tmp_path), "--port", "0", "--nats-port", "0") as process:
        lines = process.lines_until("ready")
        assert [line.split()[0] for line in lines] == ["nats", "socket", "data", "ready"]
        assert lines[0].split()[1].startswith("nats://127.0.0.1:")
        assert lines[2].split()[1] == str(tmp_path)
        assert process.signalled(number) == (0, "stopped\n", "stopping (again to end at once)\n")


def test_everything_is_there_again_after_a_restart(tmp_path: Path) -> None:
    process, endpoints = up(tmp_path)
    with process:
        succeeded("stream", "create", "kept", "--subject", "kept.>", nats=endpoints["nats"])
        succeeded("pub", "kept.a", "first", "--msg-id", "1", nats=endpoints["nats"])
        assert process.signalled(signal.SIGTERM)[0] == 0
    process, endpoints = up(tmp_path)
    with process:
        [again] = json_lines(
            succeeded("pub", "kept.a", "first", "--msg-id", "1", "--json", nats=endpoints["nats"])
        )
        assert (again["offset"], again["duplicate"]) == (0, True)
        [record] = json_lines(succeeded("read", "kept", nats=endpoints["nats"]))
        assert record["value"] == "first"
        assert process.signalled(signal.SIGTERM)[0] == 0


def test_up_attaches_to_a_nats_server_of_ours_and_starts_none(tmp_path: Path) -> None:
    with NatsServer(tmp_path / "server") as server:
        process, endpoints = up(tmp_path / "data", "--nats", server.url)
        with process:
            assert not (tmp_path / "data" / "nats").exists()
            succeeded("stream", "create", "a", "--subject", "a", nats=server.url)
            assert process.signalled(signal.SIGTERM)[0] == 0
        assert "socket" in endpoints


def test_up_ends_with_the_nats_server_it_started(tmp_path: Path) -> None:
    process, _ = up(tmp_path)
    with process:
        started = re.search(
            r"\[(\d+)\] .*Server is ready", (tmp_path / "nats" / "nats-server.log").read_text()
        )
        assert started is not None
        os.kill(int(started[1]), signal.SIGKILL)
        code, _, error = process.finished()
    assert code == 5, error
    assert json.loads(error.splitlines()[-1])["error"]["description"].startswith("the embedded NATS server")


def test_up_says_which_nats_server_does_not_answer(tmp_path: Path) -> None:
    arguments = ("--data", str(tmp_path), "--nats", "nats://127.0.0.1:1", "--port", "0")
    environment = {"JETSTREAM_NODE_NATS__START_TIMEOUT": "PT0.5S"}
    with CommandProcess("up", *arguments, environment=environment) as process:
        code, _, error = process.finished()
    assert code == 5
    assert error.splitlines()[-1].startswith("error: cannot connect to NATS at nats://127.0.0.1:1")
    assert "Traceback" not in error


def test_up_on_a_taken_port_says_so(tmp_path: Path) -> None:
    with NatsServer(tmp_path / "server") as server:
        arguments = ("--data", str(tmp_path / "data"), "--port", "0", "--nats-port", str(server.port))
        with CommandProcess("up", *arguments) as process:
            code, _, error = process.finished()
        assert code == 5
        assert "address already in use" in error
        with CommandProcess(
            "up", "--data", str(tmp_path / "data"), "--nats", server.url, "--port", str(server.port)
        ) as process:
            code, _, error = process.finished()
        assert code == 5
        assert error.startswith(f"error: cannot listen on 127.0.0.1:{server.port}")


def test_a_data_directory_serves_one_node_at_a_time(tmp_path: Path) -> None:
    first, _ = up(tmp_path)
    with first, CommandProcess("up", "--data", str(tmp_path), "--port", "0", "--nats-port", "0") as second:
        code, _, error = second.finished()
        assert code == 1
        assert error.startswith(f"error: {tmp_path}: ")
        assert "Traceback" not in error
        assert first.signalled(signal.SIGTERM)[0] == 0


def test_a_directory_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("not a log")
    result = jetstream("up", "--data", str(tmp_path))
    assert result.exit_code == 1
    assert "it is not ours" in result.stderr
    assert {path.name for path in tmp_path.iterdir()} <= {"thesis.txt", "lock"}


def test_node_takes_its_settings_from_a_file_and_the_environment(tmp_path: Path) -> None:
    with NatsServer(tmp_path / "server", 'authorization { token: "sesame" }') as server:
        settings = tmp_path / "node.toml"
        settings.write_text(
            f'data = "{tmp_path / "data"}"\nlog_level = "error"\n'
            f'[nats]\nurls = ["{server.url}"]\n[socket]\nport = 9292\n'
        )
        environment = {"JETSTREAM_NODE_NATS__TOKEN": "sesame", "JETSTREAM_NODE_SOCKET__PORT": "0"}
        with CommandProcess("node", "--config", str(settings), environment=environment) as process:
            lines = process.lines_until("ready")
            assert not any(line.endswith(":9292") for line in lines)
            created = jetstream(
                "stream", "create", "a", "--subject", "a", "--token", "sesame", nats=server.url
            )
            assert created.exit_code == 0
            assert process.signalled(signal.SIGTERM) == (0, "stopped\n", "stopping (again to end at once)\n")


@pytest.mark.parametrize("text", ['colour = "red"', "data = 1", "not toml", '[nats]\nurls = ["http://a"]'])
def test_a_wrong_configuration_is_one_line_that_names_the_problem(tmp_path: Path, text: str) -> None:
    settings = tmp_path / "node.toml"
    settings.write_text(text)
    result = jetstream("node", "--config", str(settings))
    assert result.exit_code == 4
    assert result.stderr.startswith("error: invalid configuration: ")
    assert len(result.stderr.splitlines()) == 1


# --- stream ---------------------------------------------------------------------------------------


def test_creating_again_finds_the_stream_and_another_configuration_is_refused(nats: str) -> None:
    create = (
        "stream",
        "create",
        "orders",
        "--subject",
        "orders.>",
        "--retention-age",
        "7d",
        "--label",
        "team=a",
    )
    assert succeeded(*create, nats=nats) == "created stream orders on orders.>\n"
    assert succeeded(*create, nats=nats) == "found stream orders on orders.>\n"
    refused = jetstream(*create, "--sync", "os", nats=nats)
    assert refused.exit_code == 4
    assert refused.stderr.startswith("error: stream 'orders' exists with another")
    machine = jetstream(*create, "--sync", "os", "--json", nats=nats)
    assert json.loads(machine.stderr)["error"]["err_code"] == "stream_exists"


def test_streams_are_listed_for_people_and_for_machines(nats: str) -> None:
    for name in ("list/b", "list/a"):
        succeeded("stream", "create", name, "--subject", f"{name.replace('/', '.')}", nats=nats)
    shown = json_lines(succeeded("stream", "ls", "list/", "--json", nats=nats))
    assert [(stream["name"], stream["subject"]) for stream in shown] == [
        ("list/a", "list.a"),
        ("list/b", "list.b"),
    ]
    table = succeeded("stream", "ls", "list/", nats=nats)
    assert "2 streams" in table
    assert "list.b" in table


def test_info_shows_configuration_and_live_state(nats: str, stream: str) -> None:
    succeeded("pub", f"{stream}.a", "one", nats=nats)
    info = json.loads(succeeded("stream", "info", stream, "--json", nats=nats))
    assert (info["config"]["name"], info["high_watermark"], info["state"]) == (stream, 1, "online")
    table = succeeded("stream", "info", stream, nats=nats)
    assert "0 to 1" in table
    assert "possible gaps" in table


def test_update_changes_what_is_given_and_nothing_else(nats: str, stream: str) -> None:
    def config(*changes: str) -> dict[str, object]:
        shown = succeeded("stream", "update", stream, *changes, "--json", nats=nats)
        return dict(json.loads(shown)["config"])

    before = config("--retention-age", "1h", "--retention-bytes", "1MiB", "--label", "a=1", "--label", "b=2")
    assert before["retention"] == {"age": "PT1H", "bytes": 1 << 20, "messages": None}
    assert before["labels"] == {"a": "1", "b": "2"}
    after = config("--retention-age", "0", "--remove-label", "a", "--segment-age", "2d")
    assert after["retention"] == {"age": None, "bytes": 1 << 20, "messages": None}
    assert after["labels"] == {"b": "2"}
    assert after["segment_age"] == "P2D"
    assert {key: after[key] for key in ("name", "subject", "sync")} == {
        key: before[key] for key in ("name", "subject", "sync")
    }
    assert jetstream("stream", "update", stream, nats=nats).exit_code == 2


def test_truncate_moves_the_start_and_not_beyond_what_is_committed(nats: str, stream: str) -> None:
    succeeded("pub", f"{stream}.a", "x", "--count", "10", nats=nats)
    assert "begins at offset 4" in succeeded("stream", "truncate", stream, "--before", "4", nats=nats)
    again = succeeded("stream", "truncate", stream, "--before", "4", nats=nats)
    assert "0 B freed on its leader's disk, more once it begins at 10" in again
    assert json_lines(succeeded("read", stream, nats=nats))[0]["offset"] == 4
    assert jetstream("stream", "truncate", stream, "--before", "11", nats=nats).exit_code == 4
    gone = jetstream("read", stream, "--from", "3", nats=nats)
    assert (gone.exit_code, gone.stdout) == (4, "")


def test_reset_time_asks_first(nats: str, stream: str) -> None:
    assert jetstream("stream", "reset-time", stream, nats=nats, given="n\n").exit_code == 1
    assert "is not ahead of" in succeeded("stream", "reset-time", stream, "--yes", nats=nats)


def test_delete_asks_first(nats: str, stream: str) -> None:
    kept = jetstream("stream", "delete", stream, nats=nats, given="n\n")
    assert kept.exit_code == 1
    assert jetstream("stream", "delete", stream, nats=nats, given="").exit_code == 1
    succeeded("stream", "info", stream, nats=nats)
    assert f"deleted stream {stream}\n" in succeeded("stream", "delete", stream, nats=nats, given="y\n")
    assert jetstream("stream", "delete", stream, "--yes", nats=nats).exit_code == 3


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("stream", "info", "nowhere"), 3),
        (("read", "nowhere"), 3),
        (("stream", "create", "bad name", "--subject", "a"), 4),
        (("stream", "create", "a", "--subject", "a..b"), 4),
        (("stream", "create", "a", "--subject", ">"), 4),
        (("stream", "create", "a", "--subject", "a", "--segment-bytes", "1"), 4),
        (("stream", "create", "a", "--subject", "a", "--segment-bytes", "big"), 2),
        (("stream", "create", "a"), 2),
        (("pub", "nobody.listens", "x"), 5),
        (("pub", "a b", "x"), 4),
        (("pub", "a", "x", "--lines"), 2),
        (("pub", "a", "x", "--tombstone"), 2),
        (("pub", "a", "x", "--header", "none"), 2),
        (("read", "a", "--from", "yesterday"), 2),
        (("read", "a", "--to", "earliest"), 2),
        (("read", "a", "--latest-by-key", "--follow"), 2),
        (("read", "a", "--latest-by-key", "--columns", "key"), 2),
    ],
)
def test_every_failure_is_one_line_and_its_exit_code(
    nats: str, arguments: tuple[str, ...], code: int
) -> None:
    result = jetstream(*arguments, nats=nats)
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    if code != 2:
        assert result.stderr.startswith("error: ")
        assert len(result.stderr.splitlines()) == 1


# --- pub and read ---------------------------------------------------------------------------------


def test_what_a_message_carries_comes_back(nats: str, stream: str) -> None:
    [ack] = json_lines(
        succeeded(
            *(
                "pub",
                f"{stream}.a",
                '{"id": 1}',
                "--key",
                "k",
                "--msg-id",
                "m",
                "--txid",
                "7",
                "-H",
                "Trace: t:1",
            ),
            *("--stream", stream, "--json"),
            nats=nats,
        )
    )
    told = {"stream": stream, "partition": None, "offset": 0, "epoch": 1, "duplicate": False, "count": 1}
    assert ack == told
    assert "duplicate" in succeeded("pub", f"{stream}.a", "again", "--msg-id", "m", nats=nats)
    [record] = json_lines(succeeded("read", stream, nats=nats))
    assert (record["subject"], record["key"], record["txid"]) == (f"{stream}.a", "k", 7)
    assert record["value"] == '{"id": 1}'
    assert {"key": "Trace", "value": "t:1"} in record["headers"]


def test_values_come_from_the_argument_or_standard_input_whole_or_in_lines(nats: str, stream: str) -> None:
    subject = f"{stream}.a"
    succeeded("pub", subject, "argument", nats=nats)
    succeeded("pub", subject, "", nats=nats)
    succeeded("pub", subject, "-", nats=nats, given=b"whole\ninput\xff")
    succeeded("pub", subject, nats=nats, given=b"implied")
    succeeded("pub", subject, "--lines", nats=nats, given=b"one\n\nlast without end")
    succeeded("pub", subject, "--tombstone", "--key", "k", nats=nats)
    records = json_lines(succeeded("read", stream, nats=nats))
    assert [record.get("value", record.get("value_base64")) for record in records] == [
        "argument",
        "",
        "d2hvbGUKaW5wdXT/",
        "implied",
        "one",
        "",
        "last without end",
        None,
    ]


def test_many_messages_get_ids_of_their_own_and_a_repeat_stores_nothing(nats: str, stream: str) -> None:
    many = ("pub", f"{stream}.a", "x", "--count", "2500", "--msg-id", "m", "--timeout", "60")
    assert succeeded(*many, nats=nats).splitlines()[-1].startswith("2,500 acked in ")
    assert "2,500 acked, 2,500 of them duplicates" in succeeded(*many, nats=nats)
    acks = json_lines(succeeded(*many, "--json", nats=nats))
    assert [ack["offset"] for ack in acks] == list(range(2500))


def test_a_stream_that_does_not_store_the_subject_refuses_to_answer_for_it(nats: str, stream: str) -> None:
    result = jetstream("pub", f"{stream}.a", "x", "--stream", "elsewhere", nats=nats)
    assert result.exit_code == 4
    assert succeeded("read", stream, nats=nats) == ""


def test_lines_are_published_as_they_come(nats: str, stream: str) -> None:
    with CommandProcess("pub", f"{stream}.a", "--lines", "--json", nats=nats) as process:
        for offset, line in enumerate((b"slow\n", b"producer\n")):
            process.give(line)
            assert json.loads(process.line())["offset"] == offset
        assert process.finished()[0] == 0


def test_a_range_is_read_by_offset_limit_and_time(nats: str, stream: str) -> None:
    for value in range(6):
        succeeded("pub", f"{stream}.a", str(value), nats=nats)

    def values(*arguments: str) -> list[str]:
        return [record["value"] for record in json_lines(succeeded("read", stream, *arguments, nats=nats))]

    times = [record["timestamp"] for record in json_lines(succeeded("read", stream, nats=nats))]
    assert values() == list("012345")
    assert values("--from", "2", "--to", "4") == list("23")
    assert values("--from", "4", "--limit", "1") == ["4"]
    assert values("--limit", "0") == []
    assert values("--from", "latest") == []
    assert values("--from", times[3]) == list("345")
    assert values("--from", times[1], "--to", times[3]) == list("12")
    assert values("--from", "2000-01-01", "--to", "2001-01-01") == []
    text = succeeded("read", stream, "--format", "text", "--limit", "1", nats=nats)
    assert text == f"       0  {times[0]}  {stream}.a  0\n"


def test_following_waits_for_new_records_until_interrupted(nats: str, stream: str) -> None:
    succeeded("pub", f"{stream}.a", "before", nats=nats)
    with CommandProcess("read", stream, "--follow", nats=nats) as process:
        assert json.loads(process.line())["value"] == "before"
        succeeded("pub", f"{stream}.a", "after", nats=nats)
        assert json.loads(process.line())["value"] == "after"
        assert process.signalled(signal.SIGINT) == (130, "", "")


def test_a_follower_stops_at_its_limit(nats: str, stream: str) -> None:
    with CommandProcess("read", stream, "--follow", "--limit", "3", nats=nats) as process:
        succeeded("pub", f"{stream}.a", "x", "--count", "5", nats=nats)
        code, output, error = process.finished()
    assert (code, len(output.splitlines()), error) == (0, 3, "")


def test_the_last_record_of_each_key_is_read(nats: str, stream: str) -> None:
    for key, value in (("a", "1"), ("b", "2"), ("a", "3")):
        succeeded("pub", f"{stream}.x", value, "--key", key, nats=nats)
    succeeded("pub", f"{stream}.x", "nobody's", nats=nats)
    succeeded("pub", f"{stream}.x", "--tombstone", "--key", "b", nats=nats)
    [found] = json_lines(succeeded("read", stream, "--latest-by-key", nats=nats))
    assert (found["key"], found["value"]) == ("a", "3")


def test_a_reader_that_closes_the_pipe_is_no_failure(nats: str, stream: str) -> None:
    succeeded("pub", f"{stream}.a", "x" * 1000, "--count", "2000", "--timeout", "60", nats=nats)
    with CommandProcess("read", stream, nats=nats) as process:
        assert json.loads(process.line())["offset"] == 0
        process.close_output()
        code, _, error = process.finished()
    assert (code, error) == (0, "")


# --- reaching NATS --------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [("stream", "ls"), ("pub", "a", "x"), ("read", "a")])
def test_a_server_that_is_away_is_said_at_once(arguments: tuple[str, ...]) -> None:
    result = jetstream(*arguments, nats="nats://someone:sesame@127.0.0.1:1")
    assert result.exit_code == 5
    assert result.stderr.startswith("error: no NATS server at nats://127.0.0.1:1: ")
    assert "sesame" not in result.output


def test_a_server_without_a_node_is_said(tmp_path: Path) -> None:
    with NatsServer(tmp_path) as server:
        result = jetstream("stream", "ls", nats=server.url)
    assert result.exit_code == 5
    assert "no node answers" in result.stderr


def test_wrong_credentials_are_refused_and_never_shown(tmp_path: Path) -> None:
    with NatsServer(tmp_path, 'authorization { user: "u", password: "sesame" }') as server:
        for arguments in ((), ("--user", "u", "--password", "swordfish"), ("--token", "swordfish")):
            with CommandProcess("stream", "ls", *arguments, nats=server.url) as process:
                code, output, error = process.finished()
            assert (code, output) == (4, "")
            assert (
                error == f"error: the NATS server at {server.url} does not let us in: check the credentials\n"
            )
        allowed = jetstream("stream", "ls", "--user", "u", "--password", "sesame", nats=server.url)
        assert "no node answers" in allowed.stderr


# --- inspect --------------------------------------------------------------------------------------


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The data directory of a stopped node with one stream of 100 records."""
    process, endpoints = up(tmp_path)
    with process:
        succeeded("stream", "create", "a", "--subject", "a", nats=endpoints["nats"])
        succeeded("pub", "a", "value", "--count", "100", nats=endpoints["nats"])
        assert process.signalled(signal.SIGTERM)[0] == 0
    return tmp_path


def segment_of(data: Path) -> Path:
    [segment] = data.rglob("*.arrows")
    return segment


def test_inspect_verifies_a_directory_a_stream_and_a_segment(data: Path) -> None:
    segment = segment_of(data)
    for path in (data, segment.parent, segment):
        text = succeeded("inspect", str(path), "--batches")
        assert "100 records in 1 segments" in text
        assert "every byte is as it should be" in text
        report = json.loads(succeeded("inspect", str(path), "--json"))
        assert not report["damaged"]
    [stream] = json.loads(succeeded("inspect", str(data), "--json", "--batches"))["files"]
    assert stream["checkpoint"]["clean"]
    assert sum(batch["records"] for batch in stream["segments"][0]["batches"]) == 100


def test_inspect_finds_a_flipped_bit_and_changes_nothing(data: Path) -> None:
    segment = segment_of(data)
    damaged = bytearray(segment.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    segment.write_bytes(damaged)
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    result = jetstream("inspect", str(data))
    assert result.exit_code == 6
    assert "CORRUPT" in result.stdout
    assert "DAMAGED" in result.stdout
    machine = jetstream("inspect", str(data), "--json")
    assert machine.exit_code == 6
    assert json.loads(machine.stdout)["damaged"]
    assert {path: path.read_bytes() for path in data.rglob("*") if path.is_file()} == before


def test_inspect_tells_a_missing_path_from_damage(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        result = jetstream("inspect", str(path))
        assert result.exit_code == 3
        assert not (tmp_path / "nothing").exists()


def test_inspect_warns_of_a_directory_in_use(tmp_path: Path) -> None:
    process, endpoints = up(tmp_path)
    with process:
        succeeded("stream", "create", "a", "--subject", "a", nats=endpoints["nats"])
        assert "a node has this directory open" in jetstream("inspect", str(tmp_path)).stderr
        assert process.signalled(signal.SIGTERM)[0] == 0
