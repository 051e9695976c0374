"""The members of the metadata group: who decides, and how that changes while the group works.

A configuration is an entry of the log. It is in force on a voter from the moment it is in that voter's log,
committed or not, and no more once it is truncated; before the first one, those that the group began with
decide. A change of voters takes two entries (joint consensus):

    a joint configuration  a decision takes a majority of the voters and one of the outgoing ones
        -> the final one   appended by the leader, whoever it is then, once the joint one is committed

So there is no moment at which two majorities without a common member could decide, however many voters are
exchanged at once. Learners are sent the log and decide nothing.

A configuration is a proposal under a name that none draws, with JSON in it:

    {"voters": [...], "outgoing": [...], "learners": [...]}

Source: Ongaro and Ousterhout, section 6; Ongaro, "Consensus: Bridging Theory and Practice", chapter 4. ADR
0018 says why these are no changes of single voters.
"""

import json
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Final, TypeVar

from envelope.errors import CorruptDataError
from envelope.types import LogIndex, MonotonicNs, NodeId
from metadata.raft.proposals import PROPOSAL_ID_BYTES, ProposalId, encode_proposal

OrderedT = TypeVar("OrderedT", bound=int)

CONFIGURATION_ID: Final = ProposalId(bytes(PROPOSAL_ID_BYTES))

_FIELDS: Final = ("voters", "outgoing", "learners")


@dataclass(frozen=True, slots=True)
class Configuration:
    """See the module; all names in their order, each once in a field."""

    voters: tuple[NodeId, ...]
    """Empty: the node that has this joins a group that it does not know yet."""
    outgoing: tuple[NodeId, ...] = ()
    """The voters of before, while a change of voters is under way."""
    learners: tuple[NodeId, ...] = ()
    """None of them is one of ``voters``."""

    @property
    def is_joint(self) -> bool:
        """Whether a change of voters is under way."""
        return bool(self.outgoing)

    @property
    def electorate(self) -> tuple[NodeId, ...]:
        """All whose votes count, in their order."""
        return _in_order(self.voters + self.outgoing)

    @property
    def members(self) -> frozenset[NodeId]:
        """All voters and learners."""
        return frozenset(self.voters + self.outgoing + self.learners)

    @property
    def final(self) -> "Configuration":
        """The one that follows a joint configuration."""
        return Configuration(self.voters, learners=self.learners)

    def others(self, node_id: NodeId) -> tuple[NodeId, ...]:
        """Return all whose votes count but for ``node_id``."""
        return tuple(voter for voter in self.electorate if voter != node_id)

    def followed_by(self, voters: Iterable[NodeId], learners: Iterable[NodeId]) -> "Configuration":
        """Return the entry that begins the change to these; it is joint if the voters are others."""
        wanted = _in_order(voters)
        outgoing = () if wanted == self.voters else self.voters
        return Configuration(wanted, outgoing, _in_order(learners))

    def is_decided_by(self, some: Collection[NodeId]) -> bool:
        """Return whether ``some`` are a majority, in a joint configuration of either side."""
        return all(2 * len(set(some).intersection(half)) > len(half) for half in self._halves())

    def reached(self, value_of: Callable[[NodeId], OrderedT]) -> OrderedT:
        """Return the highest value that a majority has reached, in a joint configuration of either side."""
        return min(reached_by_majority(map(value_of, half)) for half in self._halves())

    def _halves(self) -> tuple[tuple[NodeId, ...], ...]:
        assert self.voters, "nobody is no majority"
        return (self.voters, self.outgoing) if self.outgoing else (self.voters,)


@dataclass(frozen=True, slots=True)
class QuorumState:
    """The members of the group as its leader knows them."""

    leader: NodeId
    """The member that knows this."""
    configuration: Configuration
    """The one in force."""
    is_changing: bool
    """A change of members is not over, or may not be as far as the leader knows: it would refuse another."""
    is_first: bool
    """The log names no members yet: those in force are the ones with which the group began."""
    heard_at: Mapping[NodeId, MonotonicNs]
    """When each of the other members last answered; if it never did, when the leader began to send to it."""

    def is_heard(self, member: NodeId, now: MonotonicNs, within_ns: int) -> bool:
        """Return whether a member was heard within that time; the leader itself always is."""
        return member == self.leader or now - self.heard_at[member] < within_ns


class ConfigurationsByIndex:
    """The configurations of a log, each by the index of its entry.

    The first stands for the snapshot; None: the one with which the group began.
    """

    __slots__ = ("_items",)

    def __init__(self, index: LogIndex, configuration: Configuration | None) -> None:
        """Begin with that of the snapshot of ``index``."""
        self._items = [(index, configuration)]

    def at(self, index: LogIndex) -> Configuration | None:
        """Return the one in force with a log that ends at ``index``, which is not before the snapshot."""
        return self._items[self._place(index)][1]

    @property
    def newest_index(self) -> LogIndex:
        """Index of the entry of the last one, of the snapshot if that has one; 0 if none is named."""
        index, configuration = self._items[-1]
        return LogIndex(0) if configuration is None else index

    def since(self, index: LogIndex) -> list[Configuration | None]:
        """Return the one in force at ``index`` and all behind it."""
        return [configuration for _, configuration in self._items[self._place(index) :]]

    def append(self, index: LogIndex, configuration: Configuration) -> None:
        """Add that of the entry at ``index``, behind all others."""
        self._items.append((index, configuration))

    def truncate_from(self, index: LogIndex) -> None:
        """Drop those of entries at ``index`` and behind it."""
        del self._items[self._place(LogIndex(index - 1)) + 1 :]

    def compact(self, index: LogIndex) -> None:
        """Let the snapshot of ``index`` take the place of all entries up to it."""
        place = self._place(index)
        self._items = [(index, self._items[place][1]), *self._items[place + 1 :]]

    def _place(self, index: LogIndex) -> int:
        return bisect_right(self._items, index, key=itemgetter(0)) - 1


def reached_by_majority(values: Iterable[OrderedT]) -> OrderedT:
    """Return the highest value that more than half have reached; one value, at least, a voter."""
    ordered = sorted(values, reverse=True)
    return ordered[len(ordered) // 2]


def encode_configuration(configuration: Configuration) -> bytes:
    """Return the payload of the entry that brings it into force."""
    fields = {name: getattr(configuration, name) for name in _FIELDS}
    return encode_proposal(CONFIGURATION_ID, json.dumps(fields, separators=(",", ":")).encode())


def configuration_in(payload: bytes) -> Configuration | None:
    """Return the configuration of an entry, None if it is another kind of entry; errors as of decoding."""
    return decode_configuration(payload) if payload.startswith(CONFIGURATION_ID) else None


def decode_configuration(payload: bytes) -> Configuration:
    """Return the configuration that was encoded.

    Raises:
        CorruptDataError: it is nothing that `encode_configuration` returns for the entry of a leader.
    """
    try:
        fields = json.loads(payload[PROPOSAL_ID_BYTES:])
        configuration = Configuration(*(_names(fields[name]) for name in _FIELDS))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CorruptDataError(f"a metadata configuration that makes no sense: {error}") from error
    is_empty = not configuration.voters
    overlap = set(configuration.voters).intersection(configuration.learners)
    if is_empty or overlap or encode_configuration(configuration) != payload:
        raise CorruptDataError(f"a metadata configuration that no leader makes: {configuration}")
    return configuration


def _names(value: list[str]) -> tuple[NodeId, ...]:
    """Return names; raises `TypeError` or `ValueError` if a leader does not write them so."""
    names = tuple(NodeId(name) for name in value)
    if not all(isinstance(name, str) for name in names) or _in_order(names) != names:
        raise ValueError(f"{value} are no names in order")
    return names


def _in_order(names: Iterable[NodeId]) -> tuple[NodeId, ...]:
    return tuple(sorted(set(names)))
