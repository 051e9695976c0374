"""Errors of partitioned streams alone."""

from envelope.errors import RequestError, UnavailableError


class PartitionsMissing(UnavailableError, err_code="partitions_missing", ack_code=60_052):
    """Not all partitions of the stream are there: those that are take no messages until the others are made.

    A request that creates or adds partitions was cut off, or is under way; the same request completes it.
    """


class StreamIsPartition(RequestError, err_code="stream_is_partition", status=409, ack_code=60_050):
    """The stream is one partition of ``partition_of``: what was asked is done to all of them together."""


class StreamIsPartitioned(RequestError, err_code="stream_is_partitioned", status=409, ack_code=60_051):
    """The stream is several, its partitions: what was asked is asked of each; ``detail`` says how many."""
