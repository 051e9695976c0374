"""The subjects of requests: an operation, and the name of what it is about.

``stream.info.shop.orders`` asks for the stream ``shop/orders``. So NATS's own permissions decide about one
stream, or about a team's: ``jetstream.api.stream.*.shop.>``.

``read.shop.orders.subject.orders.eu`` asks for a ticket to what the stream has on the subject ``orders.eu``;
``read.shop.*`` for one to all streams directly in the namespace ``shop/``.

A pattern stands there as it is, token by token, so a ``*`` of a permission allows a ``*``. A ``>`` at its end
is repeated until the pattern has `WIDEST_TOKENS` tokens: as one token, a ``*`` of a permission would allow
it, and with it all that is below. So repeated, a ``*.>`` of a permission allows it, which leaves out the
first of its levels: who asks shows a ticket for that one, too, in the field ``first_level``. One subject
cannot do: a ``*`` matches it if it has one token for the ``>``, and a ``*.>`` if it has more.
"""

import re
from collections.abc import Mapping
from functools import cache
from typing import Final

from envelope.errors import InvalidName, InvalidSubject, RequestError, Unsupported
from envelope.subjects import validated_names, validated_pattern, validated_stream_name
from metadata.api.requests import REQUESTS

_NAMING_FIELDS: Final = ("name", "group", "consumer", "prefix", "stream")
"""Fields of requests whose value stands in the subject, too; a request has one of them at most."""
_OPERATION_TOKENS: Final = 2
READ: Final = "read"
"""The operation of one token."""
TICKETS: Final = frozenset((READ, "group.join"))
"""Requests for tickets: NATS decides by their subjects, so a name is always there."""
_SUBJECT_WORD: Final = "subject"
"""Ends the name of the stream that is to be read; as the first part of a name it is one."""
WIDEST_TOKENS: Final = 64
"""More than the pattern of any ticket has that does not end in ``>``."""
_REPEATED: Final = re.compile(r"(?:\.>){2,}$")


@cache
def naming_field(operation: str) -> str | None:
    """Return the field whose value stands in the subject behind ``operation``; None: none does."""
    fields = REQUESTS[operation].model_fields if operation in REQUESTS else {}
    return next((field for field in _NAMING_FIELDS if field in fields), None)


def named_patterns() -> list[str]:
    """Return the patterns of all subjects that have a name, behind the prefix."""
    kinds = {operation.partition(".")[0] for operation in REQUESTS if naming_field(operation)}
    return [f"{kind}.*.>" for kind in sorted(kinds)]


def request_subject(operation: str, fields: Mapping[str, object]) -> str:
    """Return the subject of a request behind the prefix, with the name in it where there is one.

    A name that is none stays out, for the node to refuse.
    """
    field = naming_field(operation)
    value = None if field is None else fields.get(field)
    if not isinstance(value, str):
        return operation
    if operation == READ:
        return _reading_subject(value, fields.get("subject"))
    try:
        name = validated_stream_name(value.removesuffix("/") if field == "prefix" else value)
    except InvalidName:
        return operation
    if field == "prefix" and not value.endswith("/"):
        return operation  # the beginning of a name is no namespace
    return f"{operation}.{name.replace('/', '.')}"


def split_subject(suffix: str) -> tuple[str, str | None]:
    """Return the operation, and the name behind it if there is one; behind `READ` the rest as it is.

    Args:
        suffix: the subject behind the prefix, e.g. ``stream.info`` or ``stream.info.shop.orders``.

    Raises:
        Unsupported: no such request.
    """
    tokens = suffix.split(".")
    operation = ".".join(tokens[:_OPERATION_TOKENS])
    if tokens[0] == READ:
        return READ, ".".join(tokens[1:]) or None
    name = "/".join(tokens[_OPERATION_TOKENS:]) or None
    if operation not in REQUESTS or (name is not None and naming_field(operation) is None):
        raise Unsupported(f"no request {suffix[:64]!r}; there are: {', '.join(REQUESTS)}")
    return operation, name


def with_name(
    operation: str, name: str | None, body: Mapping[str, object], *, is_required: bool
) -> dict[str, object]:
    """Return the fields of a request, with the name that its subject has.

    Args:
        operation: one of `REQUESTS`.
        name: in the subject.
        body: the fields in the payload.
        is_required: a name in the payload alone is refused. The request for a list needs none: who may ask
            for the whole list may ask for a part.

    Raises:
        RequestError: the payload names something else, or it alone has a name that must be in the subject.
    """
    field = naming_field(operation)
    if field is None:
        return dict(body)
    if operation == READ:
        return _with_reading(name, body)
    if name is None:
        is_of_one = REQUESTS[operation].model_fields[field].is_required() or (
            body.get(field) is not None and not operation.endswith(".list")
        )
        if (is_required or operation in TICKETS) and is_of_one:
            raise RequestError(f"{field}: must be in the subject, as in {operation}.NAME", field=field)
        return dict(body)
    said = body.get(field)
    if field == "prefix":
        name += "/"
        agrees = said is None or (isinstance(said, str) and said.startswith(name))
    else:
        agrees = said is None or said == name
    if not agrees:
        raise RequestError(f"{field}: {said!r} in the payload, {name!r} in the subject"[:256], field=field)
    return {**body, field: name if said is None else said}


def as_permission(subject: str) -> str:
    """Return the permission that allows a subject: a ``>`` that is repeated in it stands there once."""
    return _REPEATED.sub(".>", subject)


def _reading_subject(stream: str, pattern: object) -> str:
    """Return the subject of a request to read; what is no name or pattern stays out: the node refuses it."""
    try:
        tokens = [READ, *validated_names(stream).split("/")]
        if isinstance(pattern, str):
            tokens += [_SUBJECT_WORD, *_widened(validated_pattern(pattern).split("."))]
    except (InvalidName, InvalidSubject):
        return READ
    return ".".join(tokens)


def _with_reading(rest: str | None, body: Mapping[str, object]) -> dict[str, object]:
    """Return the fields of a request to read, of its subject; what the payload has must agree.

    Raises:
        RequestError: the payload says something else, or the subject nothing.
        InvalidSubject: a ``>`` at the end of the pattern is not repeated.
    """
    if rest is None:
        text = "stream: must be in the subject, as in read.NAME or read.NAME.subject.PATTERN"
        raise RequestError(text, field="stream")
    tokens = rest.split(".")
    end = tokens.index(_SUBJECT_WORD, 1) if _SUBJECT_WORD in tokens[1:] else len(tokens)
    pattern = _narrowed(tokens[end + 1 :]) if end < len(tokens) else None
    fields: dict[str, object] = {"stream": "/".join(tokens[:end]), "subject": pattern}
    for field, value in fields.items():
        if body.get(field, value) != value:
            text = f"{field}: {body[field]!r} in the payload, {value!r} in the subject"
            raise RequestError(text[:256], field=field)
    return {**body, **fields}


def _widened(pattern: list[str]) -> list[str]:
    return pattern + (WIDEST_TOKENS - len(pattern)) * [">"] if pattern[-1] == ">" else pattern


def _narrowed(tokens: list[str]) -> str:
    """Return the pattern that was widened.

    Raises:
        InvalidSubject: it was not, or it has too many tokens.
    """
    narrow = tokens[: tokens.index(">") + 1] if ">" in tokens else tokens
    if not tokens or len(narrow) >= WIDEST_TOKENS or _widened(narrow) != tokens:
        text = f"subject: 1 to {WIDEST_TOKENS - 1} tokens, or a '>' repeated until there are so many"
        raise InvalidSubject(text, field="subject")
    return ".".join(narrow)
