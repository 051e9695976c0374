"""Certificates and tokens that settings name by file, read at the start.

Every function blocks, and raises `InvalidConfig` naming the setting if a file is not there or is not what it
should be; what is in a token file is never told.
"""

import ssl
from pathlib import Path

from pydantic import SecretStr

from envelope.errors import InvalidConfig
from jetstream.node.settings.node_config import TOKEN_CHARS_MAX, ServerTlsConfig


def server_side() -> ssl.SSLContext:
    """Return the accepting side of TLS 1.2 and 1.3, which asks for no certificate yet."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION  # TLS 1.2 would let a peer ask for handshakes without end
    return context


def server_context(config: ServerTlsConfig, setting: str) -> ssl.SSLContext:
    """Return the accepting side with the certificate of ``config``, and its authorities if it has any."""
    context = server_side()
    load_certificate(context, config.certificate, config.key, setting)
    if config.client_ca is not None:
        load_authorities(context, config.client_ca, f"{setting}.client_ca")
    return context


def client_side() -> ssl.SSLContext:
    """Return the dialling side of TLS 1.2 and 1.3, which trusts nobody yet and verifies the host's name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def load_certificate(context: ssl.SSLContext, certificate: Path, key: Path, setting: str) -> None:
    """Load the node's certificate and key into ``context``."""
    try:
        # The password is given because OpenSSL would ask the terminal for that of an encrypted key.
        context.load_cert_chain(certificate, key, password="")
    except OSError as error:  # an SSLError is one
        raise InvalidConfig(f"{setting}: {certificate} and {key}: {error}") from None


def load_authorities(context: ssl.SSLContext, authorities: Path, setting: str) -> None:
    """Require a certificate that one of these authorities has signed."""
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_verify_locations(authorities)
    except OSError as error:
        raise InvalidConfig(f"{setting}: {authorities}: {error}") from None


def token_in(file: Path, setting: str) -> SecretStr:
    """Return the token in ``file``, of 1 to 1024 characters; white space around it does not count."""
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"{setting}: {file}: {type(error).__name__}") from None
    if not 0 < len(token) <= TOKEN_CHARS_MAX:
        raise InvalidConfig(
            f"{setting}: {file} holds {len(token)} characters, a token has 1 to {TOKEN_CHARS_MAX}"
        )
    return SecretStr(token)
