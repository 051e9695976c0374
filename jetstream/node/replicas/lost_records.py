"""The log events of a follower whose log is cut, of records that the leader does not have."""

import logging
from typing import Final

from envelope.types import NodeId, Offset
from jetstream.node.replicas.context import ReplicaContext

_log = logging.getLogger(__name__)

COMMITTED_LOST: Final = "committed_records_lost"
"""Among the counts of a stream's parts."""


class LostRecords:
    """The records of one followed stream that are cut off; each is logged once."""

    def __init__(self, context: ReplicaContext, node_id: NodeId) -> None:
        """Nothing is lost yet."""
        self._context = context
        self._node_id = node_id
        self._told_end = Offset(0)

    def committed(self, start: Offset, end: Offset) -> None:
        """Log the records that were committed as far as is known here, and are about to be cut off."""
        self._told_end = end
        self._log_lost(start, end, "they were committed")

    def cut(self, end: Offset) -> None:
        """Log what a cut to ``end`` takes from a log that was in sync when another was elected uncleanly.

        After a start nobody here knows how far it was committed; but a log that was in sync has all that was.
        """
        log, unclean = self._context.log, self._context.last_unclean
        if unclean is None or self._node_id not in unclean.given_up:
            return
        start = max(end, self._told_end, log.log_start_offset)
        if log.reader.epochs.last < unclean.leader_epoch and start < log.log_end_offset:
            self._log_lost(start, log.log_end_offset, "they may have been committed")

    def _log_lost(self, start: Offset, end: Offset, how_known: str) -> None:
        self._context.counts[COMMITTED_LOST] += end - start
        _log.error(
            "committed records lost stream=%s records=%d start=%d end=%d: %s, the leader has not got them "
            "runbook=RB-10",
            self._context.name,
            end - start,
            start,
            end,
            how_known,
        )
