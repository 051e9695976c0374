"""Marks on a stream's log that its leader sets: how far it is in the object store, and the last txid.

Only the leader knows where the log ends, so each command says whose reign it belongs to.
"""

from dataclasses import replace

from envelope.errors import Fenced, InvalidConfig
from metadata.catalog.commands import AdvanceTier, SetTxid
from metadata.catalog.events import Events, TierAdvanced, TxidChanged, refused
from metadata.catalog.leadership import led_stream
from metadata.catalog.streams import refused_mark
from metadata.catalog.tables import Stream, Tables, TxidSet


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


def set_txid(tables: Tables, command: SetTxid) -> Events:
    """Let the txid be the last one from that offset on, if its proposer still leads."""
    stream = led_stream(tables, command)
    if not isinstance(stream, Stream):
        return stream
    changed = replace(stream, txid_set=TxidSet(command.leader_epoch, command.offset, command.txid))
    tables.put(changed)
    return (TxidChanged(changed),)
