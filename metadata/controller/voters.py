"""Which members the metadata group should have: the changes that replace, add and remove voters.

The catalogue says how many voters are wanted, 1, 3 or 5; if it says nothing, three, or as many as there are.
Their number is always odd: a fourth voter helps no more failures than three outlive. A node becomes a voter
in two changes: as a learner it is sent the log, and once it holds all that is committed, the next change
makes it a voter, in the same moment in which those that it replaces leave.

A voter is given up only where another takes its place, or where fewer are wanted. So a group never gets
smaller because machines die, or because an operator removes their nodes: a vote that nobody can take over is
kept. One voter in the place of three would have the metadata on one disk.

A voter is dead if the leader has not heard it for a while, or if its node has registered on another disk:
what has its name then has none of its promises. Candidates are nodes that are alive, have an address and no
other voter. A learner that dies is not tried again at once, unless its node has been started again: one that
other nodes cannot dial is alive as long as it observes, and would become a learner for ever.

Sources: KIP-853 (members by node and disk, learners first); HashiCorp's autopilot (dead voters, and when they
are replaced).
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from envelope.types import MonotonicNs, NodeEpoch, NodeId
from metadata.catalog.catalog import Catalog
from metadata.controller.alive_nodes import AliveNodes
from metadata.controller.settings import ControllerSettings
from metadata.members import disk_of, member_name, node_of
from metadata.raft.configuration import QuorumState
from metadata.raft.events import ChangeMembers

VOTERS_DEFAULT: Final = 3
"""Voters that are wanted where nobody says how many; more, if there are more."""

_AT_ONCE: Final = MonotonicNs(0)


class VoterChanges:
    """See the module; one for every term."""

    def __init__(self, catalog: Catalog, alive_nodes: AliveNodes, settings: ControllerSettings) -> None:
        """Begin the term: no learner is known to be silent."""
        self._catalog = catalog
        self._alive_nodes = alive_nodes
        self._settings = settings
        self._not_before = _AT_ONCE
        self._silent: set[NodeId] = set()
        """Learners that were not heard for as long as a dead voter; others are preferred to them."""
        self._given_up: dict[NodeId, tuple[NodeEpoch, MonotonicNs]] = {}
        """Learners that died, with the start of their node, and when they may be tried again."""

    def next_change(self, quorum: QuorumState, now: MonotonicNs) -> ChangeMembers | None:
        """Return the change to propose, None if there is nothing to do now.

        It may be refused, or lost with its leader; it is proposed again after the retry interval.
        """
        if quorum.is_changing or now < self._not_before:
            return None
        self._not_before = MonotonicNs(now + self._settings.retry_interval_ns)
        voters, learners = quorum.configuration.voters, quorum.configuration.learners
        if quorum.is_first:
            return ChangeMembers(voters)  # so that the log says who decides, from here on
        self._look_for_silence(quorum, now)
        wanted = self._wanted_voters(quorum, now)
        arriving = tuple(sorted(wanted.difference(voters)))
        if arriving and not set(arriving) <= set(learners):
            return ChangeMembers(voters, arriving)
        if wanted != set(voters):
            return ChangeMembers(tuple(sorted(wanted)))
        return ChangeMembers(voters) if learners else None

    # --- the voters that there should be ------------------------------------------------------------------

    def _wanted_voters(self, quorum: QuorumState, now: MonotonicNs) -> set[NodeId]:
        """Return the voters that there should be; those of now if there is nothing to gain."""
        voters = quorum.configuration.voters
        live = [voter for voter in voters if not self._is_dead(voter, quorum, now)]
        candidates = list(self._candidates(quorum, live, now))
        most = max(len(voters), len(live) + len(candidates))
        number = _odd(min(self._wanted_number(quorum), most))
        chosen = self._most_spread(live, number, quorum.leader)
        while candidates and len(chosen) < number:
            racks = Counter(map(self._rack, chosen))
            best = min(
                candidates,
                key=lambda member: (
                    member in self._silent,
                    racks[self._rack(member)],
                    member not in quorum.configuration.learners,
                    member,
                ),
            )
            candidates.remove(best)
            chosen.append(best)
        nodes = set(map(node_of, chosen))
        dead = [voter for voter in voters if voter not in live]
        dead.sort(
            key=lambda voter: node_of(voter) in nodes
        )  # which has another member, and does not come back
        return {*chosen, *dead[: number - len(chosen)]}

    def _wanted_number(self, quorum: QuorumState) -> int:
        wanted = self._catalog.cluster.voters_wanted
        return max(VOTERS_DEFAULT, len(quorum.configuration.voters)) if wanted is None else wanted

    def _most_spread(self, live: Iterable[NodeId], number: int, leader: NodeId) -> list[NodeId]:
        """Return so many of the living voters, in as many racks as there are; the leader is always one."""
        kept = list(live)
        while len(kept) > number:
            racks = Counter(map(self._rack, kept))
            others = (voter for voter in kept if voter != leader)
            kept.remove(max(others, key=lambda voter: (racks[self._rack(voter)], voter)))
        return kept

    def _rack(self, member: NodeId) -> tuple[bool, str]:
        """Return what names the rack of a member's node; without one it is a rack of its own."""
        node = self._catalog.node(node_of(member))
        return (True, node_of(member)) if node is None or node.rack is None else (False, node.rack)

    # --- which are well -----------------------------------------------------------------------------------

    def _is_dead(self, voter: NodeId, quorum: QuorumState, now: MonotonicNs) -> bool:
        if voter == quorum.leader:
            return False  # a newer start of its node ends it
        node = self._catalog.node(node_of(voter))
        is_disk_gone = node is not None and disk_of(voter) not in (None, node.directory)
        return is_disk_gone or self._is_silent(voter, quorum, now)

    def _is_silent(self, member: NodeId, quorum: QuorumState, now: MonotonicNs) -> bool:
        return not quorum.is_heard(member, now, self._settings.voter_replace_after_ns)

    def _look_for_silence(self, quorum: QuorumState, now: MonotonicNs) -> None:
        for learner in quorum.configuration.learners:
            if self._is_silent(learner, quorum, now):
                self._silent.add(learner)
            else:
                self._silent.discard(learner)
            if not self._is_there(node_of(learner), now, is_learner=True):
                again_at = MonotonicNs(now + self._settings.voter_replace_after_ns)
                self._given_up[learner] = self._alive_nodes.registered_epoch(node_of(learner)), again_at

    def _candidates(self, quorum: QuorumState, live: Iterable[NodeId], now: MonotonicNs) -> Iterator[NodeId]:
        taken = {*map(node_of, live)}
        for node in self._catalog.nodes():
            member = member_name(node.node_id, node.directory)
            is_learner = member in quorum.configuration.learners
            if node.peer_host is None or node.node_id in taken or member in quorum.configuration.voters:
                continue
            epoch, again_at = self._given_up.get(member, (None, now))
            if self._is_there(node.node_id, now, is_learner=is_learner) and (
                epoch != node.node_epoch or now >= again_at
            ):
                yield member

    def _is_there(self, node: NodeId, now: MonotonicNs, *, is_learner: bool) -> bool:
        """Return whether a node can become a voter; a learner, unless its lease is known to have run out.

        At the beginning of a term no node is known to be alive, and learners of the term before would be
        dropped for that.
        """
        if self._alive_nodes.is_eligible(node, now):
            return True
        is_stopping = node in self._alive_nodes.stopping
        return is_learner and not is_stopping and not self._alive_nodes.leases.is_dead(node, now)


def _odd(number: int) -> int:
    """Return the largest odd number that is not above ``number``, which is at least 1."""
    return number - 1 + number % 2
