"""Leaving a reign to another replica in sync."""

import logging

from envelope.errors import DiskFull, JetstreamError
from jetstream.node.replica_parts import ClusterServices
from metadata.catalog.commands import ChangeLeader
from metadata.catalog.tables import Stream

_log = logging.getLogger(__name__)


async def forgo(row: Stream, error: JetstreamError, cluster: ClusterServices) -> DiskFull | None:
    """Leave a reign that could not begin to another; return what it waits for if nobody can have it.

    A disk that is full will not stay so; of any other error it is not known whether trying again can help.
    """
    is_left = await _hand_over(row, cluster)
    return error if isinstance(error, DiskFull) and not is_left else None


async def _hand_over(row: Stream, cluster: ClusterServices) -> bool:
    """Have another replica in sync elected, the first that is not lost and that the catalogue accepts.

    Returns:
        Whether there was one.
    """
    for node in row.isr_nodes:
        if node == cluster.node_id or cluster.sessions.is_lost(node):
            continue
        command = ChangeLeader(
            stream=row.name,
            incarnation=row.incarnation,
            leader=node,
            node_epoch=cluster.epoch_of(node),
            expected_leader_epoch=row.leader_epoch,
        )
        try:
            (await cluster.propose(command)).answer()
        except JetstreamError as error:
            _log.warning("not handed over stream=%s to=%s error=%s", row.name, node, error)
        else:
            return True
    return False
