"""Batches for logs that have damaged ones, asked of other nodes and given to them.

Any replica gives what it has, whoever leads, as it lies in its files. Both verify it: who has asked, and who
gives it, as it would not know of its own damage otherwise.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from envelope.errors import ConnectionLost, DeadlinePassed, JetstreamError, UnavailableError
from envelope.limits import BATCH_BYTES_MAX, MIB
from envelope.types import Incarnation, NodeId, Offset, StreamName
from jetstream.log.format.batch import SealedBatch, verified_batches
from jetstream.log.reader import FileRange, LogReader
from jetstream.log.rewriting.repair import Hole
from jetstream.node.replicas.context import NodeServices
from jetstream.node.replicas.replica import StreamReplica
from jetstream.replica.repair_search import peers_of
from jetstream.replica.wire import RepairAnswer, RepairMessage
from metadata.catalog.tables import Stream

_ANSWER_BYTES: Final = 4 * MIB
_PATIENCE_SECONDS: Final = 10.0
"""For one answer."""

_Place = tuple[NodeId, Incarnation]


class RepairExchange:
    """Of one node; on its event loop."""

    def __init__(
        self,
        find: Callable[[Incarnation], StreamReplica | None],
        row_of: Callable[[StreamName, Incarnation], Stream | None],
        services: NodeServices,
    ) -> None:
        """``find`` returns a replica of this node, ``row_of`` the catalogue's row of a stream's life."""
        self._find = find
        self._row_of = row_of
        self._cluster = services.cluster
        self._disk = services.disk
        self._crash = services.crash
        self._waiting: dict[_Place, asyncio.Future[RepairAnswer]] = {}

    # --- asking ----------------------------------------------------------------------------------

    def peers(self, stream: StreamReplica) -> list[NodeId]:
        """Return who has all that is committed and can be asked now, the leader first."""
        row = self._row_of(stream.name, stream.context.incarnation)
        if row is None:
            return []
        return peers_of(row, self._cluster.node_id, self._cluster.sessions.is_connected)

    async def batches(self, stream: StreamReplica, hole: Hole, peer: NodeId) -> list[SealedBatch]:
        """Return what ``peer`` has where this node's log is damaged, intact.

        Raises:
            UnavailableError: it has not all of it, cannot be asked, or does not answer in time.
            CorruptDataError: what it has is damaged as well.
        """
        offset, parts, length = max(hole.base, stream.log.log_start_offset), [b""], 0
        # The log's own size may be smaller, and in force only since the segment was written.
        length_max = stream.config.segment_bytes + BATCH_BYTES_MAX if hole.length is None else hole.length
        while offset < hole.next:
            answer = await self._ask(stream, peer, RepairMessage(offset, hole.next))
            if not answer.base <= offset < answer.next:
                raise UnavailableError(f"{peer} does not have offset {offset} of {stream.name}")
            parts.append(answer.body)
            offset, length = answer.next, length + len(answer.body)
            if length > length_max:
                raise UnavailableError(f"{peer} has other bytes in [{hole.base}, {hole.next})")
        return verified_batches(b"".join(parts))

    async def _ask(self, stream: StreamReplica, peer: NodeId, message: RepairMessage) -> RepairAnswer:
        place = peer, stream.context.incarnation
        answer: asyncio.Future[RepairAnswer] = asyncio.get_running_loop().create_future()
        self._waiting[place] = answer
        try:
            if not self._cluster.sessions.fetch(peer, stream.name, stream.context.incarnation, message):
                raise ConnectionLost(f"{peer} is not connected")
            async with asyncio.timeout(_PATIENCE_SECONDS):
                return await answer
        except TimeoutError:
            raise DeadlinePassed(f"{peer} did not answer in {_PATIENCE_SECONDS:g} s") from None
        finally:
            del self._waiting[place]

    def answered(self, peer: NodeId, incarnation: Incarnation, answer: RepairAnswer) -> None:
        """Handle an answer of ``peer``; one that is not awaited any more is dropped."""
        waiting = self._waiting.get((peer, incarnation))
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    # --- giving ----------------------------------------------------------------------------------

    def asked(self, peer: NodeId, name: StreamName, incarnation: Incarnation, message: RepairMessage) -> None:
        """Answer ``peer`` with what is here; with nothing where it is not to be had."""
        replica = self._find(incarnation)
        if replica is None or not replica.is_open:
            self._answer(peer, name, incarnation, RepairAnswer(message.offset, message.offset), None)
            return
        plan = partial(_verified_range, replica.log.reader, message.offset, message.end)
        if message.end > replica.high_watermark:
            # It may be cut, and must not be while it is looked at: it would be taken for damage.
            planning = self._disk.call(plan)
        else:
            planning = asyncio.get_running_loop().run_in_executor(None, plan)
        planning.add_done_callback(partial(self._planned, peer, name, incarnation, message.offset))

    def _planned(
        self,
        peer: NodeId,
        name: StreamName,
        incarnation: Incarnation,
        offset: Offset,
        planning: "asyncio.Future[FileRange]",
    ) -> None:
        error = planning.exception()
        if error is not None and not isinstance(error, JetstreamError):
            self._crash.report(error)
            return
        found = planning.result() if error is None else None
        if found is None or not found.length:
            self._answer(peer, name, incarnation, RepairAnswer(offset, offset), None)
            return
        answer = RepairAnswer(found.base, found.next, found.length)
        try:
            self._answer(peer, name, incarnation, answer, found)
        except UnavailableError:  # the segment was removed since
            self._answer(peer, name, incarnation, RepairAnswer(offset, offset), None)

    def _answer(
        self,
        peer: NodeId,
        name: StreamName,
        incarnation: Incarnation,
        answer: RepairAnswer,
        body: FileRange | None,
    ) -> None:
        self._cluster.sessions.answer(peer, name, incarnation, answer, body)


def _verified_range(log: LogReader, offset: Offset, end: Offset) -> FileRange:
    """Return what is to be given; reads it, and an index if it must."""
    found = log.plan_read(offset, _ANSWER_BYTES, end)
    log.verify_range(found)
    return found
