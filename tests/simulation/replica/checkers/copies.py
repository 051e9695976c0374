"""What is committed is on disk: on every member of the ISR, and on as many as the stream demands.

Without ``sync: always`` it counts once it is written; there those are spared that lost power and have not
registered since, and what was held before a power loss was held.
"""

from collections.abc import Container, Iterable, Mapping

from envelope.types import Offset
from metadata.catalog.tables import Stream
from tests.simulation.replica.checkers.committed import Committed
from tests.simulation.replica.log_image import LogImage
from tests.simulation.violation import Violation


def check_members(
    stream: Stream, committed: Committed, images: Mapping[str, LogImage], spared: Container[str] = ()
) -> None:
    """Check every member of the ISR that the catalogue has; ``images`` and ``spared`` by data directory."""
    for member in stream.isr:
        if member.directory in spared:
            continue
        image = images[member.directory]
        if image.counted_end < committed.end:
            raise Violation(
                f"{member.node_id} is in the ISR of {stream.name} (v{stream.isr_version}) with "
                f"{image.counted_end} on disk; committed is {committed.end}"
            )
        if not committed.is_in(image, committed.end):
            raise Violation(
                f"{member.node_id} is in the ISR of {stream.name} (v{stream.isr_version}) with other records "
                f"than are committed below {committed.end}"
            )


def check_count(
    stream: Stream,
    end: Offset,
    committed: Committed,
    images: Mapping[str, LogImage],
    before: Iterable[tuple[str, LogImage]] = (),
) -> None:
    """Check that what was just announced is on enough disks; those that were lost since count too.

    So do the logs that were there ``before`` a power loss, if that may take what counted.
    """
    holders = {
        directory
        for directory, image in (*images.items(), *before)
        if image.counted_end >= end and committed.is_in(image, end)
    }
    if len(holders) < stream.config.insync_minimum:
        raise Violation(
            f"{end} of {stream.name} is announced as committed, and on disk in {sorted(holders)} only; "
            f"min_insync_replicas is {stream.config.insync_minimum}"
        )
