"""One node in a container: what it acked is there after a kill, a pause, a stop and in its next one."""

import asyncio
from collections.abc import Callable

import docker
import pytest

from tests.containers.composition import Composition, Running
from tests.containers.images import Images
from tests.containers.numbers import PART, numbers
from tests.support.nodes import run


def _killed(node: Running) -> None:
    node.kill()
    node.start_again()


def _stopped(node: Running) -> None:
    assert node.stop() == 0
    node.start_again()


@pytest.mark.parametrize("disturb", [_killed, _stopped, Running.replace])
def test_what_a_node_in_a_container_acked_is_there_afterwards(
    composition: Composition, disturb: Callable[[Running], object]
) -> None:
    async def disturbed_under_publishing(node: Running) -> None:
        async with numbers(composition.url) as stream:
            await stream.witness.publish(PART)
            await asyncio.to_thread(disturb, node)
            await asyncio.to_thread(node.wait_until_ready)
            await stream.witness.retry_until_acked()
            await stream.verify()

    run(disturbed_under_publishing(composition.start_alone()))


def test_what_is_published_to_a_paused_container_is_acked_when_it_goes_on(composition: Composition) -> None:
    async def paused_under_publishing(node: Running) -> None:
        async with numbers(composition.url) as stream:
            await asyncio.to_thread(node.pause)
            await stream.witness.publish(PART)
            assert len(stream.witness.acked) == PART
            await asyncio.to_thread(node.go_on)
            await stream.witness.wait_for_acks(2 * PART)
            await asyncio.to_thread(node.wait_until_ready)
            await stream.verify()

    run(paused_under_publishing(composition.start_alone()))


def test_a_node_in_a_container_is_nobody_special_and_writes_only_to_its_volume(
    composition: Composition,
) -> None:
    node = composition.start_alone()
    assert node.run("id", "--user") == "10001\n"
    assert node.run("sh", "-c", "touch /data/x && rm /data/x && ! touch /opt/x 2>&1").endswith(
        "Read-only file system\n"
    )
    assert node.run("sh", "-c", "grep CapBnd /proc/1/status").split()[1] == "0" * 16


def test_the_health_check_fails_while_the_node_has_no_nats_server(composition: Composition) -> None:
    node = composition.start_alone()
    check = node.state["Config"]["Healthcheck"]["Test"][1:]
    assert '"ready": true' in node.run(*check)
    composition.nats.stop()
    with pytest.raises(AssertionError, match="connection to NATS is down"):
        node.run(*check)


def test_the_images_stay_small(dockerd: docker.DockerClient, images: Images) -> None:
    node, nats = (dockerd.images.get(image).attrs["Size"] for image in (images.node, images.nats))
    assert node < 420e6, f"{node / 1e6:.0f} MB; most of it is pyarrow"
    assert nats < 40e6, f"{nats / 1e6:.0f} MB"
