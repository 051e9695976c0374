"""The deliberate bugs in what only a whole cluster has together, with a seed that finds each.

Searched and tested as those in the Raft core: see `tests.simulation.mutants`.
"""

from typing import Final

from tests.simulation.mutation import Mutant

_CONTROLLER_TERM: Final = "metadata.controller.controller_term"
_CONTROLLER_TERM_TEST: Final = "tests/unit/metadata/test_controller_term.py"
_LIVENESS_REPORTER: Final = "metadata.controller.liveness_reporter"
_LEASE_CLIENT: Final = "metadata.controller.lease_client"
_LEASES: Final = "metadata.controller.leases"
_LEADERSHIP: Final = "metadata.catalog.leadership"
_SNAPSHOT: Final = "metadata.catalog.snapshot"
_REPLICATED: Final = "metadata.node.catalogue.replicated_catalog"
_VOTERS: Final = "metadata.controller.voters"


def _mutant(
    name: str, module: str, snippet: str, instead: str, first: int = 0, scenario: str | None = None
) -> Mutant:
    return Mutant(
        name=name,
        module=module,
        snippet=snippet,
        instead=instead,
        first=first,
        simulator="cluster",
        scenario=scenario,
    )


_STEWARDS: Final = (
    _mutant(
        "lease_without_a_question",
        _CONTROLLER_TERM,
        "                    yield from self._ask_for_grants()",
        "                    yield SendToNode(self._grants.pop())",
        scenario=f"{_CONTROLLER_TERM_TEST}::test_a_lease_waits_for_a_question_that_was_asked_later",
    ),
    _mutant(
        "lease_granted_though_nobody_confirms",
        _CONTROLLER_TERM,
        "granted = self._granting[1] if leads else []",
        "granted = self._granting[1]",
        scenario=f"{_CONTROLLER_TERM_TEST}::test_nothing_is_granted_if_nobody_confirms_or_the_term_is_over",
    ),
    _mutant(
        "lease_for_an_earlier_question",
        _CONTROLLER_TERM,
        "        if self._granting is not None or not self._grants:\n            return ()",
        "        if self._granting is not None:\n            self._granting[1].extend(self._grants)\n"
        "            self._grants = []\n        if not self._grants:\n            return ()",
        scenario=f"{_CONTROLLER_TERM_TEST}::test_a_node_that_asks_while_others_wait_waits_for_the_next_question",
    ),
    _mutant(
        "controller_before_the_first_answer",
        _CONTROLLER_TERM,
        "        self._first_question = ask.number\n",
        "        self._controller = Controller(self._catalog, MonotonicNs(0), self._settings)\n",
        scenario=f"{_CONTROLLER_TERM_TEST}::test_there_is_a_controller_once_a_majority_has_confirmed_the_term",
    ),
    _mutant(
        "controller_of_no_catalogue",
        _CONTROLLER_TERM,
        "        self._controller = Controller(self._catalog, now, self._settings, self._cluster_id)",
        "        self._controller = Controller(Catalog(), now, self._settings, self._cluster_id)",
    ),
    _mutant(
        "controller_outlives_its_term",
        _CONTROLLER_TERM,
        "        self._end_work()\n        self._reports.clear()\n        self._term = term",
        "        self._reports.clear()\n        self._term = term",
    ),
    _mutant(
        "controller_forgets_leases",
        _LEASES,
        "self._unheard_until = MonotonicNs(now + lease_ns)",
        "self._unheard_until = now",
        first=2,
    ),
    _mutant(
        "never_asks_again",
        _LIVENESS_REPORTER,
        "        if now < self.due_at and (leader, term) == self._reported_to:",
        "        if (leader, term) == self._reported_to:",
    ),
    _mutant(
        "lease_counts_from_its_arrival",
        _LEASE_CLIENT,
        "MonotonicNs(grant.asked_at + usable_ns)",
        "MonotonicNs(now + usable_ns)",
        first=228,
    ),
)
_CATALOGUE: Final = (
    _mutant(
        "isr_without_its_version",
        _LEADERSHIP,
        "if stream.isr_version != command.expected_isr_version:",
        "if False:",
    ),
    _mutant("isr_with_another_start", _LEADERSHIP, "if current == node_epoch:", "if True:", first=30),
    _mutant(
        "same_epoch_for_the_next_leader",
        _LEADERSHIP,
        "leader_epoch=LeaderEpoch(stream.leader_epoch + 1), departed=()",
        "departed=()",
    ),
    _mutant(
        "snapshot_forgets_isr_versions",
        _SNAPSHOT,
        "streams=catalog.streams(),",
        "streams=tuple(__import__('dataclasses').replace(row, isr_version=1) for row in catalog.streams()),",
    ),
    _mutant(
        "snapshot_forgets_node_epochs",
        _SNAPSHOT,
        "nodes=catalog.nodes(),",
        "nodes=tuple(__import__('dataclasses').replace(row, node_epoch=1) for row in catalog.nodes()),",
    ),
    _mutant(
        "retry_decided_on_again",
        _REPLICATED,
        "        if index is not None:\n            self._catalog.skip",
        "        if False:\n            self._catalog.skip",
    ),
    _mutant(
        "restore_forgets_proposals",
        _REPLICATED,
        "        catalog, self._proposals = _decoded(snapshot)\n        self._catalog.become",
        "        catalog, _ = _decoded(snapshot)\n        self._catalog.become",
    ),
    _mutant(
        "restore_keeps_the_old_catalogue",
        _REPLICATED,
        "        self._catalog.become(catalog)",
        "        self._catalog = catalog",
    ),
)
_LOST: Final = (
    _mutant(
        "named_loss_is_ignored",
        "metadata.catalog.nodes",
        "is_lost = stream.begun and stream.incarnation in lost",
        "is_lost = False",
    ),
    _mutant(
        "new_stream_never_begins",
        _LEADERSHIP,
        "begun = replace(stream, begun=True)",
        "begun = replace(stream, begun=stream.begun)",
    ),
)
_CHOSEN: Final = (
    _mutant(
        "dead_voters_stay",
        _VOTERS,
        "live = [voter for voter in voters if not self._is_dead(voter, quorum, now)]",
        "live = list(voters)",
    ),
    _mutant(
        "voters_are_dead_at_once",
        _VOTERS,
        "not quorum.is_heard(member, now, self._settings.voter_replace_after_ns)",
        "not quorum.is_heard(member, now, self._settings.retry_interval_ns // 8)",
    ),
    _mutant(
        "voters_without_learning",
        _VOTERS,
        "if arriving and not set(arriving) <= set(learners):",
        "if False:",
    ),
    _mutant(
        "fewer_voters_as_nodes_die",
        _VOTERS,
        "most = max(len(voters), len(live) + len(candidates))",
        "most = len(live) + len(candidates)",
    ),
    _mutant(
        "even_voters",
        _VOTERS,
        "return number - 1 + number % 2",
        "return number",
    ),
    _mutant(
        "a_leader_gives_up_its_own_vote",
        _VOTERS,
        "others = (voter for voter in kept if voter != leader)",
        "others = iter(kept)",
    ),
)
_ALL: Final[tuple[Mutant, ...]] = (*_STEWARDS, *_CATALOGUE, *_LOST, *_CHOSEN)
MUTANTS: Final = {mutant.name: mutant for mutant in _ALL}
