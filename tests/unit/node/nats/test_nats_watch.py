"""What a connection's watch counts and logs of the errors on it."""

import logging

import nats.errors
import pytest

from jetstream.node.nats.watch import LinkWatch
from tests.support.clocks import ForwardClock


def test_errors_that_come_in_masses_are_all_counted_and_few_of_them_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ForwardClock()
    watch = LinkWatch("answers", clock)
    for number in range(1000):
        watch.note(nats.errors.Error(f"no right to publish to _INBOX.{number}"))
    assert watch.counters.errors == 1000
    logged = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert 1 <= len(logged) < 100
    clock.put_forward(60)
    watch.note(nats.errors.Error("another"))
    assert f"unlogged_before={1000 - len(logged)}" in caplog.records[-1].getMessage()
