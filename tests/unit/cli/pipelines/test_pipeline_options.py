"""What pipelines take from the command line and from a file, without Spark."""

import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import typer
import typer.main
from typer.testing import CliRunner

from jetstream.cli.main import app
from jetstream.cli.options.nats_options import NatsOptions
from jetstream.cli.options.socket_options import SocketOptions
from jetstream.cli.pipelines.command import AnswerOptions, QuestionOptions, TableOptions
from jetstream.cli.pipelines.options import (
    PipelineSource,
    QueryOptions,
    absolute_place,
    access_options,
    pairs_of,
)
from jetstream.cli.pipelines.run import batch_text
from jetstream.cli.program.help_text import add_command
from jetstream.spark.options.source_options import parse_source_options
from jetstream.spark.pipelines.aggregate import ParquetSink, StreamSink
from jetstream.spark.pipelines.progress import BatchProgress

EXAMPLES = sorted((Path(__file__).resolve().parents[4] / "examples" / "pipelines").glob("*.toml"))


@dataclass
class Parsed:
    """What a command was called with."""

    values: list[Any] = field(default_factory=list)


@pytest.fixture
def parsed() -> Parsed:
    return Parsed()


@pytest.fixture
def command(parsed: Parsed) -> typer.Typer:
    """A command with the options of pipelines that does nothing with them."""

    def job(
        nats: NatsOptions,
        source: PipelineSource,
        wanted: TableOptions,
        query: QueryOptions,
    ) -> None:
        """Keep what it is called with."""
        parsed.values += [nats, source, wanted, query]

    made = typer.Typer()
    add_command(made, "job", job, ())
    return made


def test_the_command_line_and_the_environment_win_over_the_file(
    command: typer.Typer, parsed: Parsed, tmp_path: Path
) -> None:
    config = tmp_path / "job.toml"
    config.write_text("""
        nats = "nats://file:1"
        user = "filer"
        stream = "of-file"
        max-records = 7
        once = true
        table = "/file/table"
        checkpoint = "/file/checkpoint"
        buckets = 3
        option = { minPartitions = 4, failOnDataLoss = false }
        conf = ["a=1", "b=2"]
    """)
    given = ["--config", str(config), "--stream", "of-line", "--continuous", "--conf", "c=3"]
    result = CliRunner().invoke(command, given, env={"JETSTREAM_NATS_USER": "environment"})
    assert result.exit_code == 0, result.output
    nats, source, wanted, query = parsed.values
    assert (nats.nats, nats.user) == ("nats://file:1", "environment")
    assert (source.stream, source.max_records) == ("of-line", 7)
    assert source.option == ["minPartitions=4", "failOnDataLoss=false"]
    assert (wanted.table, wanted.buckets, wanted.grace) == (Path("/file/table"), 3, "1h")
    assert (query.once, query.checkpoint) == (False, "/file/checkpoint")
    assert query.conf == ["c=3"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("bucket = 3", "bucket: buckets?"),
        ("max_records = 3", "max-records?"),
        ("config = 'x'", "config"),
        ("help = true", "help"),
        ("buckets = 'many'", "--buckets"),
        ("buckets = [3]", "buckets"),
        ("conf = 'a=1'", "list or a table"),
        ("conf = {a = [1]}", "no list"),
        ("stream = ", "job.toml"),
        ("once = 'perhaps'", "--once"),
    ],
)
def test_a_file_that_is_wrong_is_refused(
    command: typer.Typer, parsed: Parsed, tmp_path: Path, text: str, said: str
) -> None:
    config = tmp_path / "job.toml"
    config.write_text(text)
    given = ["--config", str(config), "--stream", "s", "--table", "t", "--checkpoint", "c"]
    result = CliRunner().invoke(command, given, env={"COLUMNS": "300"})
    assert result.exit_code == 2, result.output
    assert said in result.output
    assert not parsed.values


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_a_configuration(path: Path) -> None:
    given = tomllib.loads(path.read_text())
    command: Any = typer.main.get_command(app)
    context = command.make_context("jetstream", ["pipeline", path.stem, "--config", str(path)])
    pipelines = command.commands["pipeline"]
    parsed = pipelines.commands[path.stem].make_context(path.stem, ["--config", str(path)], parent=context)
    for name, value in given.items():
        if not isinstance(value, dict | list):
            assert str(parsed.params[name.replace("-", "_")]) == str(value)


def test_there_is_an_example_of_each_pipeline() -> None:
    command: Any = typer.main.get_command(app)
    assert {path.stem for path in EXAMPLES} == set(command.commands["pipeline"].commands)


def test_a_source_reads_all_of_its_stream_unless_it_is_told_more() -> None:
    nats, socket = NatsOptions(nats="nats://a:1,nats://b:2"), SocketOptions(socket_token="t")
    options = PipelineSource(stream="orders").options(nats, socket)
    assert options == {
        "servers": "nats://a:1,nats://b:2",
        "token": "t",
        "stream": "orders",
        "maxOffsetsPerTrigger": "1000000",
        "startingOffsets": "earliest",
    }
    told = PipelineSource(stream="orders", option=["startingTimestamp=5", "maxOffsetsPerTrigger=9"])
    assert told.options(nats, socket)["maxOffsetsPerTrigger"] == "9"
    assert "startingOffsets" not in told.options(nats, socket)
    for each in (options, told.options(nats, socket)):
        parse_source_options(each, streaming=True)


def test_everything_that_reaches_the_cluster_has_its_option(tmp_path: Path) -> None:
    seed = tmp_path / "seed"
    seed.write_text("SUAIBDPBAUTW\n")
    nats = NatsOptions(nats="nats://a:1", nkey=seed, tls_ca=seed)
    assert access_options(nats, SocketOptions(socket_tls=True)) == {
        "servers": "nats://a:1",
        "nats.nkeySeed": "SUAIBDPBAUTW",
        "nats.tls.ca": str(seed),
        "tls.ca": "system",
    }
    assert access_options(NatsOptions(), SocketOptions(socket_tls_ca=seed))["tls.ca"] == str(seed)


def test_a_certificate_of_ones_own_is_refused_as_executors_have_none(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(typer.BadParameter, match="certificate"):
        access_options(NatsOptions(tls_cert=file, tls_key=file), SocketOptions())
    with pytest.raises(typer.BadParameter, match="certificate"):
        access_options(NatsOptions(), SocketOptions(socket_tls_cert=file, socket_tls_key=file))


@pytest.mark.parametrize("texts", [["a"], ["=1"], ["a=1", "a=2"]])
def test_a_pair_has_a_name_and_a_value(texts: list[str]) -> None:
    with pytest.raises(typer.BadParameter, match="--conf"):
        pairs_of("--conf", texts)


def test_a_value_may_have_equals_signs() -> None:
    assert pairs_of("--conf", ["a=b=c", "d="]) == {"a": "b=c", "d": ""}


@pytest.mark.parametrize(
    "answer",
    [
        AnswerOptions(),
        AnswerOptions(to_subject="s", parquet=Path("p")),
        AnswerOptions(parquet=Path("p"), to_stream="s"),
    ],
)
def test_windows_go_to_one_place(answer: AnswerOptions) -> None:
    with pytest.raises(typer.BadParameter):
        answer.sink({}, "checkpoint")


def test_windows_that_are_published_are_staged_beside_the_checkpoint() -> None:
    sink = AnswerOptions(to_subject="s", to_stream="out").sink({"servers": "x"}, "/c/delays/")
    assert isinstance(sink, StreamSink)
    assert sink.options == {"servers": "x", "subject": "s", "stream": "out", "staging": "/c/delays-staging"}
    assert AnswerOptions(parquet=Path("/p")).sink({}, "c") == ParquetSink("/p")


@pytest.mark.parametrize(
    ("place", "absolute"),
    [
        ("/c/delays", "/c/delays"),
        ("delays", f"{Path.cwd()}/delays"),
        ("hdfs://names/c", "hdfs://names/c"),
        ("file:/c", "file:/c"),
    ],
)
def test_a_place_is_a_uri_or_a_path_from_the_root_on(place: str, absolute: str) -> None:
    assert absolute_place(place) == absolute


def test_durations_and_lists_are_read_as_everywhere() -> None:
    query = QueryOptions(checkpoint="c", every="1m").query_settings()
    assert query.every_s == 60
    question = QuestionOptions(
        schema="a INT", time="t", window="1 hour", aggregates="count(*)", group_by="a, b,"
    )
    assert question.settings(query).group_by == ("a", "b")
    assert TableOptions(table=Path("t"), grace="2h").settings(query).grace.total_seconds() == 7200


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        (BatchProgress(7, 1200, 600.4, 2.0, 10), "batch 7: 1,200 rows in 2.0 s, 600 rows/s, lag 10"),
        (
            BatchProgress(batch=0, rows=0, rows_per_second=0.0, seconds=0.25, lag=None, late=3),
            "batch 0: 0 rows in 0.2 s, 0 rows/s, 3 late",
        ),
    ],
)
def test_a_micro_batch_is_one_line(progress: BatchProgress, text: str) -> None:
    assert batch_text(progress) == text


def test_where_spark_is_not_installed_one_line_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    places = ["--table", str(tmp_path / "table"), "--checkpoint", str(tmp_path / "checkpoint")]
    result = CliRunner().invoke(app, ["pipeline", "table", "--stream", "s", *places])
    assert result.exit_code == 5
    assert result.stderr == "error: Spark is not installed: pip install 'jetstream-log[spark]'\n"
