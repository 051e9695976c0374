"""The answers to messages that are sent together."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from envelope.errors import DeadlinePassed, JetstreamError, RecordTooLarge
from jetstream.client.publish.ack_inbox import AckBlock, Answer, ClaimedFuture, Expected
from jetstream.client.publish.messages import PublishAck, PublishRefusal

REFUSAL = PublishRefusal("s", RecordTooLarge("no"))


def acked(offset: int, stream: str = "s") -> PublishAck:
    return PublishAck(stream, offset, 1)


class Scene:
    """A block of three messages, and what its listener is told."""

    def __init__(self) -> None:
        self.counted = 0
        self.errors: list[BaseException | None] = []
        self.block = AckBlock(asyncio.get_running_loop(), 5.0, self._listen)
        self.block.subjects += ["s.1"] * 3
        self.block.expect_all()

    def _listen(self, _: Expected, count: int, failed: Sequence[ClaimedFuture[Any]]) -> None:
        self.counted += count
        self.errors += [asyncio.Future.exception(future) for future in failed]

    def answer(self, *answers: tuple[int, Answer]) -> bool:
        return self.block.on_answers([(1, number, answer) for number, answer in answers])


def with_a_scene(check: Callable[[Scene], None]) -> None:
    async def run() -> None:
        check(Scene())

    asyncio.run(run())


def test_the_first_answer_to_each_message_counts_in_whatever_order_they_come() -> None:
    def check(scene: Scene) -> None:
        assert not scene.answer((2, acked(2)), (2, acked(9, "other")), (3, acked(3)), (10**17, acked(4)))
        assert (scene.counted, scene.block.unanswered) == (1, 2)
        assert not scene.answer((0, acked(0)), (2, REFUSAL), (0, REFUSAL))
        assert scene.answer((1, acked(1)))
        assert scene.block.future.result() == [acked(0), acked(1), acked(2)]
        assert (scene.counted, scene.errors) == (3, [])

    with_a_scene(check)


def test_the_first_failure_ends_the_future_and_each_is_told() -> None:
    def check(scene: Scene) -> None:
        assert not scene.answer((1, REFUSAL), (0, acked(0)))
        overdue: JetstreamError = DeadlinePassed("later")
        scene.block.on_failure(overdue)
        with pytest.raises(RecordTooLarge):
            scene.block.future.result()
        assert (scene.counted, scene.errors) == (3, [REFUSAL.error, overdue])
        assert scene.block.unanswered == 0

    with_a_scene(check)


def test_who_waits_no_longer_is_told_nothing() -> None:
    def check(scene: Scene) -> None:
        scene.block.future.cancel()
        assert scene.answer((0, acked(0)), (1, acked(1)), (2, acked(2)))
        assert (scene.counted, scene.errors) == (3, [])

    with_a_scene(check)
