"""Responses that are small and made at once."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from envelope.errors import JetstreamError

Headers = Sequence[tuple[str, str]]

JSON: Final = "application/json"
PROBLEM: Final = "application/problem+json"
TEXT: Final = "text/plain; charset=utf-8"

_RETRY_SECONDS: Final = 1


@dataclass(frozen=True, slots=True)
class Page:
    """The response to a request."""

    status: HTTPStatus
    content_type: str
    body: bytes
    headers: Headers = ()
    """Beside those that every response has."""


def plain(status: HTTPStatus, text: str, *headers: tuple[str, str]) -> Page:
    """Return a line of text."""
    return Page(status, TEXT, f"{text}\n".encode(), headers)


def problem(error: JetstreamError, *headers: tuple[str, str]) -> Page:
    """Return a typed error (RFC 9457): ``type`` is its ``err_code``, its details are members."""
    status = HTTPStatus(error.status)
    content = {
        **error.detail,
        "type": f"urn:jetstream:error:{error.err_code}",
        "title": status.phrase,
        "status": int(status),
        "detail": error.description,
        "err_code": error.err_code,
        "retriable": error.retriable,
    }
    retry = (("retry-after", str(_RETRY_SECONDS)),) if error.retriable else ()
    return Page(status, PROBLEM, json.dumps(content).encode() + b"\n", (*headers, *retry))
