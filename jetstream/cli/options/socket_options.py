"""How the commands that read are let in by a node's socket; NATS has options of its own."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from jetstream.cli.options.option_groups import variable, variable_option
from jetstream.cli.options.tls_files import client_context

PANEL: Final = "Socket of the nodes"


def _option(name: str, metavar: str | None, text: str) -> Any:  # noqa: ANN401  # typer.Option's own type
    return variable_option(name, variable("JETSTREAM", name), metavar, text, PANEL)


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketOptions:
    """The token and TLS that a node asks of its readers; the token is never printed."""

    socket_token: Annotated[
        str | None,
        _option(
            "--socket-token",
            "SECRET",
            "Token of the nodes' sockets; the variable keeps it out of the process list.",
        ),
    ] = field(default=None, repr=False)
    socket_tls: Annotated[
        bool, _option("--socket-tls", None, "Read over TLS, trusting the system's authorities.")
    ] = False
    socket_tls_ca: Annotated[
        Path | None,
        _option("--socket-tls-ca", "FILE", "Read over TLS, trusting these authorities (PEM)."),
    ] = None
    socket_tls_cert: Annotated[
        Path | None, _option("--socket-tls-cert", "FILE", "Own certificate (PEM).")
    ] = None
    socket_tls_key: Annotated[Path | None, _option("--socket-tls-key", "FILE", "Own private key (PEM).")] = (
        None
    )

    def connect_arguments(self) -> dict[str, Any]:
        """Return the arguments of `jetstream.connect`.

        Raises:
            typer.BadParameter: half of a pair, or a file that is not there.
            InvalidConfig: a TLS file that is not what it should be.
        """
        files = (self.socket_tls_ca, self.socket_tls_cert, self.socket_tls_key)
        if (self.socket_tls_cert is None) != (self.socket_tls_key is None):
            raise typer.BadParameter("--socket-tls-cert and --socket-tls-key belong together")
        for path in files:
            if path is not None and not path.is_file():
                raise typer.BadParameter(f"there is no file {path}")
        is_tls = self.socket_tls or any(path is not None for path in files)
        return {
            "socket_token": self.socket_token,
            "socket_tls": client_context(*files) if is_tls else None,
        }
