"""A NATS site in operator mode: JWTs of accounts, their exports, imports and users.

Source: NATS documentation, "JWT Guide"; the claims are those that nsc 2.11 writes
(`tests/interop/test_nsc.py` compares them).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.nats_identities import (
    ACCOUNT_UNLIMITED,
    UNLIMITED,
    Nkey,
    NkeyKind,
    signed_jwt,
    write_credentials,
)


@dataclass(frozen=True, slots=True)
class Rights:
    """Where a user may publish, and what it may subscribe to."""

    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    no_publish: tuple[str, ...] = ()

    def claims(self) -> dict[str, object]:
        """Return the claims of the user's JWT."""
        publish = {"allow": sorted(self.publish), "deny": sorted(self.no_publish)}
        return {
            "pub": {verb: subjects for verb, subjects in publish.items() if subjects},
            "sub": {"allow": sorted(self.subscribe)} if self.subscribe else {},
            **UNLIMITED,
        }


@dataclass(frozen=True, slots=True)
class ServiceExport:
    """A service that other accounts may import."""

    name: str
    subject: str
    response_type: str = "Singleton"
    is_private: bool = False
    """Whether an importing account needs an activation."""

    def claims(self) -> dict[str, object]:
        """Return what the account's JWT says of it."""
        private = {"token_req": True} if self.is_private else {}
        return {
            "name": self.name,
            "subject": self.subject,
            "type": "service",
            **private,
            "response_type": self.response_type,
        }


@dataclass(frozen=True, slots=True)
class ServiceImport:
    """The use of a service, or of a part of it, under its own subject."""

    name: str
    source: str
    """The account that exports it."""
    subject: str
    has_activation: bool = False
    is_shared: bool = False
    """Whether the exporting account is told which client a request comes from."""


@dataclass(slots=True)
class Account:
    """What an account offers, uses, and whom it lets in."""

    exports: list[ServiceExport] = field(default_factory=list)
    imports: list[ServiceImport] = field(default_factory=list)
    users: dict[str, Rights] = field(default_factory=dict)


class OperatorSite:
    """An operator who has signed some accounts, and a system account beside them."""

    def __init__(self, accounts: Mapping[str, Account]) -> None:
        """Draw keys for everybody and sign everything."""
        self._accounts = accounts
        self._operator = Nkey(NkeyKind.OPERATOR)
        self._system = Nkey(NkeyKind.ACCOUNT)
        self._keys = {name: Nkey(NkeyKind.ACCOUNT) for name in accounts}

    def server_config(self) -> str:
        """Return configuration of a server that knows the accounts by heart."""
        system = self._signed("SYS", self._system, {"limits": ACCOUNT_UNLIMITED})
        claims = {"system_account": self._system.public_key}
        operator = signed_jwt(self._operator, self._operator.public_key, "operator", claims, name="SITE")
        known = {self._system: system} | {self._keys[name]: self.account_jwt(name) for name in self._accounts}
        preload = "\n".join(f"  {key.public_key}: {token}" for key, token in known.items())
        return (
            f"operator: {operator}\nsystem_account: {self._system.public_key}\n"
            f"resolver: MEMORY\nresolver_preload: {{\n{preload}\n}}\n"
        )

    def account_jwt(self, name: str) -> str:
        """Return the JWT of an account."""
        account = self._accounts[name]
        exports = {"exports": [export.claims() for export in account.exports]} if account.exports else {}
        imports = (
            {"imports": [self._import(name, each) for each in account.imports]} if account.imports else {}
        )
        claims = {**imports, **exports, "limits": ACCOUNT_UNLIMITED}
        return self._signed(name, self._keys[name], claims)

    def user_jwt(self, account: str, user: str, key: Nkey) -> str:
        """Return the JWT of a user."""
        rights = self._accounts[account].users[user]
        return signed_jwt(self._keys[account], key.public_key, "user", rights.claims(), name=user)

    def write_credentials(self, directory: Path) -> None:
        """Write ``USER.creds`` of every user, whose names differ even between accounts."""
        for name, account in self._accounts.items():
            for user in account.users:
                key = Nkey(NkeyKind.USER)
                write_credentials(directory / f"{user}.creds", self.user_jwt(name, user, key), key)

    def _signed(self, name: str, key: Nkey, claims: Mapping[str, object]) -> str:
        return signed_jwt(self._operator, key.public_key, "account", claims, name=name)

    def _import(self, account: str, wanted: ServiceImport) -> dict[str, object]:
        source = self._keys[wanted.source]
        activation: dict[str, object] = {}
        if wanted.has_activation:
            claims = {"subject": wanted.subject, "kind": "service"}
            target = self._keys[account].public_key
            activation = {"token": signed_jwt(source, target, "activation", claims, name=wanted.subject)}
        return {
            "name": wanted.name,
            "subject": wanted.subject,
            "account": source.public_key,
            **activation,
            "local_subject": wanted.subject,
            "type": "service",
            **({"share": True} if wanted.is_shared else {}),
        }
