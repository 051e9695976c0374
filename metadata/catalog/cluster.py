"""Commands for the whole cluster: its id, the keys that sign tickets, numbers that an operator chooses."""

from dataclasses import replace

from envelope.errors import InvalidConfig
from metadata.catalog.commands import NameCluster, RotateTicketKey, SetDefaultReplicas, SetVoters
from metadata.catalog.events import ClusterChanged, Events, TicketKeysChanged, refused
from metadata.catalog.tables import TICKET_KEYS_MAX, Tables, is_cluster_id
from metadata.limits import REPLICAS_MAX, VOTERS_ALLOWED


def rotate_ticket_key(tables: Tables, command: RotateTicketKey) -> Events:
    """Let a new key sign; where another than the expected one is the newest, somebody else was first."""
    known = [key.key_id for key in tables.ticket_keys]
    if command.expected == (known[-1] if known else None) and command.key.key_id not in known:
        kept = () if command.revoke else tables.ticket_keys[1 - TICKET_KEYS_MAX :]
        tables.ticket_keys = (*kept, command.key)
    return (TicketKeysChanged(tables.ticket_keys),)


def set_default_replicas(tables: Tables, command: SetDefaultReplicas) -> Events:
    """Put the number in force for streams that are created from now on."""
    if not 1 <= command.replicas <= REPLICAS_MAX:
        text = f"default_replicas: {command.replicas} is not 1 to {REPLICAS_MAX}"
        return refused(InvalidConfig, text, field="default_replicas")
    tables.cluster = replace(tables.cluster, default_replicas=command.replicas)
    return (ClusterChanged(tables.cluster),)


def set_voters(tables: Tables, command: SetVoters) -> Events:
    """Say how many voters the metadata group should have; None: the controller's default."""
    if command.voters is not None and command.voters not in VOTERS_ALLOWED:
        text = f"voters: {command.voters} is none of {', '.join(map(str, VOTERS_ALLOWED))}"
        return refused(InvalidConfig, text, field="voters")
    tables.cluster = replace(tables.cluster, voters_wanted=command.voters)
    return (ClusterChanged(tables.cluster),)


def name_cluster(tables: Tables, command: NameCluster) -> Events:
    """Give the cluster its id, once; a later one changes nothing."""
    if not is_cluster_id(command.cluster_id):
        text = f"cluster_id: {command.cluster_id!r} is not 32 hexadecimal digits"
        return refused(InvalidConfig, text, field="cluster_id")
    if tables.cluster.cluster_id is None:
        tables.cluster = replace(tables.cluster, cluster_id=command.cluster_id)
    return (ClusterChanged(tables.cluster),)
