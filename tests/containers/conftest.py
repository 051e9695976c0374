"""A Docker engine and the images; without an engine every test that needs one is skipped and says why."""

import faulthandler
import os
import socket
from collections.abc import Iterator
from typing import Final

import docker
import pytest
from testcontainers.core.config import testcontainers_config

from tests.containers.composition import Composition, free_ports
from tests.containers.images import Images, NotMakeable, make_images

_DOCKERD_SOCKET: Final = "/var/run/docker.sock"
_DOCKERD_SECONDS_MAX: Final = 900
"""For one request: a build is one."""


@pytest.fixture(scope="session")
def dockerd() -> Iterator[docker.DockerClient]:
    """The engine that answers; where one is named in DOCKER_HOST, its silence is a failure."""
    if "DOCKER_HOST" not in os.environ:
        _skip_without_dockerd()
    # It watches over what a killed test run leaves behind, and is an image that only a registry has.
    testcontainers_config.ryuk_disabled = True
    client = docker.from_env(timeout=_DOCKERD_SECONDS_MAX)
    yield client
    client.close()


def _skip_without_dockerd() -> None:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(_DOCKERD_SOCKET)
        except OSError as reason:
            pytest.skip(
                f"NOTHING WAS RUN IN CONTAINERS: no Docker engine at {_DOCKERD_SOCKET} ({reason.strerror}); "
                "docs/testing.md says how to have one"
            )


@pytest.fixture(scope="session")
def images(dockerd: docker.DockerClient) -> Images:
    """What the containers run."""
    faulthandler.cancel_dump_traceback_later()  # the first time on a machine this takes minutes, and may
    try:
        return make_images(dockerd)
    except NotMakeable as reason:
        if "DOCKER_HOST" in os.environ:
            raise
        pytest.skip(f"NOTHING WAS RUN IN CONTAINERS: the images cannot be made: {reason}")


@pytest.fixture
def composition(dockerd: docker.DockerClient, images: Images) -> Iterator[Composition]:
    """compose.yaml on free ports, with its NATS server running."""
    with free_ports() as ports, Composition(dockerd, images, ports) as composed:
        composed.start_nats()
        yield composed
