"""The services of compose.yaml, on free ports, as containers that a test can kill, pause and replace."""

import re
import socket
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final, Self

import docker
import yaml
from docker.models.containers import Container
from testcontainers.core.container import DockerContainer
from testcontainers.core.wait_strategies import LogMessageWaitStrategy
from testcontainers.core.waiting_utils import WaitStrategy, WaitStrategyTarget

from tests.containers.images import Images
from tests.support.commands import REPOSITORY

READY_SECONDS_MAX: Final = 60
STOP_SECONDS_MAX: Final = 60
LOG_LINES_SHOWN: Final = 40
NODES: Final = ("a", "b", "c")
_PROBE_INTERVAL: Final = timedelta(milliseconds=500)
_POLL_SECONDS: Final = 0.1
_PORT: Final = re.compile(r"\b(?:4222|93\d\d)\b")
_COMPOSE_FILE: Final = REPOSITORY / "compose.yaml"
_OURS_TO_SAY: Final = {"image", "build", "restart", "depends_on", "stop_grace_period"}
"""What the test decides itself: which image, when what starts, and how long a stop may take."""


@dataclass(frozen=True, slots=True)
class Service:
    """What compose.yaml says of one service."""

    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[str, ...] = ()
    """Where its volumes are in the container."""
    network: str = "bridge"
    read_only: bool = False
    cap_drop: tuple[str, ...] = ()

    @classmethod
    def parse(cls, keys: Mapping[str, Any]) -> Self:
        """Take all keys; one that is not known here would be one that no test has tried."""
        known = {"command", "environment", "volumes", "network_mode", "read_only", "cap_drop"}
        assert set(keys) <= known | _OURS_TO_SAY, f"not tried by any test: {set(keys) - known - _OURS_TO_SAY}"
        return cls(
            command=tuple(keys.get("command", ())),
            environment=dict(keys.get("environment", {})),
            mounts=tuple(volume.split(":")[1] for volume in keys.get("volumes", ())),
            network=keys.get("network_mode", "bridge"),
            read_only=keys.get("read_only", False),
            cap_drop=tuple(keys.get("cap_drop", ())),
        )


def read_services(ports: Mapping[int, int] | None = None) -> dict[str, Service]:
    """Read what compose.yaml starts without a profile; ``ports`` stand for those that are written there."""
    text = _COMPOSE_FILE.read_text()
    if ports is not None:
        text = _PORT.sub(lambda match: str(ports[int(match[0])]), text)
    services = yaml.safe_load(text)["services"]
    return {name: Service.parse(keys) for name, keys in services.items() if "profiles" not in keys}


@contextmanager
def free_ports() -> Iterator[dict[int, int]]:
    """Yield a free port of loopback for every one in compose.yaml.

    Each is held by a bound socket that does not listen, beside which the service may listen and nothing
    else is given it (both set SO_REUSEADDR).
    """
    written = sorted({int(port) for port in _PORT.findall(_COMPOSE_FILE.read_text())})
    with ExitStack() as stack:
        taken = {}
        for port in written:
            holder = stack.enter_context(socket.socket())
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind(("127.0.0.1", 0))
            taken[port] = int(holder.getsockname()[1])
        yield taken


class Healthy(WaitStrategy):
    """Waits for the image's own health check.

    The library's strategy gives up at the first "unhealthy", which the engine also says of a container that
    was paused, until its next probe.
    """

    def wait_until_ready(self, container: WaitStrategyTarget) -> None:
        """Return when the engine calls the container healthy.

        Raises:
            TimeoutError: it does not.
        """
        docker_container = container.get_wrapped_container()

        def healthy() -> bool:
            docker_container.reload()
            state = docker_container.attrs["State"]
            assert state["Running"], f"it has ended with {state['ExitCode']}"
            return bool(state["Health"]["Status"] == "healthy")

        if not self._poll(healthy):
            raise TimeoutError(f"not healthy: {docker_container.attrs['State']}")


class Running:
    """One service: a container at a time, and volumes that outlive it."""

    def __init__(self, service: Service, image: str, ready: WaitStrategy) -> None:
        """Prepare it; nothing runs before `create`."""
        self._service = service
        self._ready = ready.with_startup_timeout(READY_SECONDS_MAX).with_poll_interval(_POLL_SECONDS)
        self._volumes = [(f"jetstream-tests-{uuid.uuid4().hex}", mount) for mount in service.mounts]
        self._image = image
        self._container: DockerContainer | None = None

    def create(self) -> None:
        """Run a new container on the volumes; `wait_until_ready` comes next."""
        assert self._container is None, "there is one already"
        container = DockerContainer(
            self._image,
            command=list(self._service.command) or None,  # type: ignore[arg-type]  # lists are passed on too
            env=dict(self._service.environment),
            volumes=[(name, mount, "rw") for name, mount in self._volumes],
            network_mode=self._service.network,
            read_only=self._service.read_only,
            cap_drop=list(self._service.cap_drop),
            healthcheck={"interval": int(_PROBE_INTERVAL.total_seconds() * 1e9)},
        )
        self._container = container
        container.start()

    def wait_until_ready(self) -> None:
        """Return when the service is (again): by the image's own health check, or by what it prints."""
        container = self._running()
        try:
            self._ready.wait_until_ready(container)
        except (TimeoutError, RuntimeError) as error:
            error.add_note(self.log)
            raise

    @property
    def log(self) -> str:
        """Return everything the container has printed."""
        return b"".join(self._running().get_logs()).decode(errors="replace")

    @property
    def state(self) -> dict[str, Any]:
        """Return what the engine says of the container."""
        container = self._docker()
        container.reload()
        attributes: dict[str, Any] = container.attrs
        return attributes

    def run(self, *command: str) -> str:
        """Run a program in the container, which must succeed; return what it prints."""
        result = self._running().exec(list(command))
        assert result.exit_code == 0, result.output
        return result.output.decode()

    def kill(self) -> None:
        """End it with SIGKILL and return when it has ended."""
        self._docker().kill()
        self._docker().wait(timeout=STOP_SECONDS_MAX)

    def start_again(self) -> None:
        """Start the container that has ended; `wait_until_ready` comes next."""
        self._docker().start()

    def pause(self) -> None:
        """Freeze all its processes: connections stay open and nothing moves."""
        self._docker().pause()

    def go_on(self) -> None:
        """Let a paused container go on."""
        self._docker().unpause()

    def stop(self) -> int:
        """End it with SIGTERM; return its exit code."""
        self._docker().stop(timeout=STOP_SECONDS_MAX)
        return int(self._docker().wait(timeout=STOP_SECONDS_MAX)["StatusCode"])

    def replace(self, image: str | None = None) -> None:
        """Remove the container, running or not, and run another on its volumes (`wait_until_ready`)."""
        self.remove()
        self._image = image or self._image
        self.create()

    def remove(self) -> None:
        """Remove the container; the volumes stay."""
        container, self._container = self._container, None
        if container is not None:
            container.stop()
            container.get_docker_client().client.close()

    def forget(self, dockerd: docker.DockerClient) -> None:
        """Remove the container and the volumes; what it printed is shown if the test has failed."""
        if self._container is not None:
            sys.stdout.write("".join(self.log.splitlines(keepends=True)[-LOG_LINES_SHOWN:]) + "\n")
        self.remove()
        for name, _ in self._volumes:
            dockerd.volumes.get(name).remove()

    def _running(self) -> DockerContainer:
        assert self._container is not None, "there is no container"
        return self._container

    def _docker(self) -> Container:
        return self._running().get_wrapped_container()


class Composition:
    """compose.yaml with the tests' images on free ports; the end of the block removes what was started."""

    def __init__(self, dockerd: docker.DockerClient, images: Images, ports: Mapping[int, int]) -> None:
        """Prepare it; nothing runs yet."""
        self._dockerd = dockerd
        self._images = images
        self._stack = ExitStack()
        self._ports = ports
        self._nats: Running | None = None
        self.services = read_services(ports)

    @property
    def url(self) -> str:
        """Return the address of the NATS server."""
        return f"nats://127.0.0.1:{self._ports[4222]}"

    @property
    def nats(self) -> Running:
        """Return the NATS server."""
        assert self._nats is not None, "it was not started"
        return self._nats

    def start_nats(self) -> None:
        """Run the NATS server."""
        ready = LogMessageWaitStrategy("Server is ready")
        self._nats = self._started(Running(self.services["nats"], self._images.nats, ready))

    def start_alone(self) -> Running:
        """Run one node that has no peers."""
        service = self.services["a"]
        alone = {name: value for name, value in service.environment.items() if "_PEERS__" not in name}
        return self._started(self._node(replace(service, environment=alone)))

    def start_nodes(self) -> dict[str, Running]:
        """Run the three nodes, all at once: one alone would not get ready."""
        nodes = {name: self._node(self.services[name]) for name in NODES}
        return self._all_started(nodes)

    def _node(self, service: Service) -> Running:
        return Running(service, self._images.node, Healthy())

    def _started(self, running: Running) -> Running:
        return self._all_started({"": running})[""]

    def _all_started(self, parts: dict[str, Running]) -> dict[str, Running]:
        for part in parts.values():
            self._stack.callback(part.forget, self._dockerd)
            part.create()
        for part in parts.values():
            part.wait_until_ready()
        return parts

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(self, *_: object) -> None:
        """Remove containers and volumes."""
        self._stack.close()
