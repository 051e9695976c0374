"""A service that tells a real nats-server whom to let in, and with which rights: NATS's auth callout.

Source: NATS ADR-26 "NATS Authorization Callouts"; encryption is that of nkeys' curve keys, ``xkv1``.
"""

import base64
import binascii
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import nats
from nacl.public import Box, PrivateKey, PublicKey
from nats.aio.msg import Msg

from tests.support.nats_identities import Nkey, NkeyKind, claims_of, encoded_key, signed_jwt
from tests.support.nats_operator import Rights

_SUBJECT: Final = "$SYS.REQ.USER.AUTH"
_SERVER_KEY: Final = "Nats-Server-Xkey"
_VERSION: Final = b"xkv1"


@dataclass(frozen=True, slots=True)
class KnownUser:
    """A user of the service."""

    password: str
    account: str
    rights: Rights


class CurveKey:
    """A key pair by which server and service encrypt what they say to each other."""

    def __init__(self) -> None:
        """Draw a new key."""
        self._private = PrivateKey.generate()
        self.public_key = encoded_key(NkeyKind.CURVE, bytes(self._private.public_key))

    def open(self, data: bytes, sender: str) -> bytes:
        assert data.startswith(_VERSION)
        return self._box(sender).decrypt(data.removeprefix(_VERSION))

    def seal(self, data: bytes, receiver: str) -> bytes:
        return _VERSION + self._box(receiver).encrypt(data)

    def _box(self, peer: str) -> Box:
        raw = base64.b32decode(peer + "=" * (-len(peer) % 8))
        assert binascii.crc_hqx(raw[:-2], 0) == int.from_bytes(raw[-2:], "little")
        return Box(self._private, PublicKey(raw[1:-2]))


@dataclass(slots=True)
class AuthCallout:
    """The service, its keys and its users.

    Attributes:
        users: by name.
        curve: for encryption; None: nothing is encrypted.
        asked: the names of users that the server has asked for.
    """

    users: Mapping[str, KnownUser]
    curve: CurveKey | None = None
    issuer: Nkey = field(default_factory=lambda: Nkey(NkeyKind.ACCOUNT))
    asked: list[str] = field(default_factory=list)

    @asynccontextmanager
    async def serving(self, url: str, **identity: str) -> AsyncIterator[None]:
        """Answer the server; ``identity`` are nats-py's arguments for a user that comes in without us."""
        async with await nats.connect(url, **identity) as client:
            await client.subscribe(_SUBJECT, cb=self._answer)
            await client.flush()
            yield

    async def _answer(self, message: Msg) -> None:
        server_key = (message.headers or {}).get(_SERVER_KEY)
        if self.curve is None:
            token = message.data
        else:
            assert server_key is not None
            token = self.curve.open(message.data, server_key)
        answer = self._judged(claims_of(token.decode())["nats"]).encode()
        if self.curve is not None and server_key is not None:
            answer = self.curve.seal(answer, server_key)
        await message.respond(answer)

    def _judged(self, asked: Mapping[str, Any]) -> str:
        """Return the signed answer: the user's JWT, or an error."""
        key, options = asked["user_nkey"], asked["connect_opts"]
        name = options.get("user", "")
        self.asked.append(name)
        user = self.users.get(name)
        if user is None or options.get("pass") != user.password:
            verdict = {"error": "nobody of that name and password"}
        else:
            claims = user.rights.claims()
            verdict = {"jwt": signed_jwt(self.issuer, key, "user", claims, name=name, aud=user.account)}
        return signed_jwt(self.issuer, key, "authorization_response", verdict, aud=asked["server_id"]["id"])
