"""Which partition of a partitioned stream a key belongs to: for nodes and for clients alike.

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
