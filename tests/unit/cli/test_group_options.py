"""What ``jetstream group`` takes, and how it tells who owns what."""

from datetime import UTC, datetime, timedelta

import pytest
import typer

from jetstream.cli.groups import MoveOptions, owned_text
from jetstream.client.admin.group_lag import Target
from metadata.api.group_responses import OwnedPartitions


@pytest.mark.parametrize(
    ("options", "target"),
    [
        (MoveOptions(to_earliest=True), "earliest"),
        (MoveOptions(to_latest=True), "latest"),
        (MoveOptions(to_offset=0), 0),
        (MoveOptions(to_time="2026-03-01T12:00:00"), datetime(2026, 3, 1, 12, tzinfo=UTC)),
        (MoveOptions(to_time="-1h"), timedelta(hours=-1)),
        (MoveOptions(shift_by=-5), None),
    ],
)
def test_a_target_is_one_of_the_options(options: MoveOptions, target: Target | None) -> None:
    assert options.target() == target


@pytest.mark.parametrize(
    "options",
    [
        MoveOptions(),
        MoveOptions(to_earliest=True, to_latest=True),
        MoveOptions(to_offset=0, shift_by=0),
        MoveOptions(to_time="12"),
        MoveOptions(to_time="-12"),
        MoveOptions(to_time="1h"),
        MoveOptions(to_time="earliest"),
        MoveOptions(to_time="yesterday"),
    ],
)
def test_nowhere_and_two_places_are_refused(options: MoveOptions) -> None:
    with pytest.raises(typer.BadParameter):
        options.target()


def test_a_selection_says_what_was_given_and_nothing_else() -> None:
    """What it shows first must set nothing."""
    assert MoveOptions(to_latest=True).selection() == {"dry_run": True}
    chosen = MoveOptions(shift_by=-5, stream=["orders"], partition=[0, 2], force=True).selection()
    assert chosen == {"dry_run": True, "by": -5, "streams": ["orders"], "partitions": [0, 2]}


@pytest.mark.parametrize("streams", [None, ["a", "b"]])
def test_partitions_are_those_of_one_stream(streams: list[str] | None) -> None:
    with pytest.raises(typer.BadParameter, match="--partition"):
        MoveOptions(to_latest=True, stream=streams, partition=[0]).selection()


def test_what_is_owned_is_told_in_ranges() -> None:
    def owned(*numbers: int) -> OwnedPartitions:
        return OwnedPartitions(stream="orders", partitions=[(number, 1) for number in numbers])

    assert owned_text([]) == ""
    assert owned_text([owned(3)]) == "orders[3]"
    assert owned_text([owned(0, 1, 2, 5, 7, 8), owned(4)]) == "orders[0-2,5,7-8], orders[4]"
