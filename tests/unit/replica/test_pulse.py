"""Who is taken for dead, who for silent, and when."""

from jetstream.replica.pulse import Pulse, Verdict

TIMEOUT = 1000


def test_a_peer_that_speaks_in_time_stays_alive() -> None:
    pulse = Pulse(TIMEOUT)
    for _ in range(10):
        assert pulse.passed(TIMEOUT - 1) is None
        assert pulse.heard() is None
    assert pulse.verdict is Verdict.ALIVE


def test_silence_is_told_once_when_it_has_lasted_as_long_as_the_timeout() -> None:
    pulse = Pulse(TIMEOUT)
    pulse.heard()
    assert pulse.passed(600) is None
    assert pulse.passed(399) is None
    assert pulse.passed(1) is Verdict.SILENT
    assert pulse.passed(TIMEOUT) is None
    assert pulse.heard() is Verdict.ALIVE
    assert pulse.passed(TIMEOUT - 1) is None


def test_a_peer_that_was_reached_and_is_refused_is_dead_at_once() -> None:
    pulse = Pulse(TIMEOUT)
    pulse.heard()
    assert pulse.unreached(refused=True) is Verdict.DEAD
    assert pulse.unreached(refused=True) is None
    assert pulse.passed(TIMEOUT) is None
    assert pulse.verdict is Verdict.DEAD
    assert pulse.heard() is Verdict.ALIVE


def test_a_peer_that_only_cannot_be_reached_is_silent_after_the_timeout() -> None:
    pulse = Pulse(TIMEOUT)
    pulse.heard()
    assert pulse.unreached(refused=False) is None
    assert pulse.passed(TIMEOUT) is Verdict.SILENT


def test_a_silent_peer_whose_process_ends_is_dead() -> None:
    pulse = Pulse(TIMEOUT)
    pulse.heard()
    assert pulse.passed(TIMEOUT) is Verdict.SILENT
    assert pulse.unreached(refused=False) is None
    assert pulse.unreached(refused=True) is Verdict.DEAD


def test_a_peer_that_was_never_reached_has_the_timeout_to_start() -> None:
    pulse = Pulse(TIMEOUT)
    assert pulse.unreached(refused=True) is None
    assert pulse.passed(TIMEOUT - 1) is None
    assert pulse.passed(1) is Verdict.DEAD


def test_the_last_dial_decides_whether_a_peer_that_was_never_reached_is_dead() -> None:
    pulse = Pulse(TIMEOUT)
    assert pulse.unreached(refused=True) is None
    assert pulse.unreached(refused=False) is None
    assert pulse.passed(TIMEOUT) is Verdict.SILENT
    assert pulse.unreached(refused=True) is Verdict.DEAD
