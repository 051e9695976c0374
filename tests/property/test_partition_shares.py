"""Every message of a partitioned stream is taken by exactly one partition, wherever it is looked at."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from envelope.envelopes import COOKIE, encode_batch, encode_message
from envelope.errors import InvalidHeader
from envelope.headers import KEY, key_in, parse_header_block, publish_headers
from envelope.partitions import partition_of
from envelope.types import PartitionBy, StreamName
from jetstream.ingest.message_validator import MessageValidator
from jetstream.ingest.messages import MessageBlock
from jetstream.ingest.partition_shares import partition_keys, shares
from tests.support.catalogs import partition
from tests.support.envelopes import arrow, binary
from tests.support.messages import PublishedMessage, block_of, header_block

COUNTS = st.integers(1, 9)
SPLIT = st.sampled_from((PartitionBy.KEY, PartitionBy.SUBJECT))
keys = st.binary(max_size=3).filter(lambda key: b"\r\n" not in key)
names = st.sampled_from((KEY, KEY, KEY.lower(), "X-Jetstream-Key", "Nats-Msg-Id", "a"))
headers = st.lists(st.tuples(names, keys), max_size=4)
payloads = st.one_of(
    st.binary(max_size=8),
    st.builds(lambda key: encode_message(b"v", key=key), st.none() | keys),
    st.builds(lambda pairs: encode_message(b"v", key=b"in", headers=pairs), headers),
    st.builds(lambda pairs: encode_batch(arrow({"value": binary(b"v")}), 1, headers=pairs), headers),
    st.binary(max_size=20).map(lambda rest: COOKIE + rest),
)
messages = st.builds(
    PublishedMessage,
    payload=payloads,
    subject=st.sampled_from((b"orders.a", b"orders.b", b"orders.\xff")),
    reply=st.sampled_from((b"", b"r")),
    raw_header=st.none() | headers.map(lambda pairs: header_block(*pairs)) | st.binary(max_size=30),
)


def rows(block: MessageBlock) -> list[tuple[bytes, bytes, bytes, bytes | None]]:
    return list(zip(block.subjects, block.replies, block.payloads, block.headers, strict=True))


def numbered(given_messages: list[PublishedMessage]) -> MessageBlock:
    """A block in which each message has a reply subject of its own."""
    block = block_of(given_messages)
    block.replies[:] = [b"%d" % place for place in range(len(block))]
    return block


def taken(block: MessageBlock, by: PartitionBy, count: int, wanted: set[int]) -> dict[int, list[bytes]]:
    """Which messages each partition takes."""
    return {number: list(share.replies) for number, share in shares(block, by, count, wanted)}


@given(st.lists(messages, max_size=20), SPLIT, COUNTS, st.sets(st.integers(0, 9)))
def test_every_message_is_taken_by_exactly_one_partition_in_order(
    published: list[PublishedMessage], by: PartitionBy, count: int, here: set[int]
) -> None:
    block = numbered(published)
    everywhere = set(range(count))
    one_node = {number: rows(share) for number, share in shares(block, by, count, here)}
    other_node = {number: rows(share) for number, share in shares(block, by, count, everywhere - here)}
    assert one_node.keys() <= here & everywhere
    assert other_node.keys() <= everywhere - here
    both = [row for part in (*one_node.values(), *other_node.values()) for row in part]
    assert sorted(both, key=lambda row: int(row[1])) == rows(block)
    for part in (*one_node.values(), *other_node.values()):
        assert part, "nobody is woken for nothing"
        assert all(int(first[1]) < int(second[1]) for first, second in pairwise(part))


@given(st.lists(messages, min_size=1, max_size=12), SPLIT, COUNTS, st.integers(0, 12))
def test_how_messages_are_cut_into_blocks_makes_no_difference(
    published: list[PublishedMessage], by: PartitionBy, count: int, cut: int
) -> None:
    block, everywhere = numbered(published), set(range(count))
    whole = taken(block, by, count, everywhere)
    parts = [taken(part, by, count, everywhere) for part in block.split(min(cut, len(block)))]
    assert whole == {number: [reply for part in parts for reply in part.get(number, [])] for number in whole}


@given(messages)
def test_the_key_that_decides_is_the_key_that_is_stored(published: PublishedMessage) -> None:
    config = partition("orders", 0, 1).config
    block = block_of([published])
    seen = MessageValidator(StreamName("orders/0"), config, lambda _stream, _subject: False).inspect(block, 0)
    if seen.refusal is None:
        expected = seen.asked.key if seen.asked.key is not None else published.subject
        assert partition_keys(block) == [expected]


@given(headers)
def test_the_key_in_a_header_block_is_the_one_that_all_headers_say(pairs: list[tuple[str, bytes]]) -> None:
    block = header_block(*pairs)
    assert key_in(block) == publish_headers(parse_header_block(block)).key


@given(st.binary(max_size=40) | headers.map(lambda pairs: header_block(*pairs)[:-3]))
def test_any_bytes_have_a_key_or_none(block: bytes) -> None:
    key = key_in(block)
    try:
        assert key == publish_headers(parse_header_block(block)).key
    except InvalidHeader:
        assert key is None or key in block


def test_clients_reckon_partitions_by_these_numbers() -> None:
    """Also in docs/partitions.md: they are what other languages are checked against."""
    reckoned = (b"", b"order-17", b"order-18", b"orders.eu.1", b"\xff\x00")
    assert [partition_of(key, 4) for key in reckoned] == [0, 0, 1, 0, 1]
    assert [partition_of(key, 12) for key in reckoned] == [0, 8, 9, 4, 9]


def test_nobody_takes_anything_of_an_incomplete_stream() -> None:
    block = block_of([PublishedMessage(subject=b"orders.a")])
    assert list(shares(block, PartitionBy.KEY, 0, {0, 1})) == []
    assert list(shares(MessageBlock(), PartitionBy.SUBJECT, 2, {0, 1})) == []
    assert next(shares(block, PartitionBy.SUBJECT, 1, {0, 7}))[1] is block
