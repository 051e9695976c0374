"""``python -m benchmarks NAME``: run a benchmark, print its tables, keep its JSON.

Exit codes: 0 measured and every required bar reached; 1 a message is unaccounted for, the numbers do not
stand; 2 wrong usage; 3 measured, a required bar was missed.
"""

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NoReturn

from benchmarks import (
    backup,
    budget,
    catch_up,
    client,
    cluster,
    cluster_acks,
    cluster_connections,
    cluster_idle,
    compaction,
    connections,
    envelope,
    failover,
    group_commit,
    groups,
    groups_failover,
    groups_idle,
    groups_read,
    http,
    latency,
    loadgen,
    long_poll,
    metadata,
    mirror,
    one,
    publish,
    read,
    read_delay,
    rewrite,
    selected_readers,
    soak,
    spark_latency,
    spark_memory,
    spark_read,
    spark_sink,
    spark_stream,
    streams,
    tickets,
    tiers,
)
from benchmarks.report import Report, Settings, as_markdown

BENCHMARKS: Final[dict[str, Callable[[Settings], Report]]] = {
    "publish": publish.run,
    "connections": connections.run,
    "envelope": envelope.run,
    "client": client.run,
    "latency": latency.run,
    "streams": streams.run,
    "group_commit": group_commit.run,
    "budget": budget.run,
    "read": read.run,
    "http": http.run,
    "read_delay": read_delay.run,
    "long_poll": long_poll.run,
    "catch_up": catch_up.run,
    "selected_readers": selected_readers.run,
    "compaction": compaction.run,
    "rewrite": rewrite.run,
    "metadata": metadata.run,
    "mirror": mirror.run,
    "cluster": cluster.run,
    "cluster_connections": cluster_connections.run,
    "cluster_acks": cluster_acks.run,
    "cluster_idle": cluster_idle.run,
    "groups": groups.run,
    "groups_idle": groups_idle.run,
    "groups_failover": groups_failover.run,
    "groups_read": groups_read.run,
    "tickets": tickets.run,
    "soak": soak.run,
    "spark_read": spark_read.run,
    "spark_stream": spark_stream.run,
    "spark_latency": spark_latency.run,
    "spark_sink": spark_sink.run,
    "spark_memory": spark_memory.run,
    "tiers": tiers.run,
    "backup": backup.run,
}
SECONDS_DEFAULT: Final = 10.0
RUNS_DEFAULT: Final = 3


def main(words: Sequence[str] | None = None) -> int:
    """Run what the command line says; return the exit code."""
    arguments = _parser().parse_args(words)
    if arguments.name == "table":
        for path in arguments.files:
            print(as_markdown(Report.model_validate_json(path.read_text())))
        return 0
    loadgen.build()
    with tempfile.TemporaryDirectory(prefix="jetstream-bench-", dir=arguments.data) as directory:
        report = _run(arguments, _settings(arguments, Path(directory)))
    print(as_markdown(report))
    if arguments.json is not None:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(report.model_dump_json(indent=1) + "\n")
    if report.problems:
        return 1
    return 3 if report.missed else 0


def _run(arguments: argparse.Namespace, settings: Settings) -> Report:
    if arguments.name == "failover":
        return failover.run(settings, arguments.kills, arguments.ids)
    if arguments.name != "one":
        return BENCHMARKS[arguments.name](settings)
    shape = one.Shape(
        tuple(arguments.systems), arguments.connections, arguments.window, arguments.size, arguments.streams
    )
    return one.run(settings, shape)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="name", required=True)
    for name, run in BENCHMARKS.items():
        _add_shared(commands.add_parser(name, help=_first_line(run)))
    single = commands.add_parser("one", help=_first_line(one.run))
    _add_shared(single)
    single.add_argument(
        "systems", nargs="+", choices=one.SYSTEMS, metavar="SYSTEM", help=", ".join(one.SYSTEMS)
    )
    single.add_argument("--connections", type=int, default=1, help="of the load generator (1)")
    single.add_argument(
        "--window", type=int, default=1000, help="messages in flight on each connection (1000)"
    )
    single.add_argument("--size", type=int, default=128, help="payload bytes (128)")
    single.add_argument("--streams", type=int, default=1, help="messages go to them in turn (1)")
    strikes = commands.add_parser("failover", help=_first_line(failover.run))
    _add_shared(strikes)
    strikes.add_argument(
        "--kills", type=int, help="of each kind (30); freezes, and strikes at the peer, 30 at most"
    )
    strikes.add_argument(
        "--ids", type=int, default=0, help="messages with ids that the stream has taken before a strike (0)"
    )
    table = commands.add_parser("table", help="Print saved reports as Markdown.")
    table.add_argument("files", type=Path, nargs="+", metavar="FILE")
    return parser


def _first_line(run: Callable[..., Report]) -> str:
    return (sys.modules[run.__module__].__doc__ or "").splitlines()[0]


def _add_shared(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--quick", action="store_true", help="one short run of few points: a look, no result"
    )
    command.add_argument("--json", type=Path, metavar="FILE", help="write the whole report there")
    command.add_argument("--seconds", type=float, help="measured seconds of each run (10; soak 600)")
    command.add_argument("--runs", type=int, help="interleaved repetitions (3)")
    command.add_argument(
        "--data", type=_directory, help="directory on the disk to measure (the temporary one)"
    )


def _directory(text: str) -> Path:
    """Return a directory that is there: not to find it must not end as if messages were missing."""
    path = Path(text)
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is no directory")
    return path


def _settings(arguments: argparse.Namespace, directory: Path) -> Settings:
    seconds = soak.SECONDS_DEFAULT if arguments.name == "soak" else SECONDS_DEFAULT
    if arguments.quick:
        seconds = 1.0
    seconds = arguments.seconds or seconds
    return Settings(
        directory=directory,
        seconds=seconds,
        warmup_seconds=min(2.0, seconds / 5),
        runs=arguments.runs or (1 if arguments.quick else RUNS_DEFAULT),
        quick=arguments.quick,
    )


def _leave(_signal: int, _frame: object) -> NoReturn:
    """Let SIGTERM unwind the stack, so that every process we started is stopped."""
    raise SystemExit(128 + signal.SIGTERM)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _leave)
    sys.exit(main())
