"""URLs as they may be shown: without what they say of the user."""


def shown_url(url: str) -> str:
    """Return ``url`` without ``user:password@`` or ``token@``."""
    scheme, separator, rest = url.rpartition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"
