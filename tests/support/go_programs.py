"""The ``nats`` command and a program that uses the official Go client, built once from the Go module proxy.

The sources are pinned by ``tests/interop/go`` (go.mod, go.sum). What is built is kept in the user's cache
directory under a name that changes with them, so only the first run on a machine takes a minute.
"""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.commands import REPOSITORY

SOURCES: Final = REPOSITORY / "tests" / "interop" / "go"
BUILD_SECONDS_MAX: Final = 900
_PACKAGES: Final = (".", "github.com/nats-io/natscli/nats")
_OUT_OF_REACH: Final = re.compile(
    r"dial tcp|no such host|timeout|connection (?:refused|reset)|server response:|: [45]\d\d |"
    r"module lookup disabled|TLS handshake|certificate"
)
_TOO_OLD: Final = re.compile(r"go\.mod requires go >= \S+ \(running go [\d.]+")


class NotBuildable(Exception):
    """This machine lacks what building needs; the text says what."""


@dataclass(frozen=True, slots=True)
class GoPrograms:
    """Where the programs are."""

    directory: Path

    @property
    def nats(self) -> Path:
        """The ``nats`` command."""
        return self.directory / "nats"

    @property
    def publish(self) -> Path:
        """``tests/interop/go/main.go``."""
        return self.directory / "publish"


def go_programs(cache: Path | None = None) -> GoPrograms:
    """Return the programs, built if they are not in ``cache`` (the user's cache directory if None).

    Raises:
        NotBuildable: there is no Go, it is too old, or the modules cannot be had.
        AssertionError: everything is there and they do not build.
    """
    go = shutil.which("go")
    if go is None:
        raise NotBuildable("there is no go command on the PATH")
    version = subprocess.run([go, "version"], capture_output=True, check=True, timeout=60).stdout
    digest = hashlib.sha256(version)
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    built = (cache or _user_cache()) / f"jetstream-interop-{digest.hexdigest()[:16]}"
    if not built.exists():
        _build(go, built)
    return GoPrograms(built)


def _user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _build(go: str, target: Path) -> None:
    """Build all programs into ``target``, which appears whole or not at all."""
    environment = {**os.environ, "CGO_ENABLED": "0"}
    # Brings every module that is needed, and compiles nothing: so a failure is one of reaching them.
    found = _go(go, environment, "list", "-deps", *_PACKAGES)
    if found.returncode:
        said = found.stderr.strip()
        if _TOO_OLD.search(said) or _OUT_OF_REACH.search(said):
            raise NotBuildable(f"the Go modules cannot be had: {said.splitlines()[-1]}")
        raise AssertionError(f"go list failed:\n{said}")
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=target.parent, prefix="jetstream-interop-"))
    try:
        done = _go(go, environment, "build", "-trimpath", "-ldflags=-s -w", "-o", f"{scratch}/", *_PACKAGES)
        assert done.returncode == 0, f"go build failed:\n{done.stderr}"
        scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _go(go: str, environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [go, *arguments],
        cwd=SOURCES,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=BUILD_SECONDS_MAX,
    )
