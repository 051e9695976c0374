"""Reading segment files without any log around them: what the page cache, and a socket, can do at all.

Run as a program it is the sending half: it listens, and sends the files by ``sendfile`` to whoever connects,
over and over, until the peer hangs up.
"""

import argparse
import os
import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from benchmarks.helper_process import announce
from benchmarks.meter import Meter, Unverified

CHUNK_BYTES: Final = 1 << 20
_TAIL_BYTES: Final = 64


def read_files(files: Sequence[Path], meter: Meter) -> None:
    """Read the files into one buffer, as ``cat`` to nowhere does; counts bytes."""
    room = memoryview(bytearray(CHUNK_BYTES))
    wanted = sum(path.stat().st_size for path in files)
    meter.begin()
    while True:
        total = 0
        for path in files:
            with path.open("rb", buffering=0) as file:
                while count := file.readinto(room):
                    total += count
                    if not meter.add(count):
                        return
        if total != wanted:
            raise Unverified(f"{total} bytes in files of {wanted}")
        if not meter.passed():
            return


def receive(address: tuple[str, int], files: Sequence[Path], meter: Meter) -> None:
    """Receive what `send_forever` sends, into one buffer, and check the end of every pass; counts bytes."""
    room = memoryview(bytearray(CHUNK_BYTES))
    length = sum(path.stat().st_size for path in files)
    tail = _tail(files[-1])
    with socket.create_connection(address) as sock:
        meter.begin()
        while True:
            for count in _receive_one_pass(sock, room, length, tail):
                if not meter.add(count):
                    return
            if not meter.passed():
                return


def _receive_one_pass(sock: socket.socket, room: memoryview, length: int, tail: bytes) -> Iterator[int]:
    left = length
    # The tail goes into room of its own: it must not be split over two receives.
    while left > len(tail):
        count = sock.recv_into(room[: min(len(room), left - len(tail))])
        if not count:
            raise Unverified(f"the sender ended {left} bytes before the end of a pass")
        left -= count
        yield count
    received = sock.recv(left, socket.MSG_WAITALL)
    if received != tail:
        raise Unverified("a pass does not end with the last bytes of the last file")
    yield left


def _tail(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(-min(_TAIL_BYTES, path.stat().st_size), os.SEEK_END)
        return file.read()


def send_forever(sock: socket.socket, files: Sequence[Path]) -> None:
    """Send all files, again and again, until the peer is gone."""
    opened = [path.open("rb") for path in files]
    lengths = [os.fstat(file.fileno()).st_size for file in opened]
    try:
        while True:
            for file, length in zip(opened, lengths, strict=True):
                position = 0
                while position < length:
                    position += os.sendfile(sock.fileno(), file.fileno(), position, length - position)
    except (BrokenPipeError, ConnectionResetError):
        return
    finally:
        sock.close()
        for file in opened:
            file.close()


def main() -> None:
    """Serve until stopped; a thread for each peer, because ``sendfile`` releases the interpreter."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", type=Path, nargs="+")
    files = parser.parse_args().files
    with socket.create_server(("127.0.0.1", 0)) as listener:
        announce("ready", port=listener.getsockname()[1])
        while True:
            peer, _ = listener.accept()
            threading.Thread(target=send_forever, args=(peer, files), daemon=True).start()


if __name__ == "__main__":
    main()
