"""Whether a node does for its users what it is there for: take and serve the records of its streams."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from envelope.errors import JetstreamError
from envelope.types import StreamName

PROBLEMS_TOLD_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class Health:
    """The answer to a probe.

    Attributes:
        problems: what is wrong, one sentence each; none if every stream serves.
    """

    problems: tuple[str, ...]

    @property
    def ready(self) -> bool:
        """Whether every stream of this node takes and serves records."""
        return not self.problems

    def document(self) -> dict[str, object]:
        """Return it as JSON; of many problems the first are told, and all are counted."""
        return {
            "ready": self.ready,
            "problems": list(self.problems[:PROBLEMS_TOLD_MAX]),
            "problems_total": len(self.problems),
        }


def judge(
    lost_connections: Iterable[str],
    refused_services: Iterable[str],
    stream_problems: Iterable[tuple[StreamName, JetstreamError]],
    *,
    is_started: bool = True,
    metadata_problem: str | None = None,
) -> Health:
    """Judge by the NATS connections that are down and the streams that do not take or serve records.

    What NATS refuses it besides its streams' subjects counts too: requests, and their answers.

    A node that is out of touch with the metadata log is not ready, even if it leads nothing.

    A node that is still starting, or stopping already, is not ready either: nobody answers requests there.
    """
    starting = [] if is_started else ["the node is starting, or stopping"]
    connections = [f"the {role} connection to NATS is down" for role in lost_connections]
    metadata = [] if metadata_problem is None else [metadata_problem]
    streams = [f"stream {name}: {error.err_code}: {error.description}" for name, error in stream_problems]
    return Health((*starting, *connections, *refused_services, *metadata, *streams))
