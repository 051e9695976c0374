"""Ways to prove who one is to a nats-server: TLS certificates, nkeys, JWTs, credentials files.

Source: NATS documentation, "NKeys" and "JWT Guide" (claims version 2); RFC 8032 for Ed25519.
"""

import base64
import binascii
import datetime as dt
import hashlib
import ipaddress
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_SEED_PREFIX: Final = 18 << 3
_DAY: Final = dt.timedelta(days=1)
UNLIMITED: Final = {"subs": -1, "data": -1, "payload": -1}
"""Of a user."""
ACCOUNT_UNLIMITED: Final = UNLIMITED | {
    "imports": -1,
    "exports": -1,
    "wildcards": True,
    "conn": -1,
    "leaf": -1,
}


class NkeyKind(Enum):
    """The prefix byte of a public nkey; its letter is the first of the encoded key."""

    OPERATOR = 14 << 3
    ACCOUNT = 0
    USER = 20 << 3
    CURVE = 23 << 3


class Nkey:
    """An Ed25519 key pair in NATS's own encoding."""

    def __init__(self, kind: NkeyKind) -> None:
        """Draw a new key."""
        self._private = Ed25519PrivateKey.generate()
        raw_seed = self._private.private_bytes_raw()
        prefix = bytes([_SEED_PREFIX | kind.value >> 5, (kind.value & 31) << 3])
        self.seed = _encode(prefix + raw_seed)
        self.public_key = encoded_key(kind, self._private.public_key().public_bytes_raw())

    def sign(self, data: bytes) -> bytes:
        """Return the raw signature of ``data``."""
        return self._private.sign(data)


def encoded_key(kind: NkeyKind, raw: bytes) -> str:
    """Return a public key as NATS writes it."""
    return _encode(bytes([kind.value]) + raw)


def _encode(data: bytes) -> str:
    check = binascii.crc_hqx(data, 0).to_bytes(2, "little")
    return base64.b32encode(data + check).decode().rstrip("=")


def nkey_config(user: Nkey) -> str:
    """Return server configuration that admits ``user`` only."""
    return f"authorization {{ users: [ {{ nkey: {user.public_key} }} ] }}"


def password_config(user: str, password: str) -> str:
    """Return server configuration that admits this user and password only."""
    return f"authorization {{ user: {json.dumps(user)}, password: {json.dumps(password)} }}"


def token_config(token: str) -> str:
    """Return server configuration that admits this token only."""
    return f"authorization {{ token: {json.dumps(token)} }}"


@dataclass(frozen=True, slots=True)
class Credentials:
    """A server in operator mode and the credentials file of its one user."""

    server_config: str
    user_file: Path
    account: Nkey
    user: Nkey

    def issue(self, expires_at: int | None = None) -> None:
        """Write the user's file; ``expires_at`` is in seconds of Unix time."""
        expiry = {} if expires_at is None else {"exp": expires_at}
        token = signed_jwt(self.account, self.user.public_key, "user", UNLIMITED, **expiry)
        write_credentials(self.user_file, token, self.user)


def write_credentials(file: Path, token: str, user: Nkey) -> None:
    """Write the file that a client proves with that it is the user of a JWT."""
    file.write_text(
        f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n"
    )


def make_credentials(directory: Path) -> Credentials:
    """Make an operator, an account and a user, and write the user's ``.creds`` file."""
    operator, account, user = Nkey(NkeyKind.OPERATOR), Nkey(NkeyKind.ACCOUNT), Nkey(NkeyKind.USER)
    operator_token = signed_jwt(operator, operator.public_key, "operator", {})
    account_token = signed_jwt(operator, account.public_key, "account", {"limits": ACCOUNT_UNLIMITED})
    directory.mkdir(parents=True, exist_ok=True)
    config = (
        f"operator: {operator_token}\nresolver: MEMORY\n"
        f"resolver_preload: {{ {account.public_key}: {account_token} }}\n"
    )
    credentials = Credentials(config, directory / "user.creds", account, user)
    credentials.issue()
    return credentials


def signed_jwt(
    issuer: Nkey, subject: str, kind: str, claims: Mapping[str, object], **standard: int | str
) -> str:
    """Return a NATS JWT about the public key ``subject``; ``standard`` claims are those of any JWT."""
    body: dict[str, object] = {
        "iat": 1_700_000_000,
        "iss": issuer.public_key,
        "name": kind,
        "sub": subject,
        "nats": {**claims, "type": kind, "version": 2},
        **standard,
    }
    digest = hashlib.sha256(json.dumps(body).encode()).digest()
    body["jti"] = base64.b32encode(digest).decode().rstrip("=")
    signed = f"{_part({'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{_part(body)}"
    return f"{signed}.{_base64url(issuer.sign(signed.encode()))}"


def claims_of(token: str) -> dict[str, Any]:
    """Return the claims of a JWT, whoever has signed it."""
    part = token.split(".")[1]
    claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    return claims


def _part(value: dict[str, object] | dict[str, str]) -> str:
    return _base64url(json.dumps(value, separators=(",", ":")).encode())


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of an authority and of a server and a client that it vouches for."""

    ca: Path
    server_certificate: Path
    server_key: Path
    client_certificate: Path
    client_key: Path

    def server_config(self, *, verify_clients: bool = False) -> str:
        """Return server configuration for TLS, asking for a client certificate if told so."""
        return (
            f'tls {{ cert_file: "{self.server_certificate}", key_file: "{self.server_key}", '
            f'ca_file: "{self.ca}", verify: {str(verify_clients).lower()} }}'
        )


def make_tls_files(directory: Path) -> TlsFiles:
    """Make an authority, a server certificate for localhost and 127.0.0.1, and a client certificate."""
    directory.mkdir(parents=True, exist_ok=True)
    authority = ec.generate_private_key(ec.SECP256R1())
    ca = directory / "ca.pem"
    ca.write_bytes(_certificate("authority", authority, "authority", authority))
    paths = {}
    for name in ("server", "client"):
        key = ec.generate_private_key(ec.SECP256R1())
        paths[name] = (directory / f"{name}.pem", directory / f"{name}-key.pem")
        paths[name][0].write_bytes(_certificate(name, key, "authority", authority))
        paths[name][1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
    return TlsFiles(ca, *paths["server"], *paths["client"])


def _certificate(
    name: str, key: ec.EllipticCurvePrivateKey, issuer: str, issuer_key: ec.EllipticCurvePrivateKey
) -> bytes:
    now = dt.datetime.now(dt.UTC)
    is_authority = name == issuer
    builder = (
        x509.CertificateBuilder()
        .subject_name(_common_name(name))
        .issuer_name(_common_name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + _DAY)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.KeyUsage(
                digital_signature=True,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                key_cert_sign=is_authority,
                crl_sign=is_authority,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
    )
    if not is_authority:
        addresses = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.SubjectAlternativeName(addresses), critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    return builder.sign(issuer_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
