r"""The NATS client protocol, server to client: bytes in, blocks of messages and control operations out.

One ``feed`` takes a chunk as it came from the socket and returns everything that is complete in it; all
messages of one subscription between two control operations form one block. Two ways lead through a chunk:

* *the grammar*: one regular expression for message lines and one for control operations say what is legal;
  messages are taken one by one.
* *columns*: one regular expression takes all the messages that a chunk begins with, and one more pass in C
  each makes columns of them. It takes only what the grammar would take too, at a third of the cost.

A message that spans chunks is kept as a list of chunks and joined once, when its last byte is there.

The grammar is nats-server's own: space and tab separate the fields of a line, CR LF ends it, and a subject or
a reply subject may hold every other byte. The line of every message that a client of the server publishes
is legal here; what cannot be read or answered is taken apart all the same, and marked (ADR 0004).

Sources: nats-server ``server/parser.go`` and ``server/client.go`` (``processPub``, ``msgHeader``).
"""

import json
import re
from enum import Enum
from itertools import starmap
from typing import Final

from envelope.errors import RemoteProtocolError
from envelope.limits import CONTROL_LINE_BYTES_MAX, KIB, MIB, RECORD_BYTES_MAX, reply_bytes_max
from envelope.values import value
from jetstream.ingest.columns import Columns, RunMatcher
from jetstream.ingest.messages import MessageBlock, Unread

LINE_BYTES_MAX: Final = 64 * MIB
"""An INFO line names every server of a cluster; a message line is as long as a server's ``max_control_line``
lets its publisher make it, and that of a leaf node may be large."""

COLUMNS_BYTES_MIN: Final = 1 * KIB
"""Below it a chunk holds too few messages to pay for the columns."""

_CR, _LF = b"\r\n"


def _message_line(reply_byte: bytes) -> re.Pattern[bytes]:
    # No field can end elsewhere than where it first does, so none is tried shorter (``++``).
    return re.compile(
        rb"(H)?MSG[ \t]++([^ \t\n]++)[ \t]++(\d{1,18}+)[ \t]++"  # subject, subscription
        rb"(?:(" + reply_byte + rb"++)[ \t]++)?"
        rb"(?(1)(\d{1,18}+)[ \t]++)(\d{1,18}+)\r\n"  # header size of an HMSG, size
    )


_MESSAGE_LINE: Final = _message_line(rb"[^ \t\r\n]")
_ANY_MESSAGE_LINE: Final = _message_line(rb"[^ \t\n]")
"""Also of a message whose reply subject has a CR."""
_CONTROL_LINE: Final = re.compile(
    rb"(?:(PING|PONG|\+OK)[ \t]*|(-ERR)[ \t]+('.+')|(INFO)[ \t]+([^\r\n]+))\r\n"
)


class ControlKind(Enum):
    """The operations of a server that are not messages."""

    PING = b"PING"
    PONG = b"PONG"
    OK = b"+OK"
    ERR = b"-ERR"
    INFO = b"INFO"


@value(frozen=True, slots=True)
class Block:
    """Messages of one subscription, in arrival order."""

    sid: int
    messages: MessageBlock


@value(frozen=True, slots=True)
class Control:
    """A control operation; ``argument`` is the quoted text of ERR or the JSON of INFO, as received."""

    kind: ControlKind
    argument: bytes = b""


ParsedItem = Block | Control


class NatsProtocolError(RemoteProtocolError):
    """The server broke the NATS protocol; the connection is of no use any more.

    Attributes:
        items: what was complete before the garbage. The messages were delivered by NATS: deliver them on
            before acting on the error.
        unparsed: the bytes at hand from the garbage on.
    """

    def __init__(self, description: str, unparsed: bytes = b"") -> None:
        super().__init__(f"{description}: {unparsed[:64]!r}" if unparsed else description)
        self.items: list[ParsedItem] = []
        self.unparsed = unparsed


class MessageParser:
    """Turns chunks of any size into blocks and control operations.

    Invariants:
        P1: items leave in the order of their bytes, except that messages of different subscriptions between
            two control operations are grouped.
            Held by test_a_valid_stream_means_what_the_grammar_says_in_any_chunks.
        P2: the result does not depend on how the stream is cut into chunks, apart from the grouping.
            Held by test_a_valid_stream_means_what_the_grammar_says_in_any_chunks.
        P3: held bytes are at most one message or control line and one chunk; of a message that is larger than
            ``message_bytes_max``, its line.
            Held by test_a_line_without_end_is_refused_at_a_limit.

    Attributes:
        unanswerable: reply subjects left out because no answer can be published on them.
    """

    def __init__(
        self, message_bytes_max: int = RECORD_BYTES_MAX, max_control_line: int = CONTROL_LINE_BYTES_MAX
    ) -> None:
        """Parse for a connection to one server.

        Args:
            message_bytes_max: header and payload of a larger message are passed over unread; `Unread` stands
                for them.
            max_control_line: of the server; what is published on a reply subject must fit it.
        """
        self.unanswerable = 0
        self._message_bytes_max = message_bytes_max
        self._reply_bytes_max = reply_bytes_max(max_control_line)
        self.reset()

    def reset(self) -> None:
        """Forget a half-read message and a failure: a new connection begins."""
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._wanted_bytes = 0  # of the held ones and those to come; 0: up to the next line end
        self._unread_bytes = 0  # of a message that is too large, still to come
        self._failure: str | None = None
        self._matcher = RunMatcher(self._message_bytes_max)

    def feed(self, data: bytes) -> list[ParsedItem]:
        """Take in the next bytes of the connection; return what they complete.

        Raises:
            NatsProtocolError: the bytes are not the NATS protocol, or exceed a limit. From then on every call
                raises until `reset`.
        """
        if self._failure is not None:
            raise NatsProtocolError(self._failure)
        if self._unread_bytes:
            passed = min(self._unread_bytes, len(data))
            self._unread_bytes -= passed
            data = data[passed:]
        if self._held:
            self._hold(data)
            if not self._may_go_on(data):
                return []
            data = b"".join(self._held)
            self._held.clear()
        self._held_bytes = self._wanted_bytes = 0
        taken, position = self._matcher.take(data) if len(data) >= COLUMNS_BYTES_MIN else ({}, 0)
        if position == len(data):
            return list(map(Block, taken, starmap(MessageBlock, taken.values())))
        run = _Run(taken)
        try:
            position = self._take_by_grammar(data, position, run)
        except NatsProtocolError as error:
            self._failure = error.description
            error.items = run.close()
            raise
        if position < len(data):
            self._hold(data[position:])
        return run.close()

    def _hold(self, data: bytes) -> None:
        self._held.append(data)
        self._held_bytes += len(data)

    def _may_go_on(self, data: bytes) -> bool:
        """Return whether the held bytes and ``data``, the newest of them, can complete anything."""
        if self._wanted_bytes:
            return self._held_bytes >= self._wanted_bytes
        return b"\n" in data or self._held_bytes > LINE_BYTES_MAX

    # --- the grammar -----------------------------------------------------------------------------

    def _take_by_grammar(self, data: bytes, position: int, run: "_Run") -> int:
        """Take everything that is complete from ``position`` on; return where the rest begins."""
        message_line, length, bytes_max = _MESSAGE_LINE.match, len(data), self._message_bytes_max
        reply_bytes_max = self._reply_bytes_max
        last_sid: bytes | None = None
        columns: Columns = ([], [], [], [])  # of no subscription yet
        subjects, replies, payloads, headers = columns
        while position < length:
            line = message_line(data, position)
            if line is not None:
                subject, sid, reply, header_size, size = line.group(2, 3, 4, 5, 6)
                start = line.end()
                end = start + int(size)
                middle = start if header_size is None else start + int(header_size)
                if end - start <= bytes_max and start - position <= reply_bytes_max and middle <= end:
                    if length < end + 2:
                        self._wanted_bytes = end + 2 - position
                        break
                    if data[end] != _CR or data[end + 1] != _LF:
                        raise NatsProtocolError("NATS message is not followed by CR LF", data[position:])
                    if sid != last_sid:
                        last_sid = sid
                        subjects, replies, payloads, headers = run.columns(sid)
                    subjects.append(subject)
                    replies.append(reply or b"")
                    payloads.append(data[middle:end])
                    headers.append(data[start:middle] or None)
                    position = end + 2
                    continue
            end = self._take_odd(data, position, run)
            if end == position:
                break
            position, last_sid = end, None
        return position

    def _take_odd(self, data: bytes, position: int, run: "_Run") -> int:
        """Take one control operation, or one message of any kind, as `_take_control`."""
        line = _ANY_MESSAGE_LINE.match(data, position)
        if line is None:
            return self._take_control(data, position, run)
        subject, sid, reply, header_size, size = line.group(2, 3, 4, 5, 6)
        start = line.end()
        end = start + int(size)
        middle = start + int(header_size or 0)
        if middle > end:
            raise NatsProtocolError("NATS header is longer than its message", data[position:])
        header, payload, taken = data[start:middle], data[middle:end], end + 2
        if end - start > self._message_bytes_max:
            header, payload, taken = Unread(end - start), b"", min(end + 2, len(data))
            self._unread_bytes = end + 2 - taken
        elif len(data) < end + 2:
            self._wanted_bytes = end + 2 - position
            return position
        elif data[end:taken] != b"\r\n":
            raise NatsProtocolError("NATS message is not followed by CR LF", data[position:])
        if reply is not None and (len(reply) > self._reply_bytes_max or b"\r" in reply):
            # nats-server drops a byte of a PUB with a CR in it where its read buffer ends, and takes the size
            # that is left for the size.
            self.unanswerable += 1
            reply = None
        subjects, replies, payloads, headers = run.columns(sid)
        subjects.append(subject)
        replies.append(reply or b"")
        payloads.append(payload)
        headers.append(header if isinstance(header, Unread) else header or None)
        return taken

    def _take_control(self, data: bytes, position: int, run: "_Run") -> int:
        """Take one control operation; return where it ends, ``position`` if it is not complete."""
        line = _CONTROL_LINE.match(data, position)
        if line is not None:
            plain, err, text, info, document = line.groups()
            if document is not None and not _is_json_object(document):
                raise NatsProtocolError("NATS INFO is no JSON object", data[position:])
            run.add(Control(ControlKind(plain or err or info), text or document or b""))
            return line.end()
        if data.find(b"\r\n", position) >= 0:
            raise NatsProtocolError("unknown NATS protocol line", data[position:])
        if len(data) - position > LINE_BYTES_MAX:
            raise NatsProtocolError(f"NATS line exceeds {LINE_BYTES_MAX} bytes", data[position:])
        return position


def _is_json_object(document: bytes) -> bool:
    try:
        return isinstance(json.loads(document), dict)
    except ValueError:
        return False


class _Run:
    """The items of one chunk; blocks are open until the next control operation."""

    __slots__ = ("_by_digits", "_items", "_open")

    def __init__(self, columns: dict[int, Columns]) -> None:
        """Begin with the open blocks ``columns``."""
        self._items: list[ParsedItem] = []
        self._open = columns
        self._by_digits: dict[bytes, Columns] = {}

    def columns(self, sid: bytes) -> Columns:
        """Return the open block of the subscription."""
        columns = self._by_digits.get(sid)
        if columns is None:
            columns = self._by_digits[sid] = self._open.setdefault(int(sid), ([], [], [], []))
        return columns

    def add(self, control: Control) -> None:
        """Close the open blocks and add a control operation after them."""
        self.close().append(control)

    def close(self) -> list[ParsedItem]:
        """Close the open blocks; return all items."""
        self._items += map(Block, self._open, starmap(MessageBlock, self._open.values()))
        self._open.clear()
        self._by_digits.clear()
        return self._items
