"""The last txid that an operator has said: by the stream's leader, which knows where its log ends."""

from dataclasses import replace

from metadata.catalog.commands import SetTxid
from metadata.catalog.events import Events, TxidChanged
from metadata.catalog.leadership import deposed
from metadata.catalog.streams import stream_in_life, unknown_stream
from metadata.catalog.tables import Tables, TxidSet


def set_txid(tables: Tables, command: SetTxid) -> Events:
    """Let the txid be the last one from that offset on, if its proposer still leads."""
    stream = stream_in_life(tables, command.stream, command.incarnation)
    if stream is None:
        return unknown_stream(command.stream)
    refusal = deposed(stream, command.leader, command.leader_epoch)
    if refusal is not None:
        return refusal
    changed = replace(stream, txid_set=TxidSet(command.leader_epoch, command.offset, command.txid))
    tables.put(changed)
    return (TxidChanged(changed),)
