"""The bare store of ``loadgen.c`` once more, in Python on the event loop that a node runs on.

``python -m benchmarks.bare_store store|copy`` takes the same options, writes the same files and speaks the
same bytes between store and copies. What lies between the two programs is the price of the language; what
lies between this one and a node is the price of what a node does.
"""

import argparse
import asyncio
import os
import re
import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, cast

import uvloop

from benchmarks.helper_process import announce
from benchmarks.loadgen import BARE_ANSWER
from benchmarks.processes import stop_with_parent

GROUPS_MAX: Final = 2
"""Under way at once: while one is synced and copied, the next one is written."""

_LENGTH: Final = struct.Struct("<I")
_MESSAGE: Final = re.compile(rb"MSG \S+ \S+ (\S+) (\d+)\r\n")
_LINE: Final = re.compile(rb"(INFO|PING|PONG|\+OK|-ERR)[^\r]*\r\n")
_HELLO: Final = b'CONNECT {"verbose":false,"pedantic":false}\r\nSUB %b 1\r\nPING\r\n'
_ANSWER: Final = b" %d\r\n%b\r\n" % (len(BARE_ANSWER), BARE_ANSWER.encode())


class StoreError(Exception):
    """A connection ended or said what it must not; the program ends, and the run that it was part of."""


@dataclass(slots=True)
class GroupFile:
    """A file that only grows."""

    descriptor: int
    syncs: bool

    def append(self, group: bytes) -> None:
        """Write all of ``group``; return after fdatasync, if the file is synced at all."""
        written = os.write(self.descriptor, group)
        while written < len(group):
            written += os.write(self.descriptor, group[written:])
        if self.syncs:
            os.fdatasync(self.descriptor)


@dataclass(slots=True)
class Connection(asyncio.Protocol):
    """Collects what arrives until its owner takes it."""

    take: Callable[[bytes], int]
    """Told all that has arrived and was not taken; returns how many bytes it takes."""
    fail: Callable[[Exception], None]
    transport: asyncio.WriteTransport = field(init=False)
    _rest: bytes = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Learn where to write."""
        self.transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        """Hand on what has arrived."""
        data = self._rest + data if self._rest else data
        try:
            self._rest = data[self.take(data) :]
        except (StoreError, OSError) as error:
            self.fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing can be done without it."""
        self.fail(exc or StoreError("a connection has ended"))


class Store:
    """Answers what it has appended and its copies have acknowledged."""

    def __init__(self, file: GroupFile) -> None:
        self.ready = asyncio.Event()
        self.nats: Connection
        self.copies: list[Connection] = []
        self._file = file
        self._replies: list[bytes] = []
        self._payloads: list[bytes] = []
        self._under_way: deque[list[bytes]] = deque()
        self._copied: list[int] = []
        self._ended = 0
        self._is_due = False

    def add_copy(self, copy: Connection) -> None:
        """Have every group copied there too."""
        copy.take = partial(self._acknowledged, len(self.copies))
        self.copies.append(copy)
        self._copied.append(0)

    def delivered(self, data: bytes) -> int:
        """Take the whole messages at the beginning of what the server said."""
        position = 0
        while True:
            message = _MESSAGE.match(data, position)
            if message is None:
                line = _LINE.match(data, position)
                if line is None:
                    break
                self._said(line)
                position = line.end()
                continue
            end = message.end() + int(message[2])
            if len(data) < end + 2:
                break
            self._replies.append(message[1])
            self._payloads.append(data[message.end() : end])
            position = end + 2
        self._begin_soon()
        return position

    def _said(self, line: re.Match[bytes]) -> None:
        if line[1] == b"PING":
            self.nats.transport.write(b"PONG\r\n")
        elif line[1] == b"PONG":
            self.ready.set()
        elif line[1] == b"-ERR":
            raise StoreError(line[0].decode())

    def _begin_soon(self) -> None:
        """Begin a group when all that has arrived by now is taken in."""
        if self._payloads and not self._is_due and len(self._under_way) < GROUPS_MAX:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        """Copies are on their way before this file is written: all sync at once."""
        self._is_due = False
        group = b"".join(self._payloads)
        self._under_way.append(self._replies)
        self._payloads, self._replies = [], []
        for copy in self.copies:
            copy.transport.write(_LENGTH.pack(len(group)) + group)
        try:
            self._file.append(group)
        except OSError as error:
            self.nats.fail(error)
            return
        if not self.copies:
            self._end()

    def _acknowledged(self, number: int, data: bytes) -> int:
        self._copied[number] += len(data)
        while min(self._copied) > self._ended:
            self._end()
        return len(data)

    def _end(self) -> None:
        """Answer the oldest group."""
        self._ended += 1
        replies = self._under_way.popleft()
        self.nats.transport.write(b"".join([b"PUB %b%b" % (reply, _ANSWER) for reply in replies]))
        self._begin_soon()


def copied(connection: Connection, file: GroupFile, data: bytes) -> int:
    """Append the whole groups at the beginning of ``data``, sync them together and acknowledge each."""
    end = groups = 0
    while len(data) - end >= _LENGTH.size:
        (length,) = _LENGTH.unpack_from(data, end)
        if len(data) - end < _LENGTH.size + length:
            break
        end += _LENGTH.size + length
        groups += 1
    if groups:
        file.append(data[:end])
        connection.transport.write(bytes(groups))
    return end


def _fail(failed: asyncio.Future[None], error: Exception) -> None:
    if not failed.done():
        failed.set_exception(error)


async def store(words: argparse.Namespace, file: GroupFile) -> None:
    """Run until a connection ends."""
    loop = asyncio.get_running_loop()
    failed: asyncio.Future[None] = loop.create_future()
    fail, bare = partial(_fail, failed), Store(file)
    for port in words.copy:
        _, connection = await loop.create_connection(lambda: Connection(len, fail), words.host, port)
        bare.add_copy(connection)
    _, bare.nats = await loop.create_connection(
        lambda: Connection(bare.delivered, fail), words.host, words.port
    )
    bare.nats.transport.write(_HELLO % words.subject.encode())
    await bare.ready.wait()
    announce("ready")
    await failed


async def copy(words: argparse.Namespace, file: GroupFile) -> None:
    """Run until the store has gone."""
    loop = asyncio.get_running_loop()
    failed: asyncio.Future[None] = loop.create_future()

    def accepted() -> Connection:
        connection = Connection(len, partial(_fail, failed))
        connection.take = partial(copied, connection, file)
        return connection

    server = await loop.create_server(accepted, words.host, 0)
    announce("ready", port=server.sockets[0].getsockname()[1])
    with suppress(StoreError):
        await failed


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description="A store that does no more than it must.")
    parser.add_argument("mode", choices=("store", "copy"))
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, help="of the NATS server")
    parser.add_argument("--subject", help="what to store")
    parser.add_argument("--file", type=Path, required=True, help="made anew")
    parser.add_argument("--sync", choices=("always", "os"), required=True)
    parser.add_argument("--copy", type=int, action="append", default=[], help="port of a copy")
    words = parser.parse_args()
    stop_with_parent()
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    file = GroupFile(os.open(words.file, flags, 0o600), words.sync == "always")
    uvloop.run({"store": store, "copy": copy}[words.mode](words, file))


if __name__ == "__main__":
    main()
