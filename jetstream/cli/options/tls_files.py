"""The client's side of TLS, made from PEM files named on the command line."""

import ssl
from pathlib import Path

from envelope.errors import InvalidConfig


def client_context(ca: Path | None, certificate: Path | None, key: Path | None) -> ssl.SSLContext:
    """Return a context that trusts ``ca``, or the system's authorities, and shows ``certificate`` if given.

    Raises:
        InvalidConfig: a file that is not what it should be.
    """
    try:
        context = ssl.create_default_context(cafile=str(ca) if ca else None)
        if certificate is not None and key is not None:
            context.load_cert_chain(str(certificate), str(key))
    except ssl.SSLError as error:
        raise InvalidConfig(f"TLS files: {error}") from None
    return context
