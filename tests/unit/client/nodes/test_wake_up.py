"""On which systems a receiver may wait for much."""

import pytest

from jetstream.client.nodes.socket_link import can_wait


@pytest.mark.parametrize(
    ("platform", "release", "can"),
    [
        ("linux", "6.18.44", True),
        ("linux", "5.15.167.4-microsoft-standard-WSL2", True),
        ("linux", "4.18.0-553.el8_10.x86_64", True),
        ("linux", "4.17.19", False),
        ("linux", "4.4.0", False),  # also what gVisor says of itself
        ("linux", "3.10.0-1160.el7.x86_64", False),
        ("linux", "rolling", False),
        ("darwin", "24.1.0", False),
    ],
)
def test_only_a_kernel_that_makes_room_is_waited_on(platform: str, release: str, can: bool) -> None:
    assert can_wait(platform, release) is can
