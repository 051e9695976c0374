"""The keys that sign tickets: the newest, and the one before, whose tickets may be in use."""

from metadata.catalog.commands import RotateTicketKey
from metadata.catalog.events import Events, TicketKeysChanged
from metadata.catalog.tables import TICKET_KEYS_MAX, Tables


def rotate_ticket_key(tables: Tables, command: RotateTicketKey) -> Events:
    """Let a new key sign; where another than the expected one is the newest, somebody else was first."""
    known = [key.key_id for key in tables.ticket_keys]
    if command.expected == (known[-1] if known else None) and command.key.key_id not in known:
        kept = () if command.revoke else tables.ticket_keys[1 - TICKET_KEYS_MAX :]
        tables.ticket_keys = (*kept, command.key)
    return (TicketKeysChanged(tables.ticket_keys),)
