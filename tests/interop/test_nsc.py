"""The nsc commands of docs/permissions.md, run by the real nsc: the same JWTs as ours, and the same rights.

It is built from the Go module proxy; without Go or the proxy these tests are skipped and say why.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.go_programs import NotBuildable, nsc_command
from tests.support.nats_identities import claims_of
from tests.support.nats_operator import OperatorSite
from tests.support.nats_server import NatsServer
from tests.support.nodes import run
from tests.support.nsc_commands import accounts_of, run_commands
from tests.support.role_matrix import check_matrix
from tests.support.role_sites import ROLES, commands, credentials_site


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which the page's commands were run."""
    try:
        programs = nsc_command()
    except NotBuildable as reason:
        pytest.skip(str(reason))
    directory = tmp_path_factory.mktemp("nsc")
    run_commands(commands(), directory, programs)
    return directory


def tokens(text: str) -> Iterator[str]:
    return (found[0] for found in re.finditer(r"eyJ[\w.-]+", text))


def comparable(claims: Mapping[str, Any], names: Mapping[str, str]) -> Mapping[str, Any]:
    """Return claims without what differs each time: names instead of keys, activations by their claims."""
    about = dict(claims["nats"])
    if about["type"] == "account":
        about["imports"] = [
            {
                **each,
                "account": names[each["account"]],
                "token": {**claims_of(each["token"])["nats"], "sub": names[claims_of(each["token"])["sub"]]},
            }
            for each in sorted(about.get("imports", []), key=lambda each: str(each["subject"]))
        ]
        about["exports"] = sorted(about.get("exports", []), key=lambda each: str(each["subject"]))
    return {name: value for name, value in about.items() if value not in ({}, [], {"pub": {}, "sub": {}})}


def by_name(made: list[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    names = {each["sub"]: each["name"] for each in made}
    return {each["name"]: comparable(each, names) for each in made if each["name"] != "SYS"}


def claims_in(server_config: str) -> list[Mapping[str, Any]]:
    found = [claims_of(token) for token in tokens(server_config)]
    return [claims for claims in found if claims["nats"]["type"] == "account"]


def test_the_accounts_are_those_that_we_make_of_the_same_commands(made: Path) -> None:
    ours = OperatorSite(accounts_of(commands())).server_config()
    assert by_name(claims_in((made / "site.conf").read_text())) == by_name(claims_in(ours))


def test_the_users_are_those_that_we_make_of_the_same_commands(made: Path, tmp_path: Path) -> None:
    OperatorSite(accounts_of(commands())).write_credentials(tmp_path)
    for user in ("node", *ROLES):
        theirs, ours = (
            comparable(claims_of(next(tokens((directory / f"{user}.creds").read_text()))), {})
            for directory in (made, tmp_path)
        )
        assert theirs == ours


def test_every_request_is_answered_or_refused_as_the_page_says(made: Path, tmp_path: Path) -> None:
    with NatsServer(tmp_path / "nats", (made / "site.conf").read_text()) as server:
        there = credentials_site(made, server)
        run(check_matrix(there, there.node(tmp_path / "data")))
