"""Standard input as values to publish: whole, or line by line, while the event loop runs on."""

import asyncio
import io
import os
import stat
import sys
from collections.abc import AsyncIterator
from typing import BinaryIO, Final

from envelope.errors import RecordTooLarge
from envelope.limits import RECORD_BYTES_MAX

_CHUNK_BYTES: Final = 64 * 1024


async def whole_input() -> bytes:
    """Return everything up to the end of the input.

    Raises:
        RecordTooLarge: it is more than one record may hold.
    """
    value = bytearray()
    async for chunk in _chunks(sys.stdin.buffer):
        value += chunk
        _check_size(len(value))
    return bytes(value)


async def input_lines() -> AsyncIterator[bytes]:
    """Yield the lines without their line feed; the last one may lack it.

    Raises:
        RecordTooLarge: a line is more than one record may hold.
    """
    rest = bytearray()
    async for chunk in _chunks(sys.stdin.buffer):
        *lines, tail = chunk.split(b"\n")
        for line in lines:
            yield bytes(rest) + line
            rest.clear()
        rest += tail
        _check_size(len(rest))
    if rest:
        yield bytes(rest)


async def _chunks(file: BinaryIO) -> AsyncIterator[bytes]:
    """Yield what there is as it comes: a pipe or terminal may be slow, and must not stop the acks."""
    if not _may_wait(file):
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk
        return
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    # A copy of the descriptor: the transport closes it, and the interpreter still wants its own.
    pipe = os.fdopen(os.dup(file.fileno()), "rb", buffering=0)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, pipe)
    try:
        while chunk := await reader.read(_CHUNK_BYTES):
            yield chunk
    finally:
        transport.close()


def _may_wait(file: BinaryIO) -> bool:
    """Return whether reading may block: true of everything but a regular file or memory."""
    try:
        return not stat.S_ISREG(os.fstat(file.fileno()).st_mode)
    except io.UnsupportedOperation:
        return False


def _check_size(size: int) -> None:
    if size > RECORD_BYTES_MAX:
        raise RecordTooLarge(
            f"the input exceeds {RECORD_BYTES_MAX} bytes for one record", limit=RECORD_BYTES_MAX
        )
