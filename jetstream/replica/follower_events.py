"""What a follower of a stream is told, and what it wants done.

The shell performs actions in the order they come, and those on the log one after the other. It reports what
became of each in the same order: `LogWritten` and `LogSynced`, `LogCut` or `CutRefused`, `AppendsUndone`.
"""

from dataclasses import dataclass

from envelope.types import NO_OFFSET, LeaderEpoch, NodeEpoch, NodeId, Offset
from jetstream.replica.log_state import LogState
from jetstream.replica.role_events import AdvanceHighWatermark, LogStartMoved, Tick

# --- events: the catalogue ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LeaderAssigned:
    """The catalogue has this leader, or none, under this epoch; late and repeated reports do no harm."""

    leader: NodeId | None
    leader_epoch: LeaderEpoch
    may_lack_committed: bool = False
    """The leader may lack what was committed in this log: its election was unclean, or one since this log's
    last epoch, or the stream counts what nobody has forced to disk."""


# --- events: answers of the leader; they repeat the fetch's ``last_epoch`` and ``log_end`` -------------


@dataclass(frozen=True, slots=True)
class EpochBegins:
    """The first of the batches from ``start`` on that was written under ``epoch``."""

    epoch: LeaderEpoch
    start: Offset


@dataclass(frozen=True, slots=True)
class Batches:
    """What the leader has after the log that the fetch described; perhaps nothing."""

    leader_epoch: LeaderEpoch
    last_epoch: LeaderEpoch
    base: Offset
    """The fetch's ``log_end``."""
    next: Offset
    """Offset after the last batch; the base if there is none."""
    epochs: tuple[EpochBegins, ...]
    """Of the batches, in order; the first begins at the base. Empty if there is no batch."""
    high_watermark: Offset
    log_start_offset: Offset = NO_OFFSET
    """Where the leader's log begins."""
    purged_end: Offset = NO_OFFSET
    """Tombstones below may be missing in the leader's log."""


@dataclass(frozen=True, slots=True)
class DivergingAnswer:
    """The log that the fetch described is no beginning of the leader's."""

    leader_epoch: LeaderEpoch
    last_epoch: LeaderEpoch
    log_end: Offset
    epoch: LeaderEpoch
    """The largest that the leader knows and that is not above ``last_epoch``."""
    end: Offset
    """Where it ends in the leader's log."""


@dataclass(frozen=True, slots=True)
class StartOverAnswer:
    """The log that the fetch described has nothing to build on."""

    leader_epoch: LeaderEpoch
    last_epoch: LeaderEpoch
    log_end: Offset
    log_start_offset: Offset
    """Where the leader's log begins."""


@dataclass(frozen=True, slots=True)
class FetchRefused:
    """The leader of that epoch, to whom a fetch was sent, refused it, whatever the reason."""

    leader_epoch: LeaderEpoch
    """Of the fetch."""


# --- events: the log ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogWritten:
    """The log ends at ``log_end``: what was appended up to there can be read."""

    log_end: Offset


@dataclass(frozen=True, slots=True)
class LogSynced:
    """The log is durable below ``synced_end``; its end when ``sync`` is not ``always``."""

    synced_end: Offset


@dataclass(frozen=True, slots=True)
class LogCut:
    """What `Truncate` or `ResetLog` asked for is done, durably, and this is the log now.

    It may end below what was asked for, at the batch before, and then has no epoch that begins at its end.
    """

    log: LogState


@dataclass(frozen=True, slots=True)
class CutRefused:
    """What `Truncate` or `ResetLog` asked for was not done (disk full), and this is the log now."""

    log: LogState


@dataclass(frozen=True, slots=True)
class AppendsUndone:
    """Appends were undone or not begun (disk full), and this is the log now."""

    log: LogState


# --- events: the rest ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LeaderDisconnected:
    """The connection to the leader broke, or there is none: what was under way may be lost."""


@dataclass(frozen=True, slots=True)
class LeaderConnected:
    """There is a connection to the leader (again): what was under way before it is lost."""


Event = (
    LeaderAssigned
    | Batches
    | DivergingAnswer
    | StartOverAnswer
    | FetchRefused
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


@dataclass(frozen=True, slots=True)
class FetchFromLeader:
    """Ask the leader for what comes after this log. It may be lost; a newer one replaces it."""

    leader: NodeId
    leader_epoch: LeaderEpoch
    node_epoch: NodeEpoch
    """Of this process."""
    last_epoch: LeaderEpoch
    log_end: Offset
    """After all appends that were asked for, even if they are not written yet."""
    synced_end: Offset
    """The acknowledgement: durable here."""
    high_watermark: Offset
    asks: bool
    """False: it only acknowledges; the answer to what was asked before is still awaited."""


@dataclass(frozen=True, slots=True)
class AppendBatches:
    """Append the answer's batches, bytes unchanged; then tell `LogWritten`, and `LogSynced` once synced."""

    batches: Batches


@dataclass(frozen=True, slots=True)
class Truncate:
    """Cut the log at the last batch boundary not above ``end``, durably; then tell `LogCut`, or `CutRefused`.

    Epochs that begin at the new end or above are forgotten with it, even if no record is: they are in no
    history but this one.
    """

    end: Offset


@dataclass(frozen=True, slots=True)
class ResetLog:
    """Remove everything and begin an empty log without epochs at ``offset``, durably; then as `Truncate`."""

    offset: Offset
    purged_end: Offset = NO_OFFSET
    """Of the new log, which is copied from one that has the same."""


@dataclass(frozen=True, slots=True)
class ReportLost:
    """Records that were committed are about to be removed because the leader does not have them: loud.

    Only for a leader that may lack them.
    """

    start: Offset
    end: Offset


@dataclass(frozen=True, slots=True)
class Distrust:
    """The leader lacks records that are committed, and cannot by rights: it has lost them. Loud.

    Nothing is cut, and nothing more is asked of it in its reign.
    """

    start: Offset
    end: Offset


Action = FetchFromLeader | AppendBatches | Truncate | ResetLog | AdvanceHighWatermark | ReportLost | Distrust
