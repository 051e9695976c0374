"""The deliberate bugs that only clusters find whose streams promise other things than most do.

Streams without ``sync: always``, with read replicas, or that permit unclean elections, and disks that lose
bits: seeds below `FIRST` have none, and keep the clusters in which the bugs of
`tests.simulation.replica.mutants` were found.
"""

from typing import Final

from tests.simulation.mutation import Mutant

FIRST: Final = 10_000

_CORRUPT_RANGES: Final = "jetstream.log.segments.corrupt_ranges"
_REPAIR_SEARCH: Final = "jetstream.replica.repair_search"
_LEADER: Final = "jetstream.replica.leader"
_LEADERSHIP: Final = "metadata.catalog.leadership"
_HOLDERS: Final = "metadata.catalog.holders"
_FOLLOWER: Final = "jetstream.replica.follower"
_NODES: Final = "metadata.catalog.nodes"
_TABLES: Final = "metadata.catalog.tables"
_LAST_CHOICE: Final = "metadata.controller.unclean"


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


_UNSYNCED: Final = (
    _mutant(
        "who_lost_power_stays_in_sync",
        _NODES,
        "keeps_all = (unsynced_kept or synced) and",
        "keeps_all = True and",
    ),
    _mutant(
        "interval_counts_as_synced",
        _NODES,
        "synced = stream.config.sync is SyncMode.ALWAYS",
        "synced = stream.config.sync is not SyncMode.OS",
    ),
    _mutant(
        "one_of_two_is_the_last_standing",
        _NODES,
        "if lost is not None and len(after.isr) > 1:",
        "if lost is not None and len(after.isr) > 2:",
    ),
)
_READ_REPLICAS: Final = (
    _mutant(
        "read_replica_may_join",
        _LEADER,
        "for node in self._appointment.replicas\n            if node not in committed",
        "for node in (*self._appointment.replicas, *self._appointment.read_replicas)\n"
        "            if node not in committed",
        first=10_011,
    ),
    _mutant(
        "read_replicas_count_for_the_minimum",
        _LEADER,
        "return len(self.isr.committed) < self._minimum",
        "return len(self.isr.committed) + len(self._appointment.read_replicas) < self._minimum",
        first=10_022,
    ),
    _mutant(
        "commits_wait_for_read_replicas",
        _LEADER,
        "for node in self.isr.maximal:",
        "for node in self.isr.maximal.union(self._appointment.read_replicas):",
        first=10_132,
    ),
    _mutant(
        "new_read_replicas_are_unknown",
        _LEADER,
        "self._appointment, replicas=changed.replicas, read_replicas=changed.read_replicas",
        "self._appointment, replicas=changed.replicas",
        first=10_023,
    ),
    _mutant(
        "who_is_to_read_stays_in_sync",
        _HOLDERS,
        "isr = tuple(members[node] for node in after.replicas if node in members)",
        "isr = tuple(members[node] for node in after.holders if node in members)",
        first=10_400,
    ),
    _mutant(
        "who_reads_no_more_keeps_its_files",
        _HOLDERS,
        "left = tuple(node for node in before.holders if node not in after.holders)",
        "left = tuple(node for node in before.replicas if node not in after.holders)",
        first=10_011,
    ),
    _mutant(
        "comes_back_in_the_same_reign",
        _HOLDERS,
        "if not set(after.holders).isdisjoint(before.departed):",
        "if not set(after.holders).isdisjoint(()):",
        first=10_470,
    ),
)
_UNCLEAN: Final = (
    _mutant(
        "any_stream_is_led_uncleanly",
        _LAST_CHOICE,
        "if not row.config.unclean_election or not alive_nodes.is_isr_dead(row, now):",
        "if not alive_nodes.is_isr_dead(row, now):",
    ),
    _mutant(
        "unclean_while_the_isr_lives",
        _LAST_CHOICE,
        "if not row.config.unclean_election or not alive_nodes.is_isr_dead(row, now):",
        "if not row.config.unclean_election:",
        first=11_050,
    ),
    _mutant(
        "blank_disk_is_elected",
        _LAST_CHOICE,
        "passed_over = {*row.blank, *row.isr_nodes}",
        "passed_over = {*row.isr_nodes}",
    ),
    _mutant(
        "unclean_election_is_not_told",
        _LEADERSHIP,
        "last_unclean=UncleanElection(leader, leader_epoch, command.unclean_at, given_up),",
        "last_unclean=stream.last_unclean,",
    ),
    _mutant(
        "given_up_isr_stays_in_sync",
        _LEADERSHIP,
        "isr=(InSyncReplica(leader, tables.nodes[leader].directory),),",
        "isr=(InSyncReplica(leader, tables.nodes[leader].directory), *stream.isr),",
    ),
)
_DAMAGED: Final = (
    _mutant(
        "first_damaged_batch_is_served",
        _CORRUPT_RANGES,
        "if start <= offset < end:",
        "if start < offset < end:",
    ),
    _mutant(
        "repaired_and_refused",
        _CORRUPT_RANGES,
        "self._ranges = without_range(ranges, start, end)",
        "self._ranges = ranges",
    ),
    _mutant(
        "who_could_not_help_never_can",
        _REPAIR_SEARCH,
        "return at is None or now - at >= RETRY_NS",
        "return at is None",
    ),
)
_LOST: Final = (
    _mutant(
        "blank_replica_counts_as_created",
        _NODES,
        "is_lost = stream.begun and stream.incarnation in lost",
        "is_lost = False",
    ),
    _mutant(
        "lost_log_is_begun_anew",
        _TABLES,
        "return node in self.blank and node in self.isr_nodes",
        "return False",
    ),
    _mutant(
        "who_lost_its_log_is_elected",
        _TABLES,
        "return is_registered and member.node_id not in self.blank",
        "return is_registered",
    ),
    _mutant(
        "empty_leader_is_obeyed",
        _FOLLOWER,
        "if end < self.high_watermark and not self._may_lack_committed:",
        "if self._may_lack_committed and not self._may_lack_committed:",
        scenario="tests/unit/replica/test_lost_logs.py::test_nobody_deletes_its_log_for_a_leader_that_lost_its_own",
    ),
)
PROMISE_MUTANTS: Final = (*_UNSYNCED, *_READ_REPLICAS, *_UNCLEAN, *_DAMAGED, *_LOST)
