"""NATS URLs: as they may be shown, and what they say of the user."""

from collections.abc import Iterable
from urllib.parse import unquote, urlsplit


def shown_url(url: str) -> str:
    """Return ``url`` without ``user:password@`` or ``token@``."""
    scheme, separator, rest = url.rpartition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


def user_in(urls: Iterable[str]) -> dict[str, str]:
    """Return ``user`` and ``password``, or ``token``, that all ``urls`` alike name; nothing if they do not.

    Decoded (RFC 3986, 2.1): a password with ``@`` is written ``%40``. The server's own neighbours, which a
    client hears of later, want the same user.
    """
    try:
        named = {(parts.username, parts.password) for parts in map(urlsplit, urls)}
    except ValueError:  # one is no URL: who connects says so
        return {}
    user, password = named.pop() if len(named) == 1 else (None, None)
    if user is None:
        return {}
    if password is None:
        return {"token": unquote(user)}
    return {"user": unquote(user), "password": unquote(password)}
