r"""The answers to a publisher: a superset of NATS JetStream's PubAck, written as ready-made PUB commands.

    {"stream":"orders","seq":43,"offset":42,"epoch":3}
    {"stream":"orders","seq":43,"offset":42,"epoch":3,"duplicate":true}
    {"stream":"orders","seq":43,"offset":42,"epoch":3,"first_offset":33,"count":10,"correlation_id":"c-1"}
    {"stream":"orders","seq":0,"epoch":3,"duplicate":true}
    {"stream":"orders/2","seq":43,"offset":42,"epoch":3,"partition":2}
    {"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 5"},"stream":"orders","seq":0}

The third one is that of a batch: ``seq`` and ``offset`` are its last record's, as in NATS's own batches. The
fourth is that of a repeat in a session, of a message so old that its offset is forgotten. The fifth is that
of a partition, which says its number whatever else it says.
``seq`` is ``offset`` + 1, so that the official clients, whose streams begin at 1, read a number they know.
``error`` holds exactly NATS's three keys: clients build their exception from all that is in it. The
``err_code`` there is the error's ``ack_code``, by which our own client tells the errors apart.

Source: nats-server ``JSPubAckResponse`` and ``ApiError``.
"""

import json
from collections.abc import Sequence
from typing import Final, Self

from envelope.errors import JetstreamError
from envelope.types import NO_OFFSET, LeaderEpoch, Offset, StreamName

_SEPARATORS: Final = (",", ":")

PLAIN_ACK: Final = rb'\{"stream":"([A-Za-z0-9_/-]+)","seq":\d{1,18},"offset":(\d{1,18}),"epoch":(\d{1,18})\}'
"""What `AckWriter.acks` writes for a stream that is no partition; groups: stream, offset, epoch."""


def publish_command(reply: bytes, body: bytes, header: bytes = b"") -> bytes:
    """Return the NATS command that publishes ``body`` on ``reply``, which must not hold white space.

    ``header``: a whole header block; none if it is empty.
    """
    if header:
        return b"HPUB %b %d %d\r\n%b%b\r\n" % (reply, len(header), len(header) + len(body), header, body)
    return b"PUB %b %d\r\n%b\r\n" % (reply, len(body), body)


class EchoingReply(bytes):
    """A reply subject whose answer says more than others: what an envelope asked to have echoed.

    Attributes:
        records: how many the answer is about, if it is one to a batch, be it of a single record; their
            offsets end with the one that is acked.
        correlation_id: sent back as it came, None if there is none.
    """

    records: int | None
    correlation_id: str | None

    def __new__(cls, reply: bytes, records: int | None, correlation_id: str | None) -> Self:
        """Answer on ``reply``."""
        self = super().__new__(cls, reply)
        self.records = records
        self.correlation_id = correlation_id
        return self

    def echo(self, offset: Offset | None) -> bytes:
        """Return what the JSON of an answer ends with; ``offset`` is that of the last record, if any."""
        more = b""
        if self.records is not None and offset is not None:
            more = b',"first_offset":%d,"count":%d' % (offset - self.records + 1, self.records)
        if self.correlation_id is not None:
            more += b',"correlation_id":' + json.dumps(self.correlation_id).encode()
        return more + b"}"


class AckWriter:
    """Writes the answers of one stream during one leader epoch."""

    def __init__(self, stream: StreamName, leader_epoch: LeaderEpoch, partition: int | None = None) -> None:
        """Prepare the parts that all answers share; ``partition`` is its number, of a partition."""
        self._stream = stream
        name = json.dumps(stream).replace("%", "%%")
        number = "" if partition is None else f',"partition":{partition}'
        self._ack = f'{{"stream":{name},"seq":%d,"offset":%d,"epoch":{leader_epoch}{number}}}'.encode()
        self._duplicate = self._ack[:-1] + b',"duplicate":true}'
        forgotten = {"stream": stream, "seq": 0, "epoch": leader_epoch}
        forgotten |= {} if partition is None else {"partition": partition}
        forgotten["duplicate"] = True
        self._forgotten = json.dumps(forgotten, separators=_SEPARATORS).encode()
        self._partition = partition
        self._command = b""  # the ack of one record of the run below, still without its reply and its numbers
        self._run_base = self._run_end = NO_OFFSET

    def acks(self, offsets: Sequence[int], replies: Sequence[bytes], *, echoing: bool = False) -> bytes:
        """Return the commands that ack the records at ``offsets`` to ``replies``, in that order.

        Those of a range are written together, unless ``echoing``: an `EchoingReply` may be among the replies.
        """
        if echoing or not isinstance(offsets, range):
            return b"".join(map(self.ack, replies, map(Offset, offsets)))
        base = begin = Offset(offsets.start)
        end = offsets.stop
        commands = b""
        while begin < end:
            if not self._run_base <= begin < self._run_end:
                # Within a run offset and seq have as many digits in every ack, so that all are equally long.
                self._run_base = begin
                self._run_end = Offset(max(begin + 1, 10 ** len(str(begin)) - 1))
                self._command = b"PUB %%b %d\r\n%b\r\n" % (len(self._ack % (begin + 1, begin)), self._ack)
            run_end = min(end, self._run_end)
            count = run_end - begin
            values: list[bytes | int] = [0] * (3 * count)
            values[0::3] = replies[begin - base : run_end - base]
            values[1::3] = range(begin + 1, run_end + 1)
            values[2::3] = range(begin, run_end)
            commands += self._command * count % tuple(values)
            begin = Offset(run_end)
        return commands

    def ack(self, reply: bytes, offset: Offset) -> bytes:
        """Return the command that acks one record."""
        return publish_command(reply, _echoing(reply, self._ack % (offset + 1, offset), offset))

    def duplicate(self, reply: bytes, offset: Offset | None) -> bytes:
        """Return the command that acks a repeated message with the offset of its original, if it is known."""
        if offset is None:
            return publish_command(reply, _echoing(reply, self._forgotten, None))
        return publish_command(reply, _echoing(reply, self._duplicate % (offset + 1, offset), offset))

    def refusal(self, reply: bytes, error: JetstreamError) -> bytes:
        """Return the command that tells a publisher why its message is not stored."""
        return publish_command(
            reply, _echoing(reply, refusal_body(self._stream, error, self._partition), None)
        )

    def refusals(self, replies: Sequence[bytes], error: JetstreamError) -> bytes:
        """Return the commands that tell many publishers the same."""
        body = refusal_body(self._stream, error, self._partition)
        return b"".join([publish_command(reply, _echoing(reply, body, None)) for reply in replies])


def _echoing(reply: bytes, body: bytes, offset: Offset | None) -> bytes:
    return body[:-1] + reply.echo(offset) if isinstance(reply, EchoingReply) else body


def refusal_body(stream: StreamName, error: JetstreamError, partition: int | None = None) -> bytes:
    """Return ``error`` in the shape of a NATS JetStream publish error.

    The numbers behind it stand beside that: official clients take no more in there.
    """
    reason = {"code": error.status, "err_code": error.ack_code, "description": error.description}
    body: dict[str, object] = {"error": reason, "stream": stream, "seq": 0}
    if partition is not None:
        body["partition"] = partition
    if error.detail:
        body["detail"] = error.detail
    return json.dumps(body, separators=_SEPARATORS).encode()
