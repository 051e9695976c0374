"""``nsc`` commands of a page, run by a shell as they are written: by the real nsc, or read by us.

Our reading knows the commands and options that the pages use, and refuses all others.
"""

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.support.nats_operator import Account, Rights, ServiceExport, ServiceImport

_STAND_IN: Final = """#!/bin/sh
printf '%s\\037' "$@" >> "$NSC_CALLS"
echo >> "$NSC_CALLS"
"""
_SWITCHES: Final = frozenset({"--service", "--private", "--share", "--sys", "--mem-resolver"})


def run_commands(script: str, directory: Path, programs: Path) -> None:
    """Run a block of a page in ``directory``, with the ``nsc`` that is in ``programs``."""
    environment = {
        **{
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("NSC_", "NKEYS_", "XDG_"))
        },
        "HOME": str(directory / "home"),
        "PATH": f"{programs}:{os.environ['PATH']}",
        "NSC_CALLS": str(directory / "calls"),
    }
    (directory / "home").mkdir(parents=True)
    done = subprocess.run(
        ["sh", "-eu", "-c", script],
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@cache
def accounts_of(script: str) -> Mapping[str, Account]:
    """Return the accounts that the commands of a block would make, read by us alone."""
    with TemporaryDirectory(prefix="nsc-") as name:
        directory = Path(name)
        stand_in = directory / "nsc"
        stand_in.write_text(_STAND_IN)
        stand_in.chmod(0o755)
        run_commands(script, directory, directory)
        calls = (directory / "calls").read_text().splitlines()
    accounts: dict[str, Account] = {}
    activations: dict[str, dict[str, str]] = {}
    for call in calls:
        verb, noun, *options = call.removesuffix("\037").split("\037")
        _COMMANDS[f"{verb} {noun}"](accounts, activations, dict(_options(options)))
    return accounts


def _options(arguments: list[str]) -> Iterator[tuple[str, str]]:
    rest = iter(arguments)
    for option in rest:
        assert option.startswith("--"), option
        yield option, "" if option in _SWITCHES else next(rest)


_Options = dict[str, str]
_Command = Callable[[dict[str, Account], dict[str, _Options], _Options], None]


def _taken(options: _Options, *names: str) -> list[str]:
    """Return the values of all options, each of which must be one of ``names``; "" where one is missing."""
    unknown = options.keys() - set(names)
    assert not unknown, f"our reading does not know {unknown}"
    return [options.get(name, "") for name in names]


def _add_account(accounts: dict[str, Account], _: dict[str, _Options], options: _Options) -> None:
    [name] = _taken(options, "--name")
    accounts[name] = Account()


def _add_export(accounts: dict[str, Account], _: dict[str, _Options], options: _Options) -> None:
    names = ("--account", "--name", "--subject", "--response-type", "--service", "--private")
    account, name, subject, response_type, *_rest = _taken(options, *names)
    assert "--service" in options
    export = ServiceExport(name, subject, response_type or "Singleton", "--private" in options)
    accounts[account].exports.append(export)


def _generate_activation(_: dict[str, Account], activations: dict[str, _Options], options: _Options) -> None:
    *_rest, file = _taken(options, "--account", "--target-account", "--subject", "--output-file")
    activations[file] = options


def _add_import(accounts: dict[str, Account], activations: dict[str, _Options], options: _Options) -> None:
    names = ("--account", "--name", "--token", "--local-subject", "--share")
    account, name, file, local_subject, _share = _taken(options, *names)
    activation = activations[file]
    assert (activation["--target-account"], activation["--subject"]) == (account, local_subject)
    imported = ServiceImport(
        name,
        activation["--account"],
        local_subject,
        has_activation=True,
        is_shared="--share" in options,
    )
    accounts[account].imports.append(imported)


def _add_user(accounts: dict[str, Account], _: dict[str, _Options], options: _Options) -> None:
    account, name, *rights = _taken(
        options, "--account", "--name", "--allow-pub", "--allow-sub", "--deny-pub"
    )
    subjects = [tuple(filter(None, subjects.split(","))) for subjects in rights]
    accounts[account].users[name] = Rights(*subjects)


def _nothing(accounts: dict[str, Account], activations: dict[str, _Options], options: _Options) -> None:
    """What this makes is made of the accounts."""


_COMMANDS: Final[dict[str, _Command]] = {
    "add operator": _nothing,
    "add account": _add_account,
    "add export": _add_export,
    "add import": _add_import,
    "add user": _add_user,
    "generate activation": _generate_activation,
    "generate creds": _nothing,
    "generate config": _nothing,
}
