"""Patience with peers, to the nanosecond."""

from envelope.types import MonotonicNs
from jetstream.protocol.liveness import Liveness, Patience, PeerState

PATIENCE = Patience(hello_ns=10, frame_ns=20, idle_ns=40, stalled_ns=30)
QUIET = PeerState(awaiting_hello=False, mid_frame=False, in_flight=0, sending=False)
GREETING = PeerState(awaiting_hello=True, mid_frame=False, in_flight=0, sending=False)
IN_FRAME = PeerState(awaiting_hello=False, mid_frame=True, in_flight=1, sending=False)
WAITING = PeerState(awaiting_hello=False, mid_frame=False, in_flight=1, sending=False)
SENDING = PeerState(awaiting_hello=False, mid_frame=False, in_flight=1, sending=True)


def at(now: int) -> MonotonicNs:
    return MonotonicNs(now)


def a_liveness() -> Liveness:
    return Liveness(PATIENCE, at(0))


def test_a_hello_is_due_after_the_connection() -> None:
    assert a_liveness().overdue(GREETING, at(10)) is None
    assert a_liveness().overdue(GREETING, at(11)) == "hello"


def test_dripping_bytes_do_not_prolong_a_frame() -> None:
    liveness = a_liveness()
    for now in (5, 15, 25):
        liveness.received(frames=0, mid_frame=True, now=at(now))
    assert liveness.overdue(IN_FRAME, at(25)) is None
    assert liveness.overdue(IN_FRAME, at(26)) == "frame"


def test_a_complete_frame_starts_the_next_ones_time() -> None:
    liveness = a_liveness()
    liveness.received(frames=0, mid_frame=True, now=at(0))
    liveness.received(frames=1, mid_frame=True, now=at(15))
    assert liveness.overdue(IN_FRAME, at(35)) is None
    assert liveness.overdue(IN_FRAME, at(36)) == "frame"
    liveness.received(frames=1, mid_frame=False, now=at(36))
    assert liveness.overdue(WAITING, at(1000)) is None


def test_idle_is_who_asks_nothing_and_is_told_nothing() -> None:
    liveness = a_liveness()
    assert liveness.overdue(QUIET, at(40)) is None
    assert liveness.overdue(QUIET, at(41)) == "idle"
    assert liveness.overdue(WAITING, at(41)) is None
    liveness.sending(at(41))
    assert liveness.overdue(QUIET, at(81)) is None


def test_a_peer_that_takes_nothing_has_stalled() -> None:
    liveness = a_liveness()
    liveness.sending(at(5))
    assert liveness.overdue(SENDING, at(35)) is None
    liveness.sending(at(35))
    assert liveness.overdue(SENDING, at(65)) is None
    assert liveness.overdue(SENDING, at(66)) == "stalled"


def test_a_frame_is_not_missed_while_we_do_not_read() -> None:
    liveness = a_liveness()
    liveness.received(frames=0, mid_frame=True, now=at(0))
    liveness.sending(at(30))
    sending_in_frame = PeerState(awaiting_hello=False, mid_frame=True, in_flight=1, sending=True)
    assert liveness.overdue(sending_in_frame, at(50)) is None


def test_the_shortest_bound_sets_the_pace() -> None:
    assert PATIENCE.shortest_ns == 10
