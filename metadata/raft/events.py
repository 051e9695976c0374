"""Events and actions of a voter.

The shell performs actions in the order they come. ``Persist`` is its whole contract with the disk: write,
sync, send what waited for that, then report `Persisted`; writes of several are made in their order.
"""

from dataclasses import dataclass
from enum import StrEnum

from envelope.types import LogIndex, NodeId, Term
from metadata.raft.messages.voter_messages import Message
from metadata.raft.state import Entry, HardState, Snapshot

# --- events -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; to be given when the voter's ``wake_at`` is reached."""


@dataclass(frozen=True, slots=True)
class MessageReceived:
    """A message has arrived; late, twice or out of order does no harm."""

    message: Message


@dataclass(frozen=True, slots=True)
class Persisted:
    """The write of that number, and every one before it, is durable."""

    number: int


@dataclass(frozen=True, slots=True)
class Propose:
    """Append these payloads, none empty, in order."""

    payloads: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Read:
    """Report when the state machine has all that was committed before now."""

    token: int
    """Names the read in its answer."""


@dataclass(frozen=True, slots=True)
class TransferLeadership:
    """Hand leadership over to ``target``; ignored by who does not lead, or if that is no other voter.

    It may come to nothing; that it succeeded shows in `MetadataLeaderChanged`.
    """

    target: NodeId


@dataclass(frozen=True, slots=True)
class ChangeMembers:
    """Let these be the voters, at least one, and these the learners, none of them a voter; the others leave.

    A voter that has lost its disk must come back under another name, as a learner, once the voters of a group
    are not those with which it began (`metadata.raft.recovery`).

    A new voter has to be a learner that is heard and holds all that is committed, and a majority of the new
    voters has to. The answer is that to a
    proposal; the first entry of the change is in force at once, and the change is over when a configuration
    that is not joint is committed.
    """

    voters: tuple[NodeId, ...]
    learners: tuple[NodeId, ...] = ()


@dataclass(frozen=True, slots=True)
class CompactLog:
    """The state machine after the entry at ``index``, which was applied, is ``payload``."""

    index: LogIndex
    payload: bytes


@dataclass(frozen=True, slots=True)
class PeerDisconnected:
    """The connection to ``peer`` broke: messages under way may be lost."""

    peer: NodeId
    refused: bool
    """A new one was refused at once: nothing listens there, its process is dead."""


Event = (
    Tick
    | MessageReceived
    | Persisted
    | Propose
    | Read
    | TransferLeadership
    | ChangeMembers
    | CompactLog
    | PeerDisconnected
)

# --- actions ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Send:
    """Send this message; it may be lost."""

    message: Message


@dataclass(frozen=True, slots=True)
class Persist:
    """Make all this durable, in one sync, then send ``then``, then report ``Persisted(number)``.

    Without contents it is a barrier: the sends wait for the writes before it. After an error of the disk
    nothing more may be written or sent: the process stops.
    """

    number: int
    hard_state: HardState | None = None
    snapshot: Snapshot | None = None
    """Replaces all entries up to its index, and those behind it too unless they continue it."""
    entries: tuple[Entry, ...] = ()
    """Replace all from the first one's index on; come after the snapshot."""
    then: tuple[Send, ...] = ()


@dataclass(frozen=True, slots=True)
class Apply:
    """These entries are committed: give them to the state machine, in order."""

    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Restore:
    """Replace the state machine by this."""

    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class MetadataLeaderChanged:
    """The leader, as far as this voter knows; itself only once it leads."""

    leader: NodeId | None
    term: Term


@dataclass(frozen=True, slots=True)
class Proposed:
    """The payloads were appended from ``first`` on; `Apply` shows those that are committed."""

    first: LogIndex
    term: Term


class RefusalReason(StrEnum):
    """Why nothing was appended, or a read is not answered."""

    NOT_LEADER = "not_leader"
    HANDING_OVER = "handing_over"
    OVERLOADED = "overloaded"
    CHANGING = "changing"
    """A change of members is not over, or the leader does not know yet whether one is."""
    BEHIND = "behind"
    """A new voter, or a majority of those there are to be, is no member yet, lacks what is committed, or is
    not heard."""


@dataclass(frozen=True, slots=True)
class ProposalRefused:
    """Nothing was appended."""

    reason: RefusalReason
    leader: NodeId | None


@dataclass(frozen=True, slots=True)
class ReadReady:
    """These reads may be answered once the entry at ``index`` is applied."""

    tokens: tuple[int, ...]
    index: LogIndex


@dataclass(frozen=True, slots=True)
class ReadRefused:
    """This voter does not lead, or no longer: ask the leader."""

    tokens: tuple[int, ...]
    leader: NodeId | None


Action = (
    Send
    | Persist
    | Apply
    | Restore
    | MetadataLeaderChanged
    | Proposed
    | ProposalRefused
    | ReadReady
    | ReadRefused
)
