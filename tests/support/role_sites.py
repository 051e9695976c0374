"""The roles of docs/permissions.md on a real nats-server, in each of the ways that the page gives."""

import tomllib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import jetstream
from jetstream import JetstreamClient
from jetstream.node.node import Node
from tests.support.auth_callout import AuthCallout, CurveKey, KnownUser
from tests.support.nats_operator import OperatorSite
from tests.support.nats_server import NatsServer
from tests.support.nodes import WAIT_SECONDS, node_config
from tests.support.nsc_commands import accounts_of
from tests.support.page_examples import blocks

PAGE: Final = "docs/permissions.md"
ROLES: Final = ("publisher", "reader", "member", "admin", "operator")


@dataclass(frozen=True, slots=True)
class RoleSite:
    """A server with the roles, and how a party says who it is: nats-py's arguments by the party's name."""

    server: NatsServer
    identity: Callable[[str], dict[str, Any]]
    node_identity: Mapping[str, object]
    service: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
    """What must run beside the server."""

    def connect(self, role: str, **options: Any) -> AbstractAsyncContextManager[JetstreamClient]:  # noqa: ANN401  # jetstream.connect's own
        """Connect as one of the roles, with its own inboxes."""
        return jetstream.connect(
            self.server.url,
            request_timeout=WAIT_SECONDS,
            inbox_prefix=f"_INBOX_{role}",
            **self.identity(role),
            **options,
        )

    @asynccontextmanager
    async def node(self, data: Path, **changes: object) -> AsyncIterator[Node]:
        """Run a node under its own rights, whose readers must show what the page says."""
        changes = {"socket": {"port": 0, **socket_settings()}, **changes}
        nats = {"urls": [self.server.url], **self.node_identity}
        config = node_config(data, self.server.url, nats=nats, **changes)
        async with self.service(), Node(config) as node:
            yield node


def configuration() -> str:
    """Return the page's configuration of a nats-server."""
    return blocks(PAGE, "conf")[0]


def commands() -> str:
    """Return the page's nsc commands."""
    return blocks(PAGE, "sh")[0]


def socket_settings() -> dict[str, object]:
    """Return the page's settings of the nodes' socket."""
    settings: dict[str, object] = tomllib.loads(blocks(PAGE, "toml")[0])["socket"]
    return settings


def by_password(name: str) -> dict[str, Any]:
    return {"user": name, "password": f"{name}-secret"}


StartServer = Callable[[str], NatsServer]


def configured_site(_: Path, start: StartServer, recipe: str | None = None) -> RoleSite:
    """The accounts and users in the server's configuration."""
    return RoleSite(start(recipe or configuration()), by_password, by_password("node"))


def operator_site(directory: Path, start: StartServer) -> RoleSite:
    """The same in operator mode, with JWTs that we make as the nsc commands say."""
    operator = OperatorSite(accounts_of(commands()))
    operator.write_credentials(directory)
    return credentials_site(directory, start(operator.server_config()))


def credentials_site(directory: Path, server: NatsServer) -> RoleSite:
    """A site whose parties have credentials in ``directory``."""

    def identity(name: str) -> dict[str, Any]:
        return {"user_credentials": str(directory / f"{name}.creds")}

    return RoleSite(server, identity, {"credentials": directory / "node.creds"})


def callout_site(_: Path, start: StartServer, curve: CurveKey | None = None) -> RoleSite:
    """The accounts in the server's configuration, whose users a service of ours knows."""
    accounts = accounts_of(commands())
    users = {
        user: KnownUser(f"{user}-secret", name, rights)
        for name, account in accounts.items()
        for user, rights in account.users.items()
    }
    service = AuthCallout(users, curve)
    authorization, own_account = blocks(PAGE, "conf")[1:]
    authorization = authorization.replace("ISSUER", service.issuer.public_key)
    if curve is not None:
        authorization = authorization.replace("account: AUTH", f"account: AUTH\n xkey: {curve.public_key}")
    recipe = configuration().replace("accounts: {", f"accounts: {{\n{own_account}", 1)
    server = start(authorization + recipe)
    serving = partial(service.serving, server.url, **by_password("auth"))
    return RoleSite(server, by_password, by_password("node"), serving)


def encrypted_callout_site(directory: Path, start: StartServer) -> RoleSite:
    """The same, with what server and service say to each other encrypted."""
    return callout_site(directory, start, CurveKey())


SITES: Final[dict[str, Callable[[Path, StartServer], RoleSite]]] = {
    "configuration": configured_site,
    "operator mode": operator_site,
    "auth callout": callout_site,
    "encrypted auth callout": encrypted_callout_site,
}
