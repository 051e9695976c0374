"""What a NATS parser makes of a byte stream, in one form for ours and for nats-py's.

Parsers group the messages of one subscription between two control operations differently; so a stream is
read as segments that control operations end, and a segment as the messages of each subscription in order.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from nats.errors import ProtocolError
from nats.protocol.parser import Parser

from jetstream.ingest.parser import Block, Control, ControlKind, MessageParser, NatsProtocolError, ParsedItem

Message = tuple[bytes, bytes, bytes, bytes | None]


@dataclass(slots=True)
class ParsedStream:
    """Segments and the control operations that end them; how the parser ended."""

    segments: list[dict[int, list[Message]]] = field(default_factory=lambda: [{}])
    controls: list[tuple[str, object]] = field(default_factory=list)
    refused: bool = False
    """The parser raised its protocol error."""
    crashed: bool = False
    """The parser raised something else."""
    rest: bytes = b""
    """Bytes of the stream that are not part of anything complete."""

    def add_message(self, sid: int, message: Message) -> None:
        """Note a message."""
        self.segments[-1].setdefault(sid, []).append(message)

    def add_control(self, kind: ControlKind, argument: object = None) -> None:
        """Note a control operation; +OK means nothing, nats-py does not even report it."""
        if kind is not ControlKind.OK:
            self.controls.append((kind.name, argument))
            self.segments.append({})

    def begins(self, other: "ParsedStream") -> bool:
        """Tell whether ``other`` has all of this, in the same order, and perhaps more after it."""
        last = len(self.segments) - 1
        if self.controls != other.controls[:last] or self.segments[:last] != other.segments[:last]:
            return False
        following = other.segments[last]
        return all(
            messages == following.get(sid, [])[: len(messages)]
            for sid, messages in self.segments[last].items()
        )

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


class _RecordingClient:
    """Takes the place of nats-py's client behind nats-py's parser."""

    def __init__(self, parsed: ParsedStream) -> None:
        self._parsed = parsed

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None
    ) -> None:
        self._parsed.add_message(sid, (bytes(subject), bytes(reply), data, headers))

    async def _process_ping(self) -> None:
        self._parsed.add_control(ControlKind.PING)

    async def _process_pong(self) -> None:
        self._parsed.add_control(ControlKind.PONG)

    async def _process_info(self, info: dict[str, Any]) -> None:
        self._parsed.add_control(ControlKind.INFO, info)

    async def _process_err(self, text: str) -> None:
        self._parsed.add_control(ControlKind.ERR, text)


def parsed_by_nats_py(chunks: Iterable[bytes]) -> ParsedStream:
    """Run nats-py's own parser over ``chunks``: the oracle."""
    parsed = ParsedStream()
    parser = Parser(_RecordingClient(parsed))
    for chunk in chunks:
        try:
            parser.parse(chunk).send(None)
        except StopIteration:
            continue
        except ProtocolError:
            parsed.refused = True
        except (ValueError, AttributeError):
            # Bad JSON, bad UTF-8, no text: whatever it is, nats-py's read loop ends with it.
            parsed.crashed = True
        break
    parsed.rest = bytes(parser.buf)
    return parsed
