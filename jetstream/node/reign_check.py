"""Whether a node still leads: what a leader that was cut off cannot know by itself."""

import asyncio
from collections.abc import Callable

from envelope.errors import StreamOffline
from envelope.types import Incarnation, LeaderEpoch, StreamName
from jetstream.node.replica_parts import StreamServices


class ReignCheck:
    """Of one stream; each call is one round to the metadata leader, which those at the same time share."""

    def __init__(
        self,
        incarnation: Incarnation,
        name: StreamName,
        leader_epoch: Callable[[], LeaderEpoch],
        services: StreamServices,
    ) -> None:
        """Check the reign that ``leader_epoch`` returns."""
        self._stream = incarnation, name
        self._leader_epoch = leader_epoch
        self._cluster = services.cluster
        self._tasks: asyncio.TaskGroup = services.tasks

    def __call__(self) -> asyncio.Future[None]:
        """See `ReadableStream.confirm`."""
        confirmed = asyncio.get_running_loop().create_future()
        self._tasks.create_task(self._check(confirmed))
        return confirmed

    async def _check(self, confirmed: asyncio.Future[None]) -> None:
        try:
            await self._cluster.confirm(*self._stream, self._leader_epoch())
        except StreamOffline as error:
            confirmed.set_exception(error)
        else:
            confirmed.set_result(None)
