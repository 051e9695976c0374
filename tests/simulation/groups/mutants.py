"""The deliberate bugs in consumer groups, with a seed that finds each."""

from typing import Final

from tests.simulation.mutation import Mutant

_COORDINATOR: Final = "consumer_groups.coordinator"
_FENCING: Final = "consumer_groups.fencing"
_MEMBERSHIP: Final = "consumer_groups.membership"
_SESSIONS: Final = "consumer_groups.sessions"
_SUCCESSION: Final = "consumer_groups.succession"


def _mutant(name: str, module: str, snippet: str, instead: str, first: int = 0) -> Mutant:
    return Mutant(name, module, snippet, instead, first, "groups")


_ALL: Final = (
    _mutant(
        "granted_before_it_was_given_up",
        _SUCCESSION,
        "grants.setdefault(partition, Grant(member_id, generation))",
        "grants[partition] = grants[partition] if grants.get(partition, ('',))[0] == member_id "
        "else Grant(member_id, generation)",
    ),
    _mutant(
        "answered_before_durable",
        _COORDINATOR,
        "actions = (*self._dispatch(event, now), *self._timer(event))",
        "actions = tuple(said for each in self._dispatch(event, now) for said in "
        "((*each.then, Persist(each.state, ())) if isinstance(each, Persist) else (each,))) "
        "+ tuple(self._timer(event))",
    ),
    _mutant(
        "generation_stands_still",
        _SUCCESSION,
        "generation = Generation(before.generation + 1)",
        "generation = before.generation",
    ),
    _mutant(
        "commit_of_an_earlier_ownership",
        _FENCING,
        "if commit.generation < grant.generation:",
        "if False:",
        13,
    ),
    _mutant(
        "commit_by_anybody",
        _FENCING,
        "if grant is None or grant.member_id != commit.member_id:",
        "if grant is None:",
        4,
    ),
    _mutant(
        "late_release_counts",
        _COORDINATOR,
        "if state.grants.get(partition) == Grant(member_id, generation)",
        "if partition in state.grants and state.grants[partition].member_id == member_id",
        13,
    ),
    _mutant(
        "late_join_counts",
        _MEMBERSHIP,
        "and join.request <= present.request",
        "and False",
        108,
    ),
    _mutant(
        "gone_clients_come_back",
        _MEMBERSHIP,
        "if last is not None and join.request <= last:",
        "if False:",
        199,
    ),
    _mutant(
        "two_members_of_one_instance",
        _MEMBERSHIP,
        "former = state.of_instance(join.instance_id)",
        "former = None",
        1,
    ),
    _mutant(
        "takeover_shares_out_anew",
        _MEMBERSHIP,
        "target = {one: member_id if owner == former else owner for one, owner in draft.target.items()}",
        "target = dict(zip(draft.target, reversed([member_id if owner == former else owner "
        "for owner in draft.target.values()])))",
        14,
    ),
    _mutant(
        "takeover_in_the_same_generation",
        _MEMBERSHIP,
        "one: Grant(member_id, generation) if grant.member_id == former else grant",
        "one: Grant(member_id, grant.generation) if grant.member_id == former else grant",
        14,
    ),
    _mutant(
        "no_session_after_failover",
        _SESSIONS,
        "self._sessions.setdefault(member_id, Session(now))",
        "self._sessions.setdefault(member_id, Session(MonotonicNs(0)))",
        1,
    ),
    _mutant(
        "heartbeats_are_not_heard",
        _SESSIONS,
        "session.heard_at, session.connection = now, connection",
        "session.connection = connection",
    ),
    _mutant(
        "heartbeats_tell_nothing",
        _COORDINATOR,
        "if beat.generation < self.state.members[beat.member_id].assigned:",
        "if False:",
    ),
    _mutant(
        "who_holds_on_stays",
        _SESSIONS,
        "elif now >= session.held_on_at(member):",
        "elif False:",
        19,
    ),
    _mutant(
        "the_silent_stay",
        _SESSIONS,
        "if now >= session.silent_at(member):",
        "if False:",
        1,
    ),
    _mutant(
        "added_partitions_go_unnoticed",
        _COORDINATOR,
        "if counts == self.state.streams:",
        "if counts.keys() == self.state.streams.keys():",
        11,
    ),
    _mutant(
        "gone_members_keep_what_they_had",
        _SUCCESSION,
        "return grant.member_id in draft.members and partition",
        "return partition",
        3,
    ),
)
MUTANTS: Final = {mutant.name: mutant for mutant in _ALL}
