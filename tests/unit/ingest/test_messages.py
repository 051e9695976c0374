"""What a block knows of its messages, however it came to be."""

import hypothesis.strategies as st
from hypothesis import given

from envelope.envelopes import AFTER_COOKIE, COOKIE
from jetstream.ingest.messages import MessageBlock

MESSAGES = st.lists(
    st.tuples(
        st.sampled_from([b"s.a", b"s.long"]),
        st.sampled_from([b"", b"reply"]),
        st.sampled_from([b"", b"plain", COOKIE, COOKIE + b"more", AFTER_COOKIE, COOKIE[:-1]]),
        st.sampled_from([None, b"NATS/1.0\r\n\r\n"]),
    ),
    max_size=8,
)


def assert_is_known(block: MessageBlock) -> None:
    fresh = MessageBlock(block.subjects, block.replies, block.payloads, block.headers)
    assert len(block) == block.count == fresh.count == len(block.subjects)
    assert block.size_bytes == fresh.size_bytes
    assert block.has_headers == fresh.has_headers == any(header is not None for header in block.headers)
    assert block.cookies == fresh.cookies
    assert block.cookies == [at for at, each in enumerate(block.payloads) if each.startswith(COOKIE)]


@given(MESSAGES, MESSAGES, st.data())
def test_a_block_knows_its_messages_whatever_it_was_made_of(
    first: list[tuple[bytes, bytes, bytes, bytes | None]],
    second: list[tuple[bytes, bytes, bytes, bytes | None]],
    data: st.DataObject,
) -> None:
    block, other = MessageBlock(), MessageBlock()
    for into, messages in ((block, first), (other, second)):
        for message in messages:
            into.append(*message)
            assert_is_known(into)
    block.extend(other)
    assert_is_known(block)
    for part in block.split(data.draw(st.integers(0, block.count))):
        assert_is_known(part)
    assert_is_known(
        block.select(data.draw(st.lists(st.booleans(), min_size=len(block), max_size=len(block))))
    )
