"""``jetstream bench …``: how fast a running cluster is, as an application here sees it."""

from dataclasses import dataclass
from typing import Annotated, Final

import typer

from envelope.limits import MAILBOX_BYTES_MAX, MAILBOX_MESSAGES_MAX, RECORD_BYTES_MAX
from envelope.subjects import is_literal
from jetstream.cli.bench import measure as bench_run
from jetstream.cli.bench.measure import NUMBERED_BYTES, Load, benched_subject
from jetstream.cli.bench.report import BenchReport
from jetstream.cli.client_connection import connected
from jetstream.cli.options.nats_options import NatsOptions
from jetstream.cli.options.quantities import parse_duration, parse_option, parse_size
from jetstream.cli.options.socket_options import SocketOptions
from jetstream.cli.output.console import print_json, progress, reading_progress
from jetstream.cli.program.help_text import Json, StreamArgument
from jetstream.client.connection import ReadOptions
from jetstream.client.read.places import parse_start

PUBLISH_EXAMPLES: Final = (
    "jetstream bench publish load --create",
    "jetstream bench publish orders --subject orders.bench --count 1000000 --in-flight 5000",
    "jetstream bench publish load --create --size 1KiB --duration 10s --json",
)
READ_EXAMPLES: Final = (
    "jetstream bench read orders",
    "jetstream bench read orders --from 1000000 --count 500000 --json",
)
LATENCY_EXAMPLES: Final = (
    "jetstream bench latency ping --create",
    "jetstream bench latency orders --subject orders.bench --count 10000 --duration 1m",
)

_PATIENCE_S: Final = 5.0
"""How long a node may be away before the measurement is given up."""

Duration = Annotated[
    str, typer.Option("--duration", metavar="DURATION", help="Stop after that long, like 10s or 1m.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """The messages of a load, and its end."""

    size: Annotated[
        str, typer.Option("--size", metavar="SIZE", help="Bytes of each value, like 128 or 1KiB.")
    ] = "128"
    duration: Duration = "60s"

    def load(self, stream: str, count: int, in_flight: int) -> Load:
        """Return the load on a stream.

        Raises:
            typer.BadParameter: something is no size or no duration, or more than a stream can take.
        """
        size = parse_size(self.size)
        if size > RECORD_BYTES_MAX:
            raise typer.BadParameter(f"--size {self.size}: a record has at most {RECORD_BYTES_MAX:,} bytes")
        if in_flight * size > MAILBOX_BYTES_MAX:
            raise typer.BadParameter(
                f"--in-flight {in_flight:,} of {self.size} are more than a stream takes in at once: at most "
                f"{MAILBOX_BYTES_MAX // size:,}"
            )
        seconds = _seconds(self.duration)
        return Load(stream=stream, count=count, size=size, seconds=seconds, in_flight=in_flight)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions:
    """Where messages go."""

    subject: Annotated[
        str | None,
        typer.Option(
            "--subject", metavar="SUBJECT", help="Where to publish; by default what the stream stores."
        ),
    ] = None
    create: Annotated[
        bool,
        typer.Option("--create", help="Create the stream, and delete it afterwards with all its records."),
    ] = False
    keep: Annotated[bool, typer.Option("--keep", help="Do not delete what --create has created.")] = False

    def checked(self) -> "TargetOptions":
        """Refuse what makes no sense.

        Raises:
            typer.BadParameter: a pattern, on which nobody can publish, or nothing to keep.
        """
        if self.subject is not None and not is_literal(self.subject):
            raise typer.BadParameter(f"--subject {self.subject} is a pattern: name one subject of it")
        if self.keep and not self.create:
            raise typer.BadParameter("--keep is for what --create creates; nothing else is ever deleted")
        return self


async def publish(
    nats: NatsOptions,
    stream: StreamArgument,
    target: TargetOptions,
    load: LoadOptions,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="Messages to publish.")] = 100_000,
    in_flight: Annotated[
        int,
        typer.Option(
            "--in-flight", min=1, max=MAILBOX_MESSAGES_MAX, help="Messages that may be unacked at once."
        ),
    ] = 1000,
    as_json: Json = False,
) -> None:
    """Measure how many messages a second this machine can publish to a stream, every ack awaited.

    Latency is the time from giving a message to NATS until its ack is here, with --in-flight messages under
    way: with fewer it is shorter. The first of --count and --duration ends it. The messages stay in the
    stream, unless --create has made one for them.
    """
    wanted = load.load(stream, count, in_flight)
    checked = target.checked()
    async with (
        connected(nats) as client,
        benched_subject(client, wanted.stream, checked.subject, checked.create, checked.keep) as subject,
    ):
        with progress(f"publishing on {subject}", wanted.count) as told:
            report = await bench_run.publish(client, subject, wanted, told)
    _print(report, as_json)


async def read(
    nats: NatsOptions,
    socket: SocketOptions,
    stream: StreamArgument,
    start: Annotated[
        str,
        typer.Option(
            "--from", metavar="PLACE", help="earliest, an offset, -1000, -1h, or an ISO 8601 time (UTC)."
        ),
    ] = "earliest",
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="Records to read; all by default.")
    ] = None,
    duration: Duration = "60s",
    as_json: Json = False,
) -> None:
    """Measure how many records a second this machine can read from a stream, as Arrow batches.

    Reads up to what is committed now; the first of that, --count and --duration ends it. Latency is the time
    that the reader waits for a batch.
    """
    options = ReadOptions(start=parse_option(parse_start, start), end="latest", retry_s=_PATIENCE_S)
    seconds = _seconds(duration)
    async with connected(nats, socket) as client:
        with reading_progress(f"reading {stream}") as told:
            options["progress"] = told
            report = await bench_run.read(client, stream, options, count, seconds)
    _print(report, as_json)


async def latency(
    nats: NatsOptions,
    socket: SocketOptions,
    stream: StreamArgument,
    target: TargetOptions,
    load: LoadOptions,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="Messages to publish.")] = 1000,
    as_json: Json = False,
) -> None:
    """Measure how long one message takes to its ack, and to a reader that follows the stream.

    Publishes one message after the other, each when the one before it is acked and delivered. The first of
    --count and --duration ends it.
    """
    wanted = load.load(stream, count, in_flight=1)
    if wanted.size < NUMBERED_BYTES:
        raise typer.BadParameter(
            f"--size {load.size}: below {NUMBERED_BYTES} bytes no message is known again"
        )
    checked = target.checked()
    async with (
        connected(nats, socket) as client,
        benched_subject(client, wanted.stream, checked.subject, checked.create, checked.keep) as subject,
    ):
        with progress(f"one by one on {subject}", wanted.count) as told:
            report = await bench_run.latency(client, subject, wanted, told)
    _print(report, as_json)


def _seconds(duration: str) -> float:
    return parse_duration(duration).total_seconds()


def _print(report: BenchReport, as_json: bool) -> None:
    if as_json:
        print_json(report.for_machines())
    else:
        report.show()
