"""Who may lack what it counted without a sync: it is in sync no more once it is back, unless nobody else is.

The last one in sync goes on with what it has, and so a stream may lose acked records only if all who were in
sync have lost power (KIP-966).
"""

from collections.abc import Container, Iterable, Mapping

from envelope.types import LeaderEpoch, StreamName, SyncMode
from metadata.catalog.commands import RegisterNode
from metadata.catalog.tables import Stream
from tests.simulation.replica.checkers.truths import Truths
from tests.simulation.replica.log_image import LogImage
from tests.simulation.violation import Violation

_NOBODY: frozenset[str] = frozenset()


class PowerLosses:
    """The directories of machines that lost power and have not said so yet, and what they held."""

    def __init__(self) -> None:
        self._untold: set[str] = set()
        self._held: dict[StreamName, list[tuple[str, LogImage]]] = {}

    def lost(self, directory: str, logs: Iterable[LogImage]) -> None:
        """A machine loses power; ``logs`` are copies of what it had of streams with another ``sync``."""
        self._untold.add(directory)
        for log in logs:
            self._held.setdefault(log.stream, []).append((directory, log))

    def held(self, stream: StreamName) -> list[tuple[str, LogImage]]:
        """Return what was once held, by directory: it counted when it was acknowledged."""
        return self._held.get(stream, [])

    def untold(self, stream: Stream) -> Container[str]:
        """Return the directories that need not hold what is committed, as the cluster cannot know yet."""
        return _NOBODY if stream.config.sync is SyncMode.ALWAYS else self._untold

    def registered(
        self,
        command: RegisterNode,
        streams: Iterable[Stream],
        truths: Mapping[StreamName, Truths],
        images: Mapping[StreamName, Mapping[str, LogImage]],
    ) -> None:
        """A node has registered another start; ``streams`` as they are behind that."""
        directory = command.directory
        if command.unsynced_kept or directory not in self._untold:
            return
        self._untold.remove(directory)
        for stream in streams:
            members = [member.directory for member in stream.isr]
            if stream.config.sync is SyncMode.ALWAYS or directory not in members:
                continue
            if len(members) > 1:
                raise Violation(
                    f"{command.node_id} has lost power, and is in the ISR of {stream.name} "
                    f"(v{stream.isr_version}) beside others"
                )
            kept = truths[stream.name].newest.shared_with(images[stream.name][directory])
            truths[stream.name].part(LeaderEpoch(stream.leader_epoch + 1), kept)
