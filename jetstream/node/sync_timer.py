"""The timer of a stream with ``sync: interval``."""

import asyncio
import logging

from envelope.errors import JetstreamError
from envelope.types import SyncMode
from jetstream.log.log import Log
from jetstream.node.replica_parts import StreamServices
from metadata.stream_config import StreamConfig

_log = logging.getLogger(__name__)


class SyncTimer:
    """Forces one stream's log to disk every ``sync_interval``, if its configuration says so."""

    def __init__(self, services: StreamServices) -> None:
        self._disk = services.disk
        self._tasks: asyncio.TaskGroup = services.tasks
        self._timer: asyncio.Task[None] | None = None

    def follow(self, config: StreamConfig, log: Log) -> None:
        """Do as ``config`` says from now on."""
        self.stop()
        if config.sync is SyncMode.INTERVAL:
            self._timer = self._tasks.create_task(self._sync(config, log))

    def stop(self) -> None:
        """Sync no more."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    async def _sync(self, config: StreamConfig, log: Log) -> None:
        while True:
            await asyncio.sleep(config.sync_interval.total_seconds())
            if not log.dirty or log.failed is not None:
                continue
            try:
                await self._disk.call(log.sync)
            except JetstreamError as error:
                _log.error("stream offline stream=%s error=%r runbook=RB-01", config.name, error)
