"""The deliberate bugs that only clusters find whose dedupe windows are shorter than what goes wrong.

Seeds below `FIRST` have none.
"""

from typing import Final

from tests.simulation.mutation import Mutant

FIRST: Final = 10_000_000

_RECORD_FATES: Final = "jetstream.ingest.publishers.record_fates"
_RECOVERY: Final = "jetstream.node.disk.open_log"
_DISK_APPENDS: Final = "jetstream.node.disk.appends"


def _mutant(
    name: str, module: str, snippet: str, instead: str, first: int = FIRST, scenario: str | None = None
) -> Mutant:
    return Mutant(
        name=name,
        module=module,
        snippet=snippet,
        instead=instead,
        first=first,
        simulator="replica",
        scenario=scenario,
    )


ID_MUTANTS: Final = (
    _mutant(
        "ids_expire_before_the_commit",
        _RECORD_FATES,
        "self.held = late[0].first if late else self.uncommitted",
        "self.held = late[0].first if late else _AFTER_ALL",
    ),
    _mutant(
        "window_counts_from_the_arrival",
        _RECORD_FATES,
        "                if now - oldest > late_us:\n",
        "                if late_us < 0:\n",
    ),
    _mutant(
        "followers_count_from_the_arrival",
        _RECORD_FATES,
        "self.committed(*self.observed.popleft())",
        "self.committed(self.observed.popleft()[0], self._timestamp_from(self.uncommitted) or _BEFORE_ALL)",
    ),
    _mutant(
        "start_takes_all_for_committed",
        _RECOVERY,
        "dedupe.fates.hold_from(held)",
        "dedupe.fates.hold_from(log.log_end_offset)",
    ),
    _mutant(
        "held_ids_are_not_read_back",
        _RECOVERY,
        "for old in (overdue, noted.held):",
        "for old in (overdue, None):",
        first=10_000_091,
    ),
    _mutant(
        "held_ids_are_noted_after_the_write",
        _DISK_APPENDS,
        "    if log.failed is not None:\n        return\n    try:",
        "    if not log.failed:\n        return\n    try:",
        scenario="tests/unit/node/disk/test_opened_log.py::"
        "test_a_follower_that_catches_up_notes_what_is_not_committed_before_it_stores_it",
    ),
)
