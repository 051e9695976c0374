"""The console's files: the same bytes on every node and for everybody, with nothing of this node in them.

Source: W3C Content Security Policy Level 3; RFC 9110 §13.1.2 (If-None-Match).
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from importlib.resources import files
from types import MappingProxyType
from typing import Final

from jetstream.node.http.connection import HttpConnection
from jetstream.node.http.page import Page
from jetstream.node.http.request import HttpRequest

_MEDIA_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'; "
    # A browser that knows these refuses whatever would make HTML of a text.
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_INDEX: Final = "index.html"


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file that changes with the version of the node alone."""

    page: Page
    tag: str
    """The entity tag, in quotation marks: a digest of the bytes."""

    async def send(self, connection: HttpConnection, request: HttpRequest) -> None:
        """Send the file, or, to a browser that has these bytes, only that they are still right."""
        if self.tag in (request.header("if-none-match") or ""):
            connection.begin(HTTPStatus.NOT_MODIFIED, self.page.headers)
            connection.end()
        else:
            await connection.send(self.page, is_head=request.is_head)


@cache
def console_files() -> Mapping[str, StaticFile]:
    """Return the console's files by path, its page at ``/``; the first call blocks for some milliseconds."""
    found = {
        ("/" if source.name == _INDEX else f"/console/{source.name}"): _static_file(
            source.name, source.read_bytes()
        )
        for source in files("jetstream.node.http.console").joinpath("static").iterdir()
    }
    return MappingProxyType(found)


def _static_file(name: str, content: bytes) -> StaticFile:
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = (
        ("etag", tag),
        ("cache-control", "no-cache"),
        ("content-security-policy", _POLICY),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
        ("referrer-policy", "no-referrer"),
        ("x-content-type-options", "nosniff"),
    )
    return StaticFile(Page(HTTPStatus.OK, _MEDIA_TYPES[name[name.rindex(".") :]], content, headers), tag)
