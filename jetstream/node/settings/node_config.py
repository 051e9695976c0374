"""Settings of one node: TOML file < environment < flags; unknown keys are errors.

Environment variables are ``JETSTREAM_NODE_`` plus the key, nested keys joined by ``__``:
``JETSTREAM_NODE_NATS__URLS='["nats://a:4222"]'``, ``JETSTREAM_NODE_SOCKET__PORT=9292``.
Secrets are `pydantic.SecretStr`: they are never printed, logged or returned by the request API.
"""

import os
import re
from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Annotated, Final, Literal, Protocol, Self, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from envelope.errors import InvalidConfig
from envelope.limits import CONTROL_LINE_BYTES_MAX, CONTROL_LINE_BYTES_MIN, MIB
from envelope.subjects import is_literal, validated_pattern
from envelope.types import NodeId
from jetstream.fetch.catch_up_scheduler import CATCH_UP_SHARE_DEFAULT
from jetstream.fetch.selection_budget import SELECTION_BYTES_DEFAULT
from metadata.node.peers.dialling import Address
from metadata.stream_config import Retention

ENV_PREFIX: Final = "JETSTREAM_NODE_"

TOKEN_CHARS_MAX: Final = 1024
"""Of a token of the socket, of HTTP or of the peers; a hello and a header have room for many more."""

PEER_PORT: Final = 9294


_EVERYWHERE: Final = ("", "0.0.0.0", "::")  # noqa: S104 - what is listened on, and no address to dial

CATCH_UP_BYTES_DEFAULT: Final = 100 * MIB
"""A second, of most a gigabit network; what is published meanwhile needs the rest."""


TIER_CACHE_BYTES_DEFAULT: Final = 2048 * MIB
"""Eight segments of the default size."""

LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})

Port = Annotated[int, Field(ge=0, le=65_535)]
PositiveDuration = Annotated[timedelta, Field(gt=timedelta(0))]
Token = Annotated[SecretStr, Field(min_length=1, max_length=TOKEN_CHARS_MAX)]
Name = Annotated[NodeId, Field(pattern=r"^[A-Za-z0-9_\-]{1,64}$")]


def _address(value: object) -> object:
    """Read ``host``, ``host:port`` or ``[IPv6]:port``."""
    if not isinstance(value, str):
        return value
    found = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^:\[\]\s]+))(?::([0-9]{1,5}))?", value)
    if found is None:
        raise ValueError("an address is host:port, or [IPv6]:port")
    port = int(found[3] or PEER_PORT)
    if not 0 < port < 1 << 16:
        raise ValueError(f"port {port} is not between 1 and 65535")
    return Address(found[1] or found[2], port)


class LogFormat(StrEnum):
    """How events stand in the log: lines for people, or one JSON object each."""

    TEXT = "text"
    JSON = "json"


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _WithToken(Protocol):
    @property
    def token(self) -> SecretStr | None: ...

    @property
    def token_file(self) -> Path | None: ...


_Guarded = TypeVar("_Guarded", bound=_WithToken)


def _with_one_token(section: _Guarded) -> _Guarded:
    if section.token is not None and section.token_file is not None:
        raise ValueError("choose token or token_file, not both")
    return section


class TlsConfig(_Section):
    """TLS towards the NATS server."""

    ca: Path | None = None
    """PEM file of the authorities to trust; None trusts the system's."""
    certificate: Path | None = None
    key: Path | None = None
    """PEM files of our own certificate and key, both or neither."""
    hostname: str | None = None
    """Name to verify instead of the URL's host."""
    handshake_first: bool = False

    @model_validator(mode="after")
    def _pair(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("tls.certificate and tls.key belong together")
        return self


class NatsConfig(_Section):
    """How to reach NATS; every way of authenticating that nats-py has."""

    urls: Annotated[tuple[str, ...], Field(min_length=1)] = ("nats://127.0.0.1:4222",)
    name: str = "jetstream"
    user: str | None = None
    password: SecretStr | None = None
    token: SecretStr | None = None
    nkey_seed: SecretStr | None = None
    nkey_seed_file: Path | None = None
    credentials: Path | None = None
    tls: TlsConfig | None = None
    connect_timeout: PositiveDuration = timedelta(seconds=2)
    """For one server; those that hang cost so much each."""
    start_timeout: PositiveDuration | None = None
    """How long a node that starts waits for a NATS that is away; None: until it is there."""
    reconnect_wait: PositiveDuration = timedelta(milliseconds=250)
    ping_interval: PositiveDuration = timedelta(seconds=2)
    """How often NATS is asked whether it is there; after three of silence the node connects anew."""
    max_control_line: Annotated[int, Field(ge=CONTROL_LINE_BYTES_MIN)] = CONTROL_LINE_BYTES_MAX
    """That of the server, which does not tell it: what this node publishes on reply subjects must fit it."""
    acks_on_ingest: bool = False
    """Acks leave by the connection that brought the message: ``allow_responses`` lets no other answer."""

    @field_validator("urls")
    @classmethod
    def _schemes(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        if any("://" in url and not url.startswith(("nats://", "tls://")) for url in urls):
            raise ValueError("NATS URLs start with nats:// or tls://")
        return urls

    @model_validator(mode="after")
    def _one_identity(self) -> Self:
        ways = {
            "user": self.user is not None,
            "token": self.token is not None,
            "nkey_seed": self.nkey_seed is not None,
            "nkey_seed_file": self.nkey_seed_file is not None,
            "credentials": self.credentials is not None,
        }
        chosen = [name for name, given in ways.items() if given]
        if len(chosen) > 1:
            raise ValueError(f"choose one way to authenticate with NATS, not {' and '.join(chosen)}")
        if (self.user is None) != (self.password is None):
            raise ValueError("nats.user and nats.password belong together")
        return self


class ServerTlsConfig(_Section):
    """TLS towards those who connect."""

    certificate: Path
    key: Path
    """PEM files of our own certificate (with those between it and its authority) and key."""
    client_ca: Path | None = None
    """PEM file of the authorities that vouch for clients; None asks for no client certificate."""


class SocketConfig(_Section):
    """Where consumers connect, and who may."""

    host: str = "127.0.0.1"
    port: Port = 9292
    """0 takes a free one."""
    advertise: str | None = None
    """Host that clients are told; None tells ``host``."""
    token: Token | None = None
    """Opens everything to a client that says it."""
    token_file: Path | None = None
    """The same from a file; white space around it does not count."""
    require: Literal["none", "token", "ticket"] | None = None
    """What a client must show: nothing; the token; or a ticket, which NATS lets it have, or the token where
    there is one. None: the token if there is one, or nothing."""
    ticket_lifetime: PositiveDuration = timedelta(minutes=5)
    """Of a ticket; clients renew theirs at half of it."""
    ticket_grace: PositiveDuration = timedelta(minutes=5)
    """How long a ticket is good after that: clocks of nodes differ, and NATS may be away."""
    tls: ServerTlsConfig | None = None
    """None speaks no TLS."""
    catch_up_share: Annotated[float, Field(gt=0, le=1)] = CATCH_UP_SHARE_DEFAULT
    """Of the event loop's time, for readers that catch up, while something is stored; 1 lets them go on."""
    selection_bytes: Annotated[int, Field(ge=1)] = SELECTION_BYTES_DEFAULT
    """Of all answers to fetches with a subject, a key or columns, which are made in memory."""
    short_circuit_reads: bool = True
    """Readers on this machine that may read the data directory get names of files instead of bodies."""

    @model_validator(mode="after")
    def _one_token(self) -> Self:
        _with_one_token(self)
        has_token = self.token is not None or self.token_file is not None
        if self.require == "token" and not has_token:
            raise ValueError("require = token needs a token or a token_file")
        if self.require == "none" and has_token:
            raise ValueError("require = none opens to everybody what the token is to open")
        return self


class HttpConfig(_Section):
    """The port of probes and scrapers (``/healthz``, ``/livez``, ``/metrics``) and of readers (``/v1``)."""

    host: str = "127.0.0.1"
    port: Port = 9293
    """0 takes a free one."""
    token: Token | None = None
    """What every request but a probe must say (``Authorization: Bearer``); None asks for nothing."""
    token_file: Path | None = None
    """The same from a file; white space around it does not count."""
    tls: ServerTlsConfig | None = None
    """None speaks no TLS."""
    hosts: tuple[str, ...] = ()
    """Names that clients without a credential may use for this node, beside its addresses and ``localhost``;
    a web page whose own name leads here has none of them."""

    @model_validator(mode="after")
    def _one_token(self) -> Self:
        return _with_one_token(self)


class ApiConfig(_Section):
    """The request API."""

    names_in_subjects: Literal["optional", "required"] = "optional"
    """Whether a request may name its stream, group or consumer in its payload alone; where NATS's permissions
    tell one name from another, it must not."""


class AuditConfig(_Section):
    """The record of changes; the same on all nodes, as whichever leads the metadata log applies it."""

    enabled: bool = False
    """Whether changes are put on record in the internal stream ``__audit``; they are logged in any case."""
    retention: Retention = Retention(age=timedelta(days=90), bytes=1024 * MIB)
    """Of that stream."""


class PeerTlsConfig(_Section):
    """TLS between nodes, in both directions: each shows its certificate to the other."""

    certificate: Path
    key: Path
    """PEM files of our own certificate, for the host name that others dial us at, and key."""
    ca: Path
    """PEM file of the authorities that vouch for nodes, and for nothing else."""


Voters = Annotated[dict[Name, Annotated[Address, BeforeValidator(_address)]], Field(min_length=2)]
"""Where each is dialled."""


class PeersConfig(_Section):
    """How this node gets into its cluster, and how nodes know each other."""

    init: bool = False
    """Whether a node without data begins the cluster, if none of this name answers; said of one node only.
    Without it and without ``voters`` a node joins the cluster of this name that it hears over NATS."""
    voters: Voters | None = None
    """The nodes with which the cluster begins, all at once and without ``init``: each by its id and the
    address it is dialled at, the same on all nodes; three or five. Once the cluster is there its controller
    says who votes."""
    advertise: Annotated[Address, BeforeValidator(_address)] | None = None
    """Where other nodes dial this one, if ``voters`` does not say; None: at the host and port where it
    listens."""
    host: str | None = None
    """Where this node listens; None: on the host of its own address."""
    port: Port | None = None
    """None: the port of its own address."""
    token: Token | None = None
    """What nodes say to each other, the same on all; None lets everybody in who can connect."""
    token_file: Path | None = None
    """The same from a file; white space around it does not count."""
    tls: PeerTlsConfig | None = None
    """None speaks no TLS."""
    open: bool = False
    """Whether everybody may come in who can connect: beyond loopback a token or TLS is wanted otherwise."""
    catch_up_bytes: Annotated[int, Field(ge=1)] | None = CATCH_UP_BYTES_DEFAULT
    """Bytes a second that this node as a leader serves to replicas that are not in sync; None: no limit."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        _with_one_token(self)
        if self.voters is None:
            return self
        if self.init:
            raise ValueError("choose init or voters")
        if len(set(self.voters.values())) < len(self.voters):
            raise ValueError("two voters have one address")
        if self.advertise in self.voters.values():
            raise ValueError("advertise is the address of a voter")
        return self

    def address_of(self, node_id: NodeId) -> Address:
        """Return where other nodes dial this one.

        Raises:
            InvalidConfig: it is none of the voters, and does not say.
        """
        voters = self.voters or {}
        voter = voters.get(node_id)
        if voter is not None:
            if self.advertise is not None:
                raise InvalidConfig(
                    f"peers.advertise: node {node_id} is a voter, dialled as peers.voters says"
                )
            return voter
        if self.advertise is not None:
            return self.advertise
        host, port = self.host, PEER_PORT if self.port is None else self.port
        if host is None or host in _EVERYWHERE or port == 0:
            known = f" is none of peers.voters ({', '.join(sorted(voters))})" if voters else ""
            raise InvalidConfig(
                f"node {node_id}{known}: peers.advertise must say at which host:port other nodes reach it"
            )
        return Address(host, port)


class NodeConfig(BaseSettings):
    """Everything one node is told."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True
    )

    cluster: Annotated[str, Field(min_length=1, max_length=64)] = "jetstream"
    node_id: Name | None = None
    """Name of this node; None derives one from the data directory's identity."""
    rack: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    """What this node may fail together with; replicas of a stream go to different ones where they can."""
    data: Path = Path("jetstream-data")
    nats: NatsConfig = NatsConfig()
    socket: SocketConfig = SocketConfig()
    http: HttpConfig | None = None
    """None opens no HTTP port."""
    peers: PeersConfig | None = None
    """None: this node is alone."""
    tier: Annotated[SecretStr, Field(min_length=1)] | None = None
    """Where streams with ``tier: true`` are copied to: the URI of an object store, or the absolute path of a
    folder that all nodes share. It may hold a password, and is not shown. None: nowhere."""
    tier_cache_bytes: Annotated[int, Field(ge=1)] = TIER_CACHE_BYTES_DEFAULT
    """Of what readers want from there so much is kept in the data directory, in whole segments; at least the
    newest one."""
    api_prefix: str = "jetstream.api"
    api: ApiConfig = ApiConfig()
    audit: AuditConfig = AuditConfig()
    verify: Literal["tail", "full"] = "tail"
    """How much of each log is verified at start: from the last checkpoint, or every byte."""
    checkpoint_interval: PositiveDuration = timedelta(seconds=1)
    """How often logs that have been quiet for a second get their synced end put on record."""
    maintenance_interval: PositiveDuration = timedelta(seconds=5)
    """How often retention and rolling by age are looked at."""
    scrub_interval: Annotated[timedelta, Field(ge=timedelta(0))] = timedelta(days=7)
    """In that time all sealed segments are read once, evenly, to find damage while another replica is there
    to repair it from; 0: never."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: LogFormat = LogFormat.TEXT

    @model_validator(mode="after")
    def _prefix(self) -> Self:
        if not is_literal(validated_pattern(self.api_prefix)):
            raise ValueError("api_prefix must be a subject without wildcards")
        return self

    @model_validator(mode="after")
    def _reachable(self) -> Self:
        if self.peers is None:
            return self
        if self.node_id is None and self.peers.voters is not None:
            raise ValueError("a node with peers.voters needs a node_id")
        try:
            self.peers.address_of(self.node_id or NodeId("without a node_id"))
        except InvalidConfig as error:
            raise ValueError(error.description) from None
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags win over the environment, the environment over the file."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)


def load_config(path: Path | None = None, flags: Mapping[str, object] | None = None) -> NodeConfig:
    """Merge the TOML file at ``path``, the environment and ``flags`` (nested dicts allowed).

    Raises:
        InvalidConfig: the file cannot be read, a key is unknown or a value does not fit (all are named).
    """
    _refuse_unknown_environment()
    if path is not None and not path.is_file():
        raise InvalidConfig(f"no configuration file at {path}")
    try:
        return _with_file(path)(**dict(flags or {}))  # type: ignore[arg-type]  # validated by pydantic, field by field
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(str(part) for part in e['loc']) or 'config'}: {e['msg']}" for e in error.errors()
        )
        raise InvalidConfig(f"invalid configuration: {problems}") from None
    except (SettingsError, ValueError) as error:
        raise InvalidConfig(f"invalid configuration: {error}") from None


@cache
def _with_file(path: Path | None) -> type[NodeConfig]:
    """The settings whose file is at ``path``; pydantic takes ten milliseconds to make such a class."""
    if path is None:
        return NodeConfig

    class Sourced(NodeConfig):
        model_config = SettingsConfigDict(toml_file=path)

    return Sourced


def _refuse_unknown_environment() -> None:
    """A misspelt variable must not silently do nothing."""
    known = {name.upper() for name in NodeConfig.model_fields}
    for variable in os.environ:
        if not variable.upper().startswith(ENV_PREFIX):
            continue
        key = re.split("__", variable.upper().removeprefix(ENV_PREFIX), maxsplit=1)[0]
        if key not in known:
            raise InvalidConfig(f"unknown setting {variable} in the environment")
