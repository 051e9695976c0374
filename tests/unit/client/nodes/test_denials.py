"""What a server's complaint says of rights."""

import asyncio

import pytest
from nats.aio.client import Client as NatsClient

from jetstream.client.nodes.denials import Denial, denial_in
from jetstream.client.nodes.nats_seam import RunParser
from jetstream.client.nodes.request_api import _Question
from metadata.api.subjects import request_subject


@pytest.mark.parametrize(
    ("line", "denial"),
    [
        (b"-ERR 'Permissions Violation for Publish to \"Orders.eu\"'", Denial("Orders.eu", is_publish=True)),
        (b"-ERR 'Permissions Violation for Subscription to \"_INBOX.a.*\"'", Denial("_INBOX.a.*", False)),
        (
            b'-ERR \'Permissions Violation for Subscription to "a" using queue "q"\'',
            Denial("a", is_publish=False),
        ),
        (b'-ERR \'Permissions Violation for Publish to "a\\"b\\\\c"\'', Denial('a"b\\c', is_publish=True)),
        ("-ERR 'Permissions Violation for Publish to \"ü\"'".encode(), Denial("ü", is_publish=True)),
        (b"-ERR 'Permissions Violation for Publish with Reply of \"a\"'", None),
        (b"-ERR 'Maximum Payload Violation'", None),
        (b"-ERR", None),
    ],
)
def test_a_denial_names_the_subject_as_it_was_sent(line: bytes, denial: Denial | None) -> None:
    assert denial_in(line) == denial


def test_a_denial_names_the_right_to_a_pattern_as_it_is_written() -> None:
    """A request has the ``>`` repeated."""
    subject = f"js.{request_subject('read', {'stream': 'shop/orders', 'subject': 'orders.>'})}"
    right = "publish on 'js.read.shop.orders.subject.orders.>'"
    assert Denial(subject, is_publish=True).text == f"NATS does not let this user {right}"


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_denials_are_found_between_messages_however_the_bytes_come(size: int) -> None:
    line = b"-ERR 'Permissions Violation for Publish to \"A\"'\r\n"
    data = b"PONG\r\nMSG a 1 %d\r\n%b\r\n%bPING\r\n%b" % (len(line), line, line, line)

    async def scenario() -> list[Denial]:
        client = NatsClient()
        RunParser.install(client)
        parser = RunParser.of(client)
        found: list[Denial] = []
        with parser.denials.notifying(found.append):
            for start in range(0, len(data), size):
                await _quietly(parser, data[start : start + size])
        parser.denials.on_complaint(line)
        return found

    assert asyncio.run(scenario()) == [Denial("A", is_publish=True)] * 2


async def _quietly(parser: RunParser, data: bytes) -> None:
    """nats-py's own parser is not asked: what it does with these needs a connection."""
    parser._parser.parse = _nothing  # type: ignore[assignment, method-assign]  # as above
    await parser.parse(data)


async def _nothing(_: bytes = b"") -> None:
    pass


def test_a_denial_that_comes_while_a_question_gives_up_changes_nothing() -> None:
    async def scenario() -> None:
        question = _Question("a", "inbox", 0.0)
        async with question.limit:
            try:
                await asyncio.Event().wait()
            finally:
                question.on_denial(Denial("a", is_publish=True))

    with pytest.raises(TimeoutError):
        asyncio.run(scenario())
