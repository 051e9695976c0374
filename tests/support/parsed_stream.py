"""What a NATS parser makes of a byte stream, in one form for ours and for a plain reference.

Parsers group the messages of one subscription between two control operations differently; so a stream is
read as segments that control operations end, and a segment as the messages of each subscription in order.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from jetstream.ingest.parser import Block, Control, ControlKind, MessageParser, NatsProtocolError, ParsedItem

Message = tuple[bytes, bytes, bytes, bytes | None]


@dataclass(slots=True)
class ParsedStream:
    """Segments and the control operations that end them; how the parser ended."""

    segments: list[dict[int, list[Message]]] = field(default_factory=lambda: [{}])
    controls: list[tuple[str, object]] = field(default_factory=list)
    refused: bool = False
    """The parser raised its protocol error."""
    rest: bytes = b""
    """Bytes of the stream that are not part of anything complete."""

    def add_message(self, sid: int, message: Message) -> None:
        """Note a message."""
        self.segments[-1].setdefault(sid, []).append(message)

    def add_control(self, kind: ControlKind, argument: object = None) -> None:
        """Note a control operation; +OK means nothing."""
        if kind is not ControlKind.OK:
            self.controls.append((kind.name, argument))
            self.segments.append({})

    def same(self, other: "ParsedStream") -> bool:
        """Tell whether both have the same messages and operations."""
        return self.segments == other.segments and self.controls == other.controls


def parsed_by_ours(chunks: Iterable[bytes], parser: MessageParser | None = None) -> ParsedStream:
    """Run our parser over ``chunks``."""
    parser = parser or MessageParser()
    parsed = ParsedStream()
    coming = iter(chunks)
    for chunk in coming:
        try:
            _add_items(parsed, parser.feed(chunk))
        except NatsProtocolError as error:
            _add_items(parsed, error.items)
            parsed.refused = True
            parsed.rest = error.unparsed + b"".join(coming)
            return parsed
    parsed.rest = b"".join(parser._held)
    return parsed


def _add_items(parsed: ParsedStream, items: list[ParsedItem]) -> None:
    for item in items:
        match item:
            case Block(sid, block):
                for message in zip(block.subjects, block.replies, block.payloads, block.headers, strict=True):
                    parsed.add_message(sid, message)
            case Control(ControlKind.INFO, document):
                parsed.add_control(ControlKind.INFO, json.loads(document))
            case Control(ControlKind.ERR, text):
                parsed.add_control(ControlKind.ERR, text.decode(errors="replace").lower())
            case Control(kind, _):
                parsed.add_control(kind)


def parsed_by_reference(stream: bytes) -> ParsedStream:
    """Take a stream apart as slowly and plainly as nats-server's grammar can be written down."""
    parsed = ParsedStream()
    position = 0
    while (end := stream.find(b"\n", position)) >= 0:
        line = stream[position:end]
        if not line.endswith(b"\r"):
            break
        operation, *fields = re.split(rb"[ \t]+", line[:-1])
        if operation in (b"MSG", b"HMSG"):
            sizes = fields[-1:] if operation == b"MSG" else fields[-2:]
            subject, sid, *reply = fields[: -len(sizes)]
            body_end = end + 1 + int(sizes[-1])
            if len(stream) < body_end + 2:
                break
            assert stream[body_end : body_end + 2] == b"\r\n"
            body = stream[end + 1 : body_end]
            header = body[: int(sizes[0])] if operation == b"HMSG" else b""
            message = (subject, reply[0] if reply else b"", body[len(header) :], header or None)
            parsed.add_message(int(sid), message)
            position = body_end + 2
            continue
        kind = ControlKind(operation)
        text = line[:-1].partition(operation)[2].strip(b" \t")
        if kind is ControlKind.INFO:
            parsed.add_control(kind, json.loads(text))
        elif kind is ControlKind.ERR:
            parsed.add_control(kind, text.decode(errors="replace").lower())
        else:
            parsed.add_control(kind)
        position = end + 1
    parsed.rest = stream[position:]
    return parsed
