from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from jetstream.cli.options.nats_options import NatsAccess, NatsOptions, server_urls
from jetstream.cli.options.option_groups import Prefixed, expanded

SECRET = "correct-horse-battery"


def seen_by_a_command(
    arguments: list[str], environment: dict[str, str] | None = None
) -> tuple[int, list[NatsOptions]]:
    app = typer.Typer()
    seen: list[NatsOptions] = []

    def command(options: NatsOptions, name: Annotated[str, typer.Argument()]) -> None:
        assert name == "orders"
        seen.append(options)

    app.command()(expanded(command))
    result = CliRunner().invoke(app, ["orders", *arguments], env=environment or {})
    assert SECRET not in result.output
    return result.exit_code, seen


def test_the_server_is_the_local_one_unless_told_otherwise() -> None:
    code, [options] = seen_by_a_command([])
    assert code == 0
    assert options.urls == ["nats://127.0.0.1:4222"]
    assert options.connect_arguments() == {}


def test_a_flag_wins_over_the_environment() -> None:
    environment = {"JETSTREAM_NATS": "nats://a:1,nats://b:2"}
    assert seen_by_a_command([], environment)[1][0].urls == ["nats://a:1", "nats://b:2"]
    assert seen_by_a_command(["--nats", "nats://c:3"], environment)[1][0].urls == ["nats://c:3"]


def test_every_way_of_authenticating_reaches_nats_py(tmp_path: Path) -> None:
    seed = tmp_path / "seed"
    seed.write_text("S")
    assert NatsAccess(user="u", password="p").connect_arguments() == {"user": "u", "password": "p"}
    assert NatsAccess(token="t").connect_arguments() == {"token": "t"}
    assert NatsAccess(nkey=seed).connect_arguments() == {"nkeys_seed": str(seed)}
    assert NatsAccess(creds=seed).connect_arguments() == {"user_credentials": str(seed)}


def test_a_prefix_of_inboxes_reaches_nats_py_if_it_is_one() -> None:
    code, [options] = seen_by_a_command([], {"JETSTREAM_NATS_INBOX_PREFIX": "_INBOX_shop"})
    assert code == 0
    assert options.connect_arguments() == {"inbox_prefix": "_INBOX_shop"}
    for wrong in ("", "a b", "a.>", "a..b", "a."):
        [options] = seen_by_a_command(["--inbox-prefix", wrong])[1]
        with pytest.raises(typer.BadParameter, match="--inbox-prefix"):
            options.connect_arguments()


def test_a_node_takes_the_same_identity_under_its_own_names(tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    authority.write_text("PEM")
    identity = NatsAccess(user="u", password="p", tls_ca=authority)
    assert identity.node_settings() == {"user": "u", "password": "p", "tls": {"ca": authority}}


@pytest.mark.parametrize(
    "identity",
    [
        NatsAccess(user="u"),
        NatsAccess(password="p"),
        NatsAccess(user="u", password="p", token="t"),
        NatsAccess(nkey=Path("/no/such/file")),
        NatsAccess(tls_cert=Path("/no/such/file")),
    ],
)
def test_an_identity_that_contradicts_itself_is_a_usage_error(identity: NatsAccess) -> None:
    with pytest.raises(typer.BadParameter):
        identity.connect_arguments()


def test_no_secret_is_in_a_repr_or_in_the_help(monkeypatch: pytest.MonkeyPatch) -> None:
    options = NatsOptions(nats=f"nats://u:{SECRET}@a:1", password=SECRET, token=SECRET)
    assert SECRET not in repr(options)
    environment = {f"JETSTREAM_NATS{name}": SECRET for name in ("", "_USER", "_PASSWORD", "_TOKEN")}
    assert seen_by_a_command(["--help"], environment)[0] == 0


def test_an_empty_list_of_servers_is_a_usage_error() -> None:
    with pytest.raises(typer.BadParameter):
        server_urls(" , ")


@dataclass(frozen=True)
class Clashing:
    name: Annotated[str, typer.Option()] = ""


def test_two_options_of_one_name_are_found_when_the_command_is_built() -> None:
    def command(options: Clashing, name: str) -> None: ...

    with pytest.raises(AssertionError, match="share a name"):
        expanded(command)


def test_a_second_set_of_options_has_names_and_variables_of_its_own() -> None:
    app = typer.Typer()
    seen: list[tuple[str, str | None]] = []

    def command(source: Annotated[NatsOptions, Prefixed("from")], target: NatsOptions) -> None:
        seen.extend((each.nats, each.token) for each in (source, target))

    app.command()(expanded(command))
    environment = {
        "JETSTREAM_FROM": "nats://a:1",
        "JETSTREAM_FROM_TOKEN": SECRET,
        "JETSTREAM_NATS": "nats://b:1",
    }
    assert CliRunner().invoke(app, ["--token", "t"], env=environment).exit_code == 0
    assert seen == [("nats://a:1", SECRET), ("nats://b:1", "t")]
    seen.clear()
    arguments = ["--from", "nats://c:1", "--from-token", "f", "--nats", "nats://d:1"]
    assert CliRunner().invoke(app, arguments, env={}).exit_code == 0
    assert seen == [("nats://c:1", "f"), ("nats://d:1", None)]
