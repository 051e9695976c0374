"""How far streams are in the object store: a leader's compare-and-set."""

from dataclasses import replace

from envelope.errors import Fenced, InvalidConfig
from metadata.catalog.commands import AdvanceTier
from metadata.catalog.events import Events, TierAdvanced, refused
from metadata.catalog.leadership import led_stream
from metadata.catalog.streams import refused_mark
from metadata.catalog.tables import Stream, Tables


def advance_tier(tables: Tables, command: AdvanceTier) -> Events:
    """Put the mark in force if its proposer still leads, and no other mark came in between."""
    stream = led_stream(tables, command)
    if not isinstance(stream, Stream):
        return stream
    before, mark = stream.tier, command.mark
    version = before.version if before is not None else 0
    if mark.version != version + 1:
        return refused(Fenced, f"the tier of {stream.name!r} is at version {version}", tier_version=version)
    refusal = refused_mark(mark)
    if refusal is not None:
        return refusal
    if before is not None and (mark.start < before.start or mark.end < before.end):
        return refused(InvalidConfig, f"tier: {mark} goes back from {before}", field="tier")
    advanced = replace(stream, tier=mark)
    tables.put(advanced)
    return (TierAdvanced(advanced),)
