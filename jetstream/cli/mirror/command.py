"""``jetstream mirror``: keep a copy of a stream of another cluster."""

import asyncio
import signal
import time
from dataclasses import dataclass
from typing import Annotated, Final

import typer

from envelope.errors import JetstreamError, UnavailableError
from jetstream.cli.client_connection import connected
from jetstream.cli.options.nats_options import NatsOptions
from jetstream.cli.options.option_groups import Prefixed
from jetstream.cli.options.socket_options import SocketOptions
from jetstream.cli.output.console import cell_text, notice, print_json
from jetstream.cli.output.exit_codes import ExitCode
from jetstream.cli.program.completion import stream_names
from jetstream.cli.program.help_text import Json
from jetstream.client.connection import JetstreamClient
from jetstream.client.mirror.mirror import Mirror, MirrorSettings
from jetstream.client.mirror.positions import Resumption
from jetstream.client.nodes.background import beside

MIRROR_EXAMPLES: Final = (
    "jetstream mirror --from nats://east:4222 --nats nats://west:4222 --stream orders",
    "jetstream mirror --from nats://east:4222 --stream orders --to-stream orders-east --json",
    "jetstream mirror --from nats://old:4222 --stream orders --once",
)

_INTERVAL_S: Final = 10.0
"""Between two lines that say how far it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOptions:
    """The streams, and when the copy ends."""

    stream: Annotated[str, typer.Option("--stream", metavar="STREAM", help="Stream of the source.")]
    to_stream: Annotated[
        str | None,
        typer.Option(
            "--to-stream",
            metavar="STREAM",
            help="Stream of the target; created like the source if it is not there. Others of the target on "
            "its subjects must be read-only. Default: the same name.",
            autocompletion=stream_names,
        ),
    ] = None
    once: Annotated[
        bool, typer.Option("--once", help="Copy up to the source's present end, and end there.")
    ] = False


async def mirror(
    source: Annotated[NatsOptions, Prefixed("from")],
    source_socket: Annotated[SocketOptions, Prefixed("from")],
    nats: NatsOptions,
    socket: SocketOptions,
    copied: CopyOptions,
    as_json: Json = False,
) -> None:
    """Copy a stream of another cluster (--from) into one of this (--nats), and go on with what comes.

    Each record is copied once, in order, at the same offset where the target began empty, or else at one that
    differs by a number that never changes. Stopped or killed, it goes on where it was when it is started
    again. Started several times, one copies and the others wait. It ends with an error if the copy cannot be
    exact any more: the target was published to by others, or the source was truncated, or created again.

    SIGTERM ends it with code 0, or with 130 before the end that --once is to reach.

    Every 10 s it says how far it is, for machines (--json) as one object a line on standard output.
    """
    told = _Told(as_json)
    settings = MirrorSettings(
        stream=copied.stream,
        to_stream=copied.to_stream or copied.stream,
        once=copied.once,
        resumed=told.resumed,
        interrupted=told.interrupted,
    )
    async with connected(source, source_socket) as from_client, connected(nats, socket) as to_client:
        work = Mirror(from_client, to_client, settings)
        ended, is_through = asyncio.Event(), asyncio.Event()
        # So that it leaves the group, and another instance takes over at once.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
        async with beside(_through(work, is_through, ended)), beside(told.progress(work, from_client)):
            await ended.wait()
        if copied.once and not is_through.is_set():
            raise typer.Exit(ExitCode.INTERRUPTED)
        told.ended(work)


class _Told:
    """Says how the copy goes, for people or for machines."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._began = time.monotonic()

    def resumed(self, resumption: Resumption) -> None:
        """Say where it goes on, and how the offsets differ."""
        start = resumption.start
        event = {
            "event": "resumed",
            "offset": resumption.position,
            "difference": start.difference,
            "from": start.source_offset,
        }
        offsets = (
            "offsets equal"
            if not start.difference
            else f"offsets differ: those of the target are {start.difference:+,}"
        )
        self._say(event, f"copies from offset {resumption.position:,} on; {offsets}")

    def interrupted(self, error: JetstreamError) -> None:
        """Say why it begins another attempt."""
        event: dict[str, object] = {
            "event": "interrupted",
            "err_code": error.err_code,
            "description": error.description,
        }
        self._say(event, f"tries again after: {error.description}")

    async def progress(self, work: Mirror, source: JetstreamClient) -> None:
        """Say now and then how far it is, until cancelled."""
        before, then = work.copied, time.monotonic()
        while True:
            await asyncio.sleep(_INTERVAL_S)
            lag = await _lag(work, source)
            copied, now = work.copied, time.monotonic()
            rate = max(0, copied - before) / (now - then)
            before, then = copied, now
            event = {"event": "progress", "offset": copied, "lag": lag, "rate": round(rate, 1)}
            self._say(event, f"offset {copied:,}, {cell_text(lag)} behind, {rate:,.0f} records a second")

    def ended(self, work: Mirror) -> None:
        """Say how far it has come."""
        self._say({"event": "ended", "offset": work.copied}, f"copied up to offset {work.copied:,}")

    def _say(self, event: dict[str, object], text: str) -> None:
        if self._as_json:
            print_json({**event, "seconds": round(time.monotonic() - self._began, 3)})
        else:
            notice(text)


async def _through(work: Mirror, *events: asyncio.Event) -> None:
    await work.run()
    for event in events:
        event.set()


async def _lag(work: Mirror, source: JetstreamClient) -> int | None:
    """Return how many offsets of the source are not copied; None: it cannot be asked."""
    try:
        ranges = await source.ranges([work.stream])
    except UnavailableError:  # said as a dash; the copy itself tells why, and goes on when it can
        return None
    return max(0, ranges[work.stream].end - work.copied) if work.stream in ranges else None
