"""Partitions of streams: which one a key belongs to, and what their names tell; for nodes and clients alike.

The CRC-32 of ISO 3309, which every language has (zlib, gzip, PNG), modulo the number of partitions.
"""

import zlib


def partition_of(key: bytes, count: int) -> int:
    """Return the number of the partition, of ``count``, that messages with this key go to.

    Args:
        key: the message's key; its subject if it has none, or if the stream is partitioned by subject.
        count: partitions that share the messages; at least 1.
    """
    return zlib.crc32(key) % count


def whole_in(name: str) -> str | None:
    """Return the partitioned stream that a stream of that name may be a partition of; None: of none.

    ``orders/2`` is a partition of ``orders``, or a stream of its own in the namespace ``orders``.
    """
    whole, _, number = name.rpartition("/")
    return whole if whole and number.isascii() and number.isdigit() else None
