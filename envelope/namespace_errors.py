"""Errors of the limits that an operator has given a namespace."""

from envelope.errors import InvalidConfig, LimitReached, RequestError, UnavailableError


class NamespaceLimitReached(LimitReached, err_code="namespace_limit_reached", ack_code=60_075):
    """The namespace would have more streams or reserve more bytes than it may; ``detail`` has the numbers."""


class SubjectNotAllowed(RequestError, err_code="subject_not_allowed", status=403, ack_code=60_076):
    """A stream of the namespace may not bind that subject: none of the patterns allowed there covers it."""


class RetentionBytesRequired(InvalidConfig, err_code="retention_bytes_required", ack_code=10_113):
    """The bytes of the namespace are limited, so each of its streams needs ``retention.bytes``."""


class CreationsTooFast(UnavailableError, err_code="creations_too_fast", status=429, ack_code=60_077):
    """Streams are created faster than the namespace may; ``retry_after_ms`` says how long to wait."""
