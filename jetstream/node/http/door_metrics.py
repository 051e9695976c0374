"""The numbers of those who were not let in at a port."""

from typing import Final

from jetstream.node.http.metric_sources import Definition

TURNED_AWAY: Final = Definition(
    "jetstream_connections_turned_away_total",
    "Connections to the ports of readers, peers and http that were refused because there were too many, "
    "or displaced: cut off for a newer one before they had said who they are.",
    ("port", "event"),
    lambda sources: [
        ((door.port, event), count)
        for door in sources.doors
        for event, count in (("refused", door.refused), ("displaced", door.displaced))
    ],
)
