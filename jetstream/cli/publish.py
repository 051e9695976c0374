"""``jetstream pub``: publish one value, many copies, or every line of the input, and await every ack."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from typing import Annotated, Final

import typer

from jetstream.cli.client_connection import connected
from jetstream.cli.options.nats_options import NatsOptions
from jetstream.cli.options.quantities import parse_header
from jetstream.cli.output.console import print_json, print_line, progress
from jetstream.cli.program.completion import stream_names
from jetstream.cli.program.help_text import Json
from jetstream.cli.standard_input import input_lines, whole_input
from jetstream.client.publish.ack_inbox import AckFuture
from jetstream.client.publish.messages import PublishAck, PublishOptions
from jetstream.client.publish.publisher import Publisher

Owed = asyncio.Queue[AckFuture | None]
"""Acks that are awaited, in the order of publishing; None is the end."""

WINDOW_MESSAGES: Final = 1000
SHOWN_ACKS_MAX: Final = 10
"""So many acks are shown to a person one by one; the rest are summed up."""

PUB_EXAMPLES: Final = (
    "jetstream pub orders.eu '{\"id\": 1}' --key 1 --msg-id order-1",
    "jetstream pub orders.eu - < order.json",
    "tail -F app.log | jetstream pub logs.app --lines",
    "jetstream pub load.test hello --count 100000",
    "jetstream pub orders.eu --tombstone --key 1",
)


@dataclass(slots=True)
class Tally:
    """The messages acked so far."""

    acked: int = 0
    duplicates: int = 0
    last: PublishAck | None = None

    def add(self, ack: PublishAck) -> None:
        """Count one ack in."""
        self.acked += 1
        self.duplicates += ack.duplicate
        self.last = ack


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """Where the values come from."""

    value: Annotated[
        str | None, typer.Argument(metavar="[VALUE|-]", help="The value; - or nothing reads standard input.")
    ] = None
    lines: Annotated[bool, typer.Option("--lines", help="Publish each line of standard input.")] = False
    tombstone: Annotated[bool, typer.Option("--tombstone", help="Publish no value: the key is deleted.")] = (
        False
    )
    count: Annotated[int, typer.Option("--count", min=1, help="Publish the value so many times.")] = 1

    def checked(self) -> "Values":
        """Refuse what contradicts itself.

        Raises:
            typer.BadParameter: no value, or more than one source of values.
        """
        if self.lines and (self.value not in (None, "-") or self.tombstone or self.count != 1):
            raise typer.BadParameter(
                "--lines takes its values from standard input: no VALUE, --count or --tombstone"
            )
        if self.tombstone and self.value is not None:
            raise typer.BadParameter("a tombstone has no value")
        if self.value is None and not self.lines and not self.tombstone and sys.stdin.isatty():
            raise typer.BadParameter("give a VALUE, or - for standard input")
        return self

    @property
    def many(self) -> bool:
        """Whether more than one message may be published."""
        return self.lines or self.count > 1

    @property
    def total(self) -> int | None:
        """How many messages there will be; None if only the end of the input tells."""
        return None if self.lines else self.count

    async def stream(self) -> AsyncIterator[bytes | None]:
        """Yield the values one by one; None is a tombstone."""
        if self.lines:
            async for line in input_lines():
                yield line
            return
        if self.tombstone:
            value = None
        elif self.value is None or self.value == "-":
            value = await whole_input()
        else:
            value = self.value.encode("utf-8", "surrogateescape")
        for _ in range(self.count):
            yield value


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageOptions:
    """The options of each message."""

    key: Annotated[str | None, typer.Option("--key", help="Key of the record.")] = None
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME:VALUE", help="NATS header; repeatable."),
    ] = None
    msg_id: Annotated[
        str | None,
        typer.Option(
            "--msg-id", metavar="ID", help="Message id; with several messages ID-1, ID-2 and so on."
        ),
    ] = None
    txid: Annotated[int | None, typer.Option("--txid", help="The application's own sequence number.")] = None
    stream: Annotated[
        str | None,
        typer.Option(
            "--stream",
            help="The stream that must answer, where several store the subject.",
            autocompletion=stream_names,
        ),
    ] = None
    timeout: Annotated[float, typer.Option("--timeout", min=0.001, help="Seconds to wait for each ack.")] = (
        5.0
    )

    def publish_options(self) -> PublishOptions:
        """Return what all messages have in common, which is all but the message id."""
        return PublishOptions(
            key=self.key,
            headers=dict(parse_header(text) for text in self.header or ()) or None,
            txid=self.txid,
            stream=self.stream,
            timeout=self.timeout,
        )


async def pub(
    nats: NatsOptions,
    subject: Annotated[str, typer.Argument(metavar="SUBJECT", help="Where to publish.")],
    values: Values,
    message: MessageOptions,
    as_json: Json = False,
) -> None:
    """Publish and await the ack of every message.

    The ack says where the message is stored: it is printed, for machines (--json) one object a line. Exit
    code 0 means that every message is stored; with 5 the outcome of the last ones is unknown: repeat them
    with the same --msg-id and they are stored once.
    """
    publication = Publication(subject, values.checked(), message.msg_id, message.publish_options())
    started = time.perf_counter()
    tally = Tally()
    owed: Owed = asyncio.Queue(WINDOW_MESSAGES)
    async with connected(nats) as client, client.publisher(WINDOW_MESSAGES) as publisher:
        # Side by side: a slow input must not hold back the acks of what it gave.
        with progress(f"publishing on {publication.subject}", values.total, quiet=not values.many) as told:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(publication.send_all(publisher, owed))
                while (future := await owed.get()) is not None:
                    tally.add(await future)
                    told(1)
                    _show_ack(tally, as_json)
    if values.many and not as_json:
        print_line(_summary(tally, time.perf_counter() - started))


@dataclass(frozen=True, slots=True)
class Publication:
    """The messages to publish, and where."""

    subject: str
    values: Values
    msg_id: str | None
    options: PublishOptions

    async def send_all(self, publisher: Publisher, owed: "Owed") -> None:
        """Publish every value and hand the future of its ack on; None is the end."""
        number = 0
        async for value in self.values.stream():
            number += 1
            options = self.options.copy()
            options["message_id"] = self._message_id(number)
            await owed.put(await publisher.publish(self.subject, value, **options))
        await owed.put(None)

    def _message_id(self, number: int) -> str | None:
        return f"{self.msg_id}-{number}" if self.msg_id and self.values.many else self.msg_id


def _show_ack(tally: Tally, as_json: bool) -> None:
    """Print the latest ack, unless there are too many for a person."""
    assert tally.last is not None, "an ack has been counted"
    if as_json:
        print_json(asdict(tally.last))
    elif tally.acked <= SHOWN_ACKS_MAX:
        print_line(_ack_text(tally.last))


def _ack_text(ack: PublishAck) -> str:
    repeated = " duplicate" if ack.duplicate else ""
    return f"stored in {ack.stream} at offset {ack.offset}, epoch {ack.epoch}{repeated}"


def _summary(tally: Tally, seconds: float) -> str:
    repeated = f", {tally.duplicates:,} of them duplicates" if tally.duplicates else ""
    last = f"; last in {tally.last.stream} at offset {tally.last.offset}" if tally.last else ""
    return f"{tally.acked:,} acked{repeated} in {seconds:.1f} s ({tally.acked / seconds:,.0f} a second){last}"
