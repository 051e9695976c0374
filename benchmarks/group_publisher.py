"""A publisher of groups: so many messages in one write, and the next group when all of them are acked."""

import socket
from types import TracebackType
from typing import Final, Self

from benchmarks.loadgen import Address

_INBOX: Final = "_INBOX.groups"
_RECEIVE_BYTES: Final = 1 << 20
_TIMEOUT_SECONDS: Final = 30.0


class GroupNotAcked(Exception):
    """A message of a group was refused, or the connection has ended."""


class GroupPublisher:
    """One connection to a NATS server, spoken without a client library: a group leaves in one piece."""

    def __init__(self, address: Address, subject: str, messages: int, size_bytes: int) -> None:
        """Connect; each group has ``messages`` messages."""
        self.acked = 0
        self._messages = messages
        message = b"PUB %s %s %d\r\n%s\r\n" % (
            subject.encode(),
            _INBOX.encode(),
            size_bytes,
            b"x" * size_bytes,
        )
        self._group = message * messages
        self._socket = socket.create_connection((address.host, address.port), _TIMEOUT_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._held = bytearray()
        self._socket.sendall(b'CONNECT {"verbose":false,"pedantic":false}\r\nSUB %s 1\r\n' % _INBOX.encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def publish(self, groups: int) -> None:
        """Publish groups, each when the one before is acked.

        Raises:
            GroupNotAcked: a message is refused, or the server hangs up.
            TimeoutError: there is no ack for long.
        """
        for _ in range(groups):
            self._socket.sendall(self._group)
            answers = 0
            while answers < self._messages:
                answers += self._answers(self._received())
            assert answers == self._messages, f"{answers} answers to {self._messages} messages"
            self.acked += answers

    def _received(self) -> bytes:
        received = self._socket.recv(_RECEIVE_BYTES)
        if not received:
            raise GroupNotAcked("the NATS server has closed the connection")
        return received

    def _answers(self, received: bytes) -> int:
        """Take in what has come; return how many acks are whole now."""
        held = self._held
        held += received
        answers = position = 0
        while (line_end := held.find(b"\r\n", position)) >= 0:
            line, after = bytes(held[position:line_end]), line_end + 2
            if line.startswith((b"MSG ", b"HMSG ")):
                body_end = after + int(line.rpartition(b" ")[2])
                if len(held) < body_end + 2:
                    break
                _check(bytes(held[after:body_end]))
                answers, after = answers + 1, body_end + 2
            elif line.startswith(b"-ERR"):
                raise GroupNotAcked(line.decode(errors="replace"))
            elif line == b"PING":
                self._socket.sendall(b"PONG\r\n")
            position = after
        del held[:position]
        return answers


def _check(answer: bytes) -> None:
    if b'"seq"' not in answer or b'"error"' in answer:
        raise GroupNotAcked(answer.decode(errors="replace"))
