from hypothesis import given
from hypothesis import strategies as st

from envelope.limits import BATCH_BYTES_MAX, GROUP_MESSAGES_MAX
from jetstream.ingest.mailbox import Mailbox
from jetstream.ingest.messages import BATCH_FIXED_BYTES, MESSAGE_OVERHEAD_BYTES, MessageBlock
from tests.support.messages import block_of, message


def numbered(*numbers: int, size: int = 8) -> MessageBlock:
    return block_of(message(b"%0*d" % (size, number), f"r{number}", "s") for number in numbers)


def numbers_in(block: MessageBlock) -> list[int]:
    return [int(payload) for payload in block.payloads]


SIZE = numbered(1).size_bytes


def test_messages_leave_in_the_order_in_which_they_came() -> None:
    mailbox = Mailbox(100, 1 << 20)
    assert mailbox.offer(numbered(1, 2)) is None
    assert mailbox.offer(numbered(3)) is None
    assert mailbox.waiting == 3
    assert numbers_in(mailbox.drain(2, 1 << 20)) == [1, 2]
    assert numbers_in(mailbox.drain(2, 1 << 20)) == [3]
    assert len(mailbox.drain(2, 1 << 20)) == 0
    assert mailbox.size_bytes == 0


def test_beyond_the_message_limit_the_tail_of_the_block_is_refused() -> None:
    mailbox = Mailbox(3, 1 << 20)
    refused = mailbox.offer(numbered(1, 2, 3, 4, 5))
    assert refused is not None
    assert numbers_in(refused) == [4, 5]
    refused = mailbox.offer(numbered(6))
    assert refused is not None
    assert numbers_in(refused) == [6]
    assert mailbox.waiting == 3


def test_beyond_the_byte_limit_the_tail_of_the_block_is_refused() -> None:
    mailbox = Mailbox(100, 2 * SIZE + SIZE // 2)
    refused = mailbox.offer(numbered(1, 2, 3))
    assert refused is not None
    assert numbers_in(refused) == [3]
    assert mailbox.size_bytes == 2 * SIZE


def test_a_message_larger_than_the_mailbox_passes_alone() -> None:
    mailbox = Mailbox(100, SIZE - 1)
    refused = mailbox.offer(numbered(1, 2))
    assert refused is not None
    assert numbers_in(refused) == [2]
    assert numbers_in(mailbox.drain(10, 1)) == [1]


def test_small_blocks_gather_in_one() -> None:
    mailbox = Mailbox(1 << 20, 1 << 30)
    for number in range(1000):
        mailbox.offer(numbered(number))
    assert len(mailbox._blocks) == 1
    for number in range(GROUP_MESSAGES_MAX):
        mailbox.offer(numbered(number))
    assert len(mailbox._blocks) == 2


def test_large_blocks_stay_apart() -> None:
    mailbox = Mailbox(100, 1 << 30)
    for number in range(3):
        mailbox.offer(numbered(number, size=BATCH_BYTES_MAX // 2))
    assert len(mailbox._blocks) == 3


def test_a_block_that_leaves_in_parts_stays_before_the_next() -> None:
    mailbox = Mailbox(100, 1 << 30)
    filling = b" " * (BATCH_BYTES_MAX // 2)
    for first in (1, 3):
        mailbox.offer(block_of(message(b"%d" % number + filling) for number in (first, first + 1)))
    assert [numbers_in(mailbox.drain(1, 1 << 30)) for _ in range(4)] == [[1], [2], [3], [4]]


def test_one_message_leaves_even_if_it_exceeds_the_byte_limit() -> None:
    mailbox = Mailbox(100, 1 << 20)
    mailbox.offer(numbered(1, 2))
    assert numbers_in(mailbox.drain(10, 1)) == [1]
    assert numbers_in(mailbox.drain(10, 1)) == [2]


def test_drained_messages_fit_a_batch_of_the_limit() -> None:
    mailbox = Mailbox(100, 1 << 20)
    mailbox.offer(numbered(1, 2, 3))
    assert numbers_in(mailbox.drain(10, 2 * SIZE + BATCH_FIXED_BYTES)) == [1, 2]
    assert numbers_in(mailbox.drain(10, SIZE + BATCH_FIXED_BYTES - 1)) == [3], "one message always leaves"


blocks = st.lists(st.integers(0, 40), max_size=6)


@given(
    st.lists(
        st.one_of(
            blocks,
            st.tuples(st.integers(1, 8), st.integers(1, 400).map(lambda size: size + BATCH_FIXED_BYTES)),
        ),
        max_size=20,
    ),
    st.integers(1, 12),
    st.integers(1, 800),
)
def test_the_limits_hold_and_nothing_is_lost_or_reordered(
    steps: list[list[int] | tuple[int, int]], messages_max: int, bytes_max: int
) -> None:
    mailbox = Mailbox(messages_max, bytes_max)
    waiting: list[tuple[int, int]] = []  # (number, payload size)
    number = 0
    for step in steps:
        if isinstance(step, tuple):
            taken = mailbox.drain(*step)
            assert numbers_in(taken) == [each for each, _ in waiting[: len(taken)]]
            assert len(taken) <= step[0]
            assert taken.size_bytes <= step[1] - BATCH_FIXED_BYTES or len(taken) == 1
            assert len(taken) > 0 or not waiting
            del waiting[: len(taken)]
            continue
        offered = [(number + place, 6 + size) for place, size in enumerate(step)]
        number += len(step)
        refused = mailbox.offer(block_of(message(b"%0*d" % (size, each), "r", "s") for each, size in offered))
        kept = len(offered) - (0 if refused is None else len(refused))
        if refused is not None:
            assert numbers_in(refused) == [each for each, _ in offered[kept:]]
        waiting += offered[:kept]
        assert mailbox.waiting == len(waiting) <= messages_max
        assert mailbox.size_bytes == sum(size + 1 + MESSAGE_OVERHEAD_BYTES for _, size in waiting)
        assert mailbox.size_bytes <= bytes_max or mailbox.waiting == 1
        if refused is not None and len(refused):
            first = offered[kept][1] + 1 + MESSAGE_OVERHEAD_BYTES
            assert len(waiting) == messages_max or mailbox.size_bytes + first > bytes_max
