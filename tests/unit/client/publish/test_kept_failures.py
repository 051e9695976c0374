"""Failures that wait for a flush."""

import asyncio
from collections.abc import Callable

import pytest

from envelope.errors import RecordTooLarge
from jetstream.client.publish.ack_inbox import ClaimedFuture
from jetstream.client.publish.publisher import UnobservedFailures

KEPT_MAX = 100


def failed(number: int) -> ClaimedFuture[None]:
    future: ClaimedFuture[None] = ClaimedFuture()
    future.set_exception(RecordTooLarge(str(number)))
    asyncio.Future.exception(future)  # or the loop reports that nobody has looked
    return future


def with_a_loop(scenario: Callable[[], None]) -> None:
    async def run() -> None:
        scenario()

    asyncio.run(run())


def raised_by(failures: UnobservedFailures) -> tuple[str, list[str]]:
    with pytest.raises(RecordTooLarge) as caught:
        failures.raise_first()
    return str(caught.value), getattr(caught.value, "__notes__", [])


def test_the_first_failure_that_nobody_looked_at_is_raised_once() -> None:
    def scenario() -> None:
        failures = UnobservedFailures()
        futures = [failed(number) for number in range(3)]
        for future in futures:
            failures.keep(future)
        assert futures[0].exception() is not None
        assert raised_by(failures) == ("1", ["2 messages failed; this is the first"])
        failures.raise_first()

    with_a_loop(scenario)


def test_a_single_failure_is_raised_as_it_is() -> None:
    def scenario() -> None:
        failures = UnobservedFailures()
        failures.raise_first()
        failures.keep(failed(7))
        assert raised_by(failures) == ("7", [])

    with_a_loop(scenario)


def test_beyond_a_hundred_failures_are_only_counted() -> None:
    def scenario() -> None:
        failures = UnobservedFailures()
        for number in range(3 * KEPT_MAX):
            failures.keep(failed(number))
        assert len(failures) == KEPT_MAX
        assert raised_by(failures) == ("0", ["300 messages failed; this is the first"])

    with_a_loop(scenario)


def test_failures_that_were_looked_at_make_room() -> None:
    def scenario() -> None:
        failures = UnobservedFailures()
        for number in range(3 * KEPT_MAX):
            future = failed(number)
            failures.keep(future)
            assert future.exception() is not None
            assert len(failures) <= KEPT_MAX
        failures.keep(failed(999))
        assert raised_by(failures) == ("999", [])

    with_a_loop(scenario)
