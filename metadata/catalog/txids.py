"""The last txid that an operator has said: by the stream's leader, which knows where its log ends."""

from dataclasses import replace

from metadata.catalog.commands import SetTxid
from metadata.catalog.events import Events, TxidChanged
from metadata.catalog.leadership import led_stream
from metadata.catalog.tables import Stream, Tables, TxidSet


def set_txid(tables: Tables, command: SetTxid) -> Events:
    """Let the txid be the last one from that offset on, if its proposer still leads."""
    stream = led_stream(tables, command)
    if not isinstance(stream, Stream):
        return stream
    changed = replace(stream, txid_set=TxidSet(command.leader_epoch, command.offset, command.txid))
    tables.put(changed)
    return (TxidChanged(changed),)
