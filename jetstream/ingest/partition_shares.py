"""Which partition of a partitioned stream takes a message, and the split of a block between partitions.

All leaders of one stream hear all its messages, and each takes its own: so the same bytes must give the same
partition everywhere, whatever is wrong with them. A message that cannot be stored is refused by the
leader of its partition.
"""

from collections.abc import Collection, Iterator

from envelope.envelopes import decode
from envelope.errors import JetstreamError
from envelope.headers import KEY, key_in
from envelope.partitions import partition_of
from envelope.types import PartitionBy
from jetstream.ingest.messages import MessageBlock


def shares(
    messages: MessageBlock, by: PartitionBy, count: int, partitions: Collection[int]
) -> Iterator[tuple[int, MessageBlock]]:
    """Yield the messages of each of ``partitions``, in arrival order; nothing of one without messages.

    Some 0.1 µs a message, and so a loop: of blocks as small as most are, columns would take longer.

    Args:
        messages: of the stream; may be one of those that are yielded, and is not to be used any more.
        by: KEY or SUBJECT; what is partitioned by QUEUE is split by NATS.
        count: partitions that share the messages; of 0 none takes any.
        partitions: numbers of those that are wanted.
    """
    assert by is not PartitionBy.QUEUE, "NATS splits by queue"
    if count == 0 or not messages.count:
        return
    if count == 1:
        if 0 in partitions:
            yield 0, messages
        return
    places: list[list[int]] = [[] for _ in range(count)]
    keys = messages.subjects if by is PartitionBy.SUBJECT else partition_keys(messages)
    for place, key in enumerate(keys):
        places[partition_of(key, count)].append(place)
    for partition in partitions:
        if partition < count and places[partition]:
            yield partition, messages.at(places[partition])


def partition_keys(messages: MessageBlock) -> list[bytes]:
    """Return what partitions each message of a stream that is partitioned by key: its key, or its subject."""
    if not messages.cookies and not messages.has_headers:
        return messages.subjects
    keys = list(messages.subjects)
    for place in messages.cookies:
        if (key := _enveloped_key(messages.payloads[place])) is not None:
            keys[place] = key
    for place, header in enumerate(messages.headers):
        if header is not None and (key := key_in(header)) is not None:
            keys[place] = key
    return keys


def _enveloped_key(payload: bytes) -> bytes | None:
    """Return the key of an envelope, as `MessageValidator` reads it; None without a key or an envelope."""
    try:
        envelope = decode(payload)
    except JetstreamError:
        return None  # it is refused, by whoever has the subject
    if envelope is None:
        return None
    return next((value for name, value in envelope.headers if name == KEY), envelope.key)
