"""A request as it came: its method, path, query and headers."""

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote_to_bytes

import h11

from envelope.errors import RequestError

_ORIGIN: Final = re.compile(r"https?://[^/?]*(?=/)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request; header names are in small letters."""

    method: str
    target: str
    headers: tuple[tuple[bytes, bytes], ...] = ()

    @classmethod
    def of(cls, request: h11.Request) -> "HttpRequest":
        """Return what h11 has read; bytes that are not ASCII stand as Latin-1 does.

        A proxy may ask for the whole URL (RFC 9112, 3.2.2), of which the path is what counts.
        """
        target = request.target.decode("latin-1")
        origin = _ORIGIN.match(target)
        target = target if origin is None else target[origin.end() :]
        return cls(request.method.decode("ascii"), target, tuple(request.headers))

    @property
    def is_head(self) -> bool:
        """Whether only the head of the response is wanted."""
        return self.method == "HEAD"

    @property
    def query(self) -> str:
        """The part behind the question mark, as it came."""
        return self.target.partition("?")[2]

    @property
    def raw_path(self) -> str:
        """The path, still encoded."""
        return self.target.partition("?")[0]

    def header(self, name: str) -> str | None:
        """Return the value of a header that may be there once, or its values with commas between."""
        values = [value.decode("latin-1") for key, value in self.headers if key == name.encode()]
        return ", ".join(values) if values else None


def decoded(text: str) -> str:
    """Return a part of a path without its percent encoding.

    Raises:
        RequestError: it is not UTF-8.
    """
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        raise RequestError("the path is not UTF-8") from None
