"""The validators of internal streams: of plain cursors, which consumers publish, and of the audit."""

from dataclasses import replace
from typing import Final

from consumer_groups.cursors import encode_place, plain_key, read_place
from envelope.envelopes import Kind
from envelope.errors import InvalidCursor, JetstreamError, Unauthorized
from envelope.headers import KEY, REQUEST_INFO
from envelope.internal_streams import AUDIT, CURSORS
from envelope.types import StreamName
from jetstream.ingest.message_validator import Binds, InspectedMessage, MessageValidator
from jetstream.ingest.messages import MessageBlock
from metadata.stream_config import StreamConfig

_GROUP_KEYS: Final = b"group/"
_IMPORTED: Final = f"\r\n{REQUEST_INFO}:".encode()


class CursorValidator(MessageValidator):
    """Reads messages on ``….cursors.plain.<consumer>.<stream>``; all of them are looked at one by one.

    The key comes from the subject, and so from what NATS lets the publisher use. The stored cursor is in
    one form, however it was written.
    """

    def odd_places(self, messages: MessageBlock) -> set[int]:
        """See `MessageValidator.odd_places`: every place."""
        return set(range(messages.count))

    def inspect(self, messages: MessageBlock, place: int) -> InspectedMessage:
        """See `MessageValidator.inspect`; what is no cursor is refused."""
        message = super().inspect(messages, place)
        if message.refusal is not None:
            return message
        try:
            key = _key_of(messages.subjects[place], message)
            value = None if message.asked.tombstone else self._value(messages.payloads[place], message)
        except JetstreamError as error:
            return replace(message, refusal=error)
        return replace(message, asked=message.asked._replace(key=key), content=value)

    def _value(self, payload: bytes, message: InspectedMessage) -> bytes:
        envelope = message.envelope
        published = payload if envelope is None else bytes(envelope.content(self.record_bytes_max))
        return encode_place(read_place(published))


def _key_of(subject: bytes, message: InspectedMessage) -> bytes:
    """Return the key of the cursor that is published on ``subject``.

    Raises:
        InvalidCursor: there is none, or the publisher means another one.
    """
    if message.envelope is not None and message.envelope.kind is Kind.BATCH:
        raise InvalidCursor("a cursor is one message, no batch")
    _, *names = subject.decode().rsplit(".", 2)
    if len(names) != 2:
        raise InvalidCursor("the subject of a cursor ends with the names of a consumer and a stream")
    key, said = plain_key(*names), message.asked.key
    if said is not None and said.startswith(_GROUP_KEYS):
        raise InvalidCursor(f"{KEY}: only its coordinator writes the cursors of a group")
    if said not in (None, key):
        raise InvalidCursor(f"{KEY}: the key of this cursor is {key.decode()!r}; leave it out")
    return key


class AuditValidator(MessageValidator):
    """Reads messages on ``….audit.<operation>``: those of nodes, and of nobody in another account.

    nats-server marks what comes out of another account by an import. NATS's permissions say who may publish
    here in the nodes' own account.
    """

    def inspect(self, messages: MessageBlock, place: int) -> InspectedMessage:
        """See `MessageValidator.inspect`; what comes from another account is refused."""
        message = super().inspect(messages, place)
        if message.refusal is None and _IMPORTED in (messages.headers[place] or b""):
            return replace(message, refusal=Unauthorized("only nodes put changes on record"))
        return message


_VALIDATORS: Final = {CURSORS: CursorValidator, AUDIT: AuditValidator}


def validator_of(stream: StreamName, config: StreamConfig, binds: Binds) -> MessageValidator:
    """Return how ``stream`` reads its messages."""
    return _VALIDATORS.get(stream, MessageValidator)(stream, config, binds)
