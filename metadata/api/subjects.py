"""The subjects of requests: an operation, and the name of what it is about.

``stream.info.shop.orders`` asks for the stream ``shop/orders``. So NATS's own permissions decide about one
stream, or about a team's: ``jetstream.api.stream.*.shop.>``.
"""

from collections.abc import Mapping
from functools import cache
from typing import Final

from envelope.errors import InvalidName, RequestError, Unsupported
from envelope.subjects import validated_stream_name
from metadata.api.requests import REQUESTS

_NAMING_FIELDS: Final = ("name", "group", "consumer", "prefix")
"""Fields of requests whose value stands in the subject, too; a request has one of them at most."""
_OPERATION_TOKENS: Final = 2


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
    try:
        name = validated_stream_name(value.removesuffix("/") if field == "prefix" else value)
    except InvalidName:
        return operation
    if field == "prefix" and not value.endswith("/"):
        return operation  # the beginning of a name is no namespace
    return f"{operation}.{name.replace('/', '.')}"


def split_subject(suffix: str) -> tuple[str, str | None]:
    """Return the operation, and the name behind it if there is one.

    Args:
        suffix: the subject behind the prefix, e.g. ``stream.info`` or ``stream.info.shop.orders``.

    Raises:
        Unsupported: no such request.
    """
    tokens = suffix.split(".")
    operation = ".".join(tokens[:_OPERATION_TOKENS])
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
    if name is None:
        if is_required and REQUESTS[operation].model_fields[field].is_required():
            text = (
                f"{field}: must be in the subject, as in {operation}.NAME (api.names_in_subjects = required)"
            )
            raise RequestError(text, field=field)
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
