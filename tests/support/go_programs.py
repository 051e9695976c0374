"""The ``nats``, ``nsc`` and ``helm`` commands and programs in Go, built once from the Go module proxy.

Each is a module whose go.mod and go.sum pin its sources. What is built is kept in the user's cache directory
under a name that changes with them, so only the first run on a machine takes minutes.
"""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from tests.support.commands import REPOSITORY

EXAMPLES: Final = REPOSITORY / "examples" / "go"
BUILD_SECONDS_MAX: Final = 900
_NATS_COMMAND: Final = REPOSITORY / "tests" / "interop" / "go"
_NSC_COMMAND: Final = REPOSITORY / "tests" / "interop" / "nsc"
_DEPLOYMENT: Final = REPOSITORY / "tests" / "deploy" / "go"
_OUT_OF_REACH: Final = re.compile(
    r"dial tcp|no such host|timeout|connection (?:refused|reset)|server response:|: [45]\d\d |"
    r"module lookup disabled|TLS handshake|certificate"
)
_TOO_OLD: Final = re.compile(r"go\.mod requires go >= \S+ \(running go [\d.]+")


class NotBuildable(Exception):
    """This machine lacks what building needs; the text says what."""


def nats_command() -> Path:
    """Return a directory with the ``nats`` command. Raises what `go_examples` raises."""
    return _built(_NATS_COMMAND, "github.com/nats-io/natscli/nats")


def nsc_command() -> Path:
    """Return a directory with the ``nsc`` command. Raises what `go_examples` raises."""
    return _built(_NSC_COMMAND, "github.com/nats-io/nsc/v2")


def deployment_commands() -> Path:
    """Return a directory with ``helm`` and our ``manifests``. Raises what `go_examples` raises."""
    return _built(_DEPLOYMENT, "helm.sh/helm/v3/cmd/helm", "./manifests")


def go_examples() -> Path:
    """Return a directory with the programs ``read`` and ``publish`` of ``examples/go``.

    Raises:
        NotBuildable: there is no Go, it is too old, or the modules cannot be had.
        AssertionError: everything is there and they do not build.
    """
    return _built(EXAMPLES, "./read", "./publish")


def _built(module: Path, *packages: str) -> Path:
    """Return the directory of the programs, built if they are not in the user's cache directory."""
    go = shutil.which("go")
    if go is None:
        raise NotBuildable("there is no go command on the PATH")
    version = subprocess.run([go, "version"], capture_output=True, check=True, timeout=60).stdout
    digest = hashlib.sha256(version)
    for source in sorted(path for path in module.rglob("*") if path.is_file()):
        digest.update(str(source.relative_to(module)).encode() + b"\0" + source.read_bytes())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    target = cache / f"jetstream-go-{digest.hexdigest()[:16]}"
    if not target.exists():
        _build(go, module, packages, target)
    return target


def _build(go: str, module: Path, packages: tuple[str, ...], target: Path) -> None:
    """Build the programs into ``target``, which appears whole or not at all."""
    # Brings every Go module that is needed, and compiles nothing: so a failure is one of reaching them.
    found = _go(go, module, "list", "-deps", *packages)
    if found.returncode:
        said = found.stderr.strip()
        if _TOO_OLD.search(said) or _OUT_OF_REACH.search(said):
            raise NotBuildable(f"the Go modules cannot be had: {said.splitlines()[-1]}")
        raise AssertionError(f"go list failed:\n{said}")
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=target.parent, prefix="jetstream-go-"))
    try:
        done = _go(go, module, "build", "-trimpath", "-ldflags=-s -w", "-o", f"{scratch}/", *packages)
        assert done.returncode == 0, f"go build failed:\n{done.stderr}"
        scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _go(go: str, module: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [go, *arguments],
        cwd=module,
        env={**os.environ, "CGO_ENABLED": "0"},
        capture_output=True,
        text=True,
        check=False,
        timeout=BUILD_SECONDS_MAX,
    )
