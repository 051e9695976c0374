"""A line that only delays, and the proxy around it with real sockets."""

import socket
import threading

import pytest

from benchmarks.delay_proxy import DelayLine
from benchmarks.helper_process import helper

WAIT_SECONDS = 30.0


def test_chunks_come_out_in_order_each_when_it_is_due() -> None:
    line = DelayLine(2.0)
    assert line.wait_s(0.0) is None

    line.put(memoryview(b"one"), now=10.0)
    line.put(memoryview(b"two"), now=11.0)

    assert line.wait_s(10.5) == 1.5
    assert line.wait_s(12.0) == 0.0
    assert bytes(line.take()) == b"one"
    assert line.wait_s(12.0) == 1.0
    assert line.wait_s(14.0) == 0.0
    assert bytes(line.take()) == b"two"
    assert line.wait_s(14.0) is None


def test_a_full_line_has_no_room_until_something_is_taken() -> None:
    line = DelayLine(0.0, bytes_max=4)
    room = []

    for act in (
        lambda: line.put(memoryview(b"abc"), now=0.0),
        lambda: line.put(memoryview(b"de"), now=0.0),
        line.take,
    ):
        act()
        room.append(line.has_room)

    assert room == [True, False, True]


@pytest.mark.parametrize("round_trip_ms", [0, 4])
def test_the_proxy_passes_on_every_byte_both_ways_and_the_end(round_trip_ms: int) -> None:
    sent = bytes(range(256)) * 20_000
    with socket.create_server(("127.0.0.1", 0)) as listener:
        target = f"127.0.0.1:{listener.getsockname()[1]}"
        with helper("delay_proxy", "--target", target, "--round-trip-ms", round_trip_ms) as proxy:
            port = proxy.hear("ready")["port"]
            echo = threading.Thread(target=_echo_once, args=(listener, len(sent)))
            echo.start()
            with socket.create_connection(("127.0.0.1", port), WAIT_SECONDS) as client:
                writer = threading.Thread(target=client.sendall, args=(sent,))
                writer.start()
                received = _receive_all(client)
                writer.join()
            echo.join()

    assert received == sent


def _echo_once(listener: socket.socket, length: int) -> None:
    peer, _ = listener.accept()
    with peer:
        left = length
        while left:
            data = peer.recv(65_536)
            peer.sendall(data)
            left -= len(data)


def _receive_all(sock: socket.socket) -> bytes:
    received = bytearray()
    while data := sock.recv(1 << 20):
        received += data
    return bytes(received)
