"""The events and actions of a follower of a stream.

The shell performs actions in the order they come, and those on the log one after the other. It reports what
became of each in the same order: `LogWritten` and `LogSynced`, `LogCut` or `CutRefused`, `AppendsUndone`.
"""

from envelope.types import NO_OFFSET, LeaderEpoch, NodeId, Offset
from envelope.values import value
from jetstream.replica.reconcile import LogState
from jetstream.replica.role_events import AdvanceHighWatermark, LogStartMoved, Tick
from jetstream.replica.wire import Answer, BatchesMessage, FetchMessage

# --- events: the catalogue ----------------------------------------------------------------------------


@value(frozen=True, slots=True)
class LeaderAssigned:
    """The catalogue has this leader, or none, under this epoch; late and repeated reports do no harm."""

    leader: NodeId | None
    leader_epoch: LeaderEpoch
    may_lack_committed: bool = False
    """The leader may lack what was committed in this log: its election was unclean, or one since this log's
    last epoch, or the stream counts what nobody has forced to disk."""


# --- events: the log ----------------------------------------------------------------------------------


@value(frozen=True, slots=True)
class LogWritten:
    """The log ends at ``log_end``: what was appended up to there can be read."""

    log_end: Offset


@value(frozen=True, slots=True)
class LogSynced:
    """The log is durable below ``synced_end``; its end when ``sync`` is not ``always``."""

    synced_end: Offset


@value(frozen=True, slots=True)
class LogCut:
    """A `Truncate` or `ResetLog` is done, durably, and this is the log now.

    It may end below what was asked for, at the batch before, and then has no epoch that begins at its end.
    """

    log: LogState


@value(frozen=True, slots=True)
class CutRefused:
    """A `Truncate` or `ResetLog` was not done (disk full), and this is the log now."""

    log: LogState


@value(frozen=True, slots=True)
class AppendsUndone:
    """Appends were undone or not begun (disk full), and this is the log now."""

    log: LogState


# --- events: the rest ---------------------------------------------------------------------------------


@value(frozen=True, slots=True)
class LeaderDisconnected:
    """The connection to the leader broke, or there is none: what was under way may be lost."""


@value(frozen=True, slots=True)
class LeaderConnected:
    """There is a connection to the leader (again): what was under way before it is lost."""


Event = (
    LeaderAssigned
    | Answer
    | LogWritten
    | LogSynced
    | LogCut
    | CutRefused
    | AppendsUndone
    | LogStartMoved
    | LeaderDisconnected
    | LeaderConnected
    | Tick
)

# --- actions ------------------------------------------------------------------------------------------


@value(frozen=True, slots=True)
class Truncate:
    """Cut the log at the last batch boundary not above ``end``, durably; then tell `LogCut`, or `CutRefused`.

    Epochs that begin at the new end or above are forgotten with it, even if no record is: they are in no
    history but this one.
    """

    end: Offset


@value(frozen=True, slots=True)
class ResetLog:
    """Remove everything and begin an empty log without epochs at ``offset``, durably; then as `Truncate`."""

    offset: Offset
    purged_end: Offset = NO_OFFSET
    """Of the new log, which is copied from one that has the same."""
    note: bytes | None = None
    """The leader's publisher state, in place of this node's; None: that stays."""


@value(frozen=True, slots=True)
class ReportLost:
    """Records that were committed are about to be removed because the leader does not have them: loud.

    Only for a leader that may lack them.
    """

    start: Offset
    end: Offset


@value(frozen=True, slots=True)
class Distrust:
    """The leader lacks records that are committed, and cannot by rights: it has lost them. Loud.

    Nothing is cut, and nothing more is asked of it in its reign.
    """

    start: Offset
    end: Offset


Action = FetchMessage | BatchesMessage | Truncate | ResetLog | AdvanceHighWatermark | ReportLost | Distrust
"""A `FetchMessage`: send it to the leader; it may be lost, and a newer one replaces it. A `BatchesMessage`:
append its batches, bytes unchanged; then tell `LogWritten`, and `LogSynced` once synced."""
