"""Whether a replica's log may be begun: the catalogue is told of it first, and a lost one is not replaced."""

import logging

from envelope.errors import JetstreamError, StreamLost
from jetstream.node.replica import StreamReplica
from jetstream.node.replica_parts import ClusterServices
from metadata.catalog.commands import BeginStream
from metadata.catalog.tables import Stream

_log = logging.getLogger(__name__)


async def begin_stream(replica: StreamReplica, row: Stream, cluster: ClusterServices) -> None:
    """Have the catalogue know that there is a log, before anything is in it; `put_off` if it does not."""
    command = BeginStream(row.name, row.incarnation, cluster.node_id, row.leader_epoch)
    try:
        (await cluster.propose(command)).answer()
    except JetstreamError as error:
        _log.warning("stream not begun stream=%s error=%s", replica.name, error)
        replica.put_off = error


def refuse(replica: StreamReplica) -> None:
    """Serve nothing, and say so, until the log is back or an operator decides."""
    replica.problem = StreamLost("its log is gone from the disk, and no other replica was in sync")
    _log.error("stream lost stream=%s: %s runbook=RB-13", replica.name, replica.problem)
