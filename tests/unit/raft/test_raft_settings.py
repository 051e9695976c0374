import pytest

from metadata.raft.machine import Raft
from metadata.raft.settings import RaftSettings
from tests.support.raft_cluster import START, A, B, C, disk_of


def test_the_defaults_fit_each_other() -> None:
    settings = RaftSettings()
    assert settings.election_timeout_ns >= 3 * settings.heartbeat_interval_ns


@pytest.mark.parametrize(
    "wrong",
    [
        {"heartbeat_interval_ns": 0},
        {"heartbeat_interval_ns": 200_000_000},
        {"election_timeout_ns": 299_999_999},
        {"append_bytes_max": 0},
        {"appends_in_flight_max": 0},
        {"entries_in_flight_max": 0},
    ],
    ids=str,
)
def test_settings_that_cannot_work_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(AssertionError):
        RaftSettings(**wrong)


def test_a_voter_is_one_of_the_voters() -> None:
    with pytest.raises(AssertionError, match="none of the voters"):
        Raft(A, frozenset((B, C)), RaftSettings(), disk_of().stored(), START)


def test_a_log_of_a_later_term_than_the_hard_state_is_refused() -> None:
    disk = disk_of(1, 2)
    disk.hard_state = disk_of(1).hard_state
    with pytest.raises(AssertionError, match="R10"):
        Raft(A, frozenset((A, B)), RaftSettings(), disk.stored(), START)
