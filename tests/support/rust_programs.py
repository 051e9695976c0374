"""Programs in Rust, built once for each source into the user's cache directory."""

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from tests.support.commands import REPOSITORY

CRATE: Final = REPOSITORY / "tests" / "integration" / "rust"
"""The manifest and the lock file of all of them."""
_OUT_OF_REACH: Final = re.compile(r"failed to (?:download|fetch|get)|Could not resolve|network failure")


class NotBuildable(Exception):
    """This machine lacks what building needs; the text says what."""


def built(source: str) -> Path:
    """Return the program that ``source``, a whole ``main.rs``, becomes.

    Raises:
        NotBuildable: there is no cargo, or the crates cannot be had.
        AssertionError: everything is there and it does not compile.
    """
    cargo = shutil.which("cargo") or shutil.which("cargo", path=str(Path.home() / ".cargo" / "bin"))
    if cargo is None:
        raise NotBuildable("there is no cargo command on the PATH")
    manifests = [CRATE / name for name in ("Cargo.toml", "Cargo.lock")]
    digest = hashlib.sha256(b"\0".join((source.encode(), *(each.read_bytes() for each in manifests))))
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jetstream-rust"
    project = root / digest.hexdigest()[:16]
    (project / "src").mkdir(parents=True, exist_ok=True)
    for manifest in manifests:
        shutil.copy(manifest, project)
    (project / "src" / "main.rs").write_text(source)
    done = subprocess.run(
        [cargo, "build", "--locked", "--quiet", "--target-dir", str(root / "target")],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    if done.returncode and _OUT_OF_REACH.search(done.stderr):
        raise NotBuildable(f"the crates cannot be had: {done.stderr.strip().splitlines()[0]}")
    assert done.returncode == 0, f"cargo build failed:\n{done.stderr}"
    return root / "target" / "debug" / "jetstream-example"
