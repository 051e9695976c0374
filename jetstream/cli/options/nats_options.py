"""How the commands reach NATS: options shared by all that talk to it."""

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from envelope.errors import InvalidSubject
from envelope.subjects import validated_subject
from jetstream.cli.options.option_groups import variable, variable_option
from jetstream.cli.options.tls_files import client_context

PANEL: Final = "NATS connection"
NATS_URL_DEFAULT: Final = "nats://127.0.0.1:4222"


def _option(name: str, metavar: str, text: str) -> Any:  # noqa: ANN401  # typer.Option's own type
    return variable_option(name, variable("JETSTREAM_NATS", name), metavar, text, PANEL)


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsAccess:
    """Credentials and TLS of a connection to NATS; no secret is ever printed."""

    user: Annotated[str | None, _option("--user", "NAME", "User name.")] = None
    password: Annotated[
        str | None,
        _option("--password", "SECRET", "Password; the variable keeps it out of the process list."),
    ] = field(default=None, repr=False)
    token: Annotated[str | None, _option("--token", "SECRET", "Token; rather by the variable.")] = field(
        default=None, repr=False
    )
    nkey: Annotated[Path | None, _option("--nkey", "FILE", "File with an nkey seed.")] = None
    creds: Annotated[Path | None, _option("--creds", "FILE", "Credentials file (JWT and seed).")] = None
    tls_ca: Annotated[Path | None, _option("--tls-ca", "FILE", "Authorities to trust (PEM).")] = None
    tls_cert: Annotated[Path | None, _option("--tls-cert", "FILE", "Own certificate (PEM).")] = None
    tls_key: Annotated[Path | None, _option("--tls-key", "FILE", "Own private key (PEM).")] = None

    def checked(self) -> None:
        """Refuse a choice that contradicts itself.

        Raises:
            typer.BadParameter: two identities, half of a pair, or a file that is not there.
        """
        ways = {"--user": self.user, "--token": self.token, "--nkey": self.nkey, "--creds": self.creds}
        chosen = [name for name, value in ways.items() if value is not None]
        if len(chosen) > 1:
            raise typer.BadParameter(f"choose one way to authenticate, not {' and '.join(chosen)}")
        if (self.user is None) != (self.password is None):
            raise typer.BadParameter("--user and --password belong together")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise typer.BadParameter("--tls-cert and --tls-key belong together")
        for path in (self.nkey, self.creds, self.tls_ca, self.tls_cert, self.tls_key):
            if path is not None and not path.is_file():
                raise typer.BadParameter(f"there is no file {path}")

    def connect_arguments(self) -> dict[str, Any]:
        """Return nats-py's connect arguments, only those that are set.

        Raises:
            InvalidConfig: a TLS file is invalid.
        """
        self.checked()
        given: dict[str, object | None] = {
            "user": self.user,
            "password": self.password,
            "token": self.token,
            "nkeys_seed": str(self.nkey) if self.nkey else None,
            "user_credentials": str(self.creds) if self.creds else None,
            "tls": self._tls_context(),
        }
        return {name: value for name, value in given.items() if value is not None}

    def node_settings(self) -> dict[str, object]:
        """Return the same as keys of a node's ``nats`` settings, only those that are given."""
        self.checked()
        tls = {"ca": self.tls_ca, "certificate": self.tls_cert, "key": self.tls_key}
        given: dict[str, object | None] = {
            "user": self.user,
            "password": self.password,
            "token": self.token,
            "nkey_seed_file": self.nkey,
            "credentials": self.creds,
            "tls": {name: value for name, value in tls.items() if value is not None} or None,
        }
        return {name: value for name, value in given.items() if value is not None}

    def _tls_context(self) -> ssl.SSLContext | None:
        if self.tls_ca is None and self.tls_cert is None:
            return None
        return client_context(self.tls_ca, self.tls_cert, self.tls_key)


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsOptions(NatsAccess):
    """A client's way to its server."""

    nats: Annotated[
        str,
        variable_option(
            "--nats",
            "JETSTREAM_NATS",
            "URL",
            f"Server, or several with commas. Default: {NATS_URL_DEFAULT}.",
            PANEL,
        ),
    ] = field(default=NATS_URL_DEFAULT, repr=False)
    """May hold a password, so it is not in the repr."""
    inbox_prefix: Annotated[
        str | None,
        _option("--inbox-prefix", "SUBJECT", "Where answers come, for rights to it. Default: _INBOX."),
    ] = None

    def checked(self) -> None:
        """Refuse what `NatsAccess.checked` does, and a prefix that is no subject.

        Raises:
            typer.BadParameter: any of them.
        """
        NatsAccess.checked(self)
        try:
            if self.inbox_prefix is not None:
                validated_subject(self.inbox_prefix)
        except InvalidSubject as error:
            raise typer.BadParameter(f"--inbox-prefix: {error.description}") from None

    def connect_arguments(self) -> dict[str, Any]:
        """Return what `NatsAccess.connect_arguments` does, and the prefix if it is given."""
        prefix = {} if self.inbox_prefix is None else {"inbox_prefix": self.inbox_prefix}
        return NatsAccess.connect_arguments(self) | prefix

    @property
    def urls(self) -> list[str]:
        """Return the servers in the given order."""
        return server_urls(self.nats)


def server_urls(text: str) -> list[str]:
    """Split a comma-separated list of servers.

    Raises:
        typer.BadParameter: an empty list.
    """
    urls = [url.strip() for url in text.split(",") if url.strip()]
    if not urls:
        raise typer.BadParameter("--nats needs at least one URL")
    return urls
