"""Messages as publishers send them, as NATS delivers them, and the answers they get."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jetstream.ingest.machine import Action, AppendRecords, Count, CountKind, Publish
from jetstream.ingest.messages import MessageBlock

_COMMAND = re.compile(rb"PUB (\S+) (\d+)\r\n")


def header_block(*headers: tuple[str, bytes | str]) -> bytes:
    """Return the header block that an official client sends."""
    lines = b"".join(
        name.encode() + b": " + (value if isinstance(value, bytes) else value.encode()) + b"\r\n"
        for name, value in headers
    )
    return b"NATS/1.0\r\n" + lines + b"\r\n"


@dataclass(frozen=True, slots=True)
class PublishedMessage:
    """One message on its way to a stream."""

    payload: bytes = b"hello"
    subject: bytes = b"orders.new"
    reply: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    raw_header: bytes | None = None

    @property
    def header(self) -> bytes | None:
        """The raw header block."""
        return header_block(*self.headers) if self.headers else self.raw_header

    def wire(self, sid: int = 7) -> bytes:
        """Return what the server sends to a subscriber."""
        reply = self.reply + b" " if self.reply else b""
        if self.header is None:
            return b"MSG %b %d %b%d\r\n%b\r\n" % (self.subject, sid, reply, len(self.payload), self.payload)
        sizes = b"%d %d" % (len(self.header), len(self.header) + len(self.payload))
        return b"HMSG %b %d %b%b\r\n%b%b\r\n" % (self.subject, sid, reply, sizes, self.header, self.payload)


def message(
    payload: bytes = b"hello", reply: str = "", subject: str = "orders.new", **headers: str
) -> PublishedMessage:
    """Return a message; ``Nats_Msg_Id="a"`` becomes the header ``Nats-Msg-Id: a``."""
    pairs = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return PublishedMessage(payload, subject.encode(), reply.encode(), pairs)


def block_of(messages: Iterable[PublishedMessage]) -> MessageBlock:
    """Return messages as the parser hands them on."""
    block = MessageBlock()
    for each in messages:
        block.append(each.subject, each.reply, each.payload, each.header)
    return block


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer, as its publisher reads it."""

    reply: str
    body: dict[str, object]

    @property
    def error_code(self) -> int | None:
        """NATS's number of a refusal, None for an ack."""
        error = self.body.get("error")
        return error["err_code"] if isinstance(error, dict) else None


def answers_in(data: bytes) -> list[Answer]:
    """Take raw PUB commands apart, strictly."""
    answers: list[Answer] = []
    while data:
        command = _COMMAND.match(data)
        assert command is not None, data
        end = command.end() + int(command[2])
        assert data[end : end + 2] == b"\r\n"
        answers.append(Answer(command[1].decode(), json.loads(data[command.end() : end])))
        data = data[end + 2 :]
    return answers


def published(actions: Sequence[Action]) -> list[Answer]:
    """Return all answers among ``actions``; their announced numbers are right."""
    answers: list[Answer] = []
    for action in actions:
        if isinstance(action, Publish):
            found = answers_in(action.data)
            assert len(found) == action.count
            answers += found
    return answers


def appends(actions: Sequence[Action]) -> list[AppendRecords]:
    """Return the appends among ``actions``."""
    return [action for action in actions if isinstance(action, AppendRecords)]


def counted(actions: Sequence[Action], kind: CountKind) -> int:
    """Return the sum of one counter's additions."""
    return sum(action.number for action in actions if isinstance(action, Count) and action.kind is kind)
