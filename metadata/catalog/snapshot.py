"""A whole catalogue as bytes: equal catalogues are equal bytes, and damaged bytes are refused.

    offset size field
    0      4    magic ``JSCS``
    4      4    format version, u32 little-endian
    8      8    length of the body in bytes, u64 little-endian
    16     4    CRC32C of everything else: bytes 0 to 16 and the body
    20     -    body: JSON with sorted keys and no spaces; rows ordered by their key

Source: RFC 3720 appendix B.4 (CRC32C).
"""

import json
import struct
from dataclasses import dataclass
from typing import ClassVar, Final

from crc32c import crc32c
from pydantic import ConfigDict, TypeAdapter, ValidationError

from envelope.errors import CorruptDataError, JetstreamError
from envelope.types import LogIndex, NodeEpoch
from metadata.catalog.catalog import Catalog
from metadata.catalog.commands import canonical_json
from metadata.catalog.tables import (
    ClusterRow,
    RegisteredNode,
    Removal,
    Stream,
    Tables,
    partitions_of,
    uses_of,
)
from metadata.features import refuse_newer
from metadata.limits import REPLICAS_DEFAULT, SNAPSHOT_BYTES_MAX
from metadata.namespaces import Namespace, NamespaceTable
from metadata.tickets import TicketKey

_FORMAT_OF_LEVEL_0: Final = 9
"""Each feature level above has the next format: a node that is too old knows from it how far the cluster is.

Format 1 knew no racks and no addresses for peers: its nodes have none. Format 2 knew no reassignments,
format 3 neither read replicas nor what an unclean election leaves behind, and no forgotten nodes, format 4
no object store, format 5 no partitions, format 6 not which streams have begun: all of its have. Format 7
knew no txids that operators set, format 8 neither keys of tickets nor limits of namespaces, format 9 no
default number of replicas: it was 1, and neither a number of voters nor an id of the cluster."""
_FIELDS_OF_LEVEL_1: Final = {"default_replicas", "voters_wanted", "cluster_id"}

MAGIC: Final = b"JSCS"

_PREFIX: Final = struct.Struct("<4sIQ")
_CRC: Final = struct.Struct("<I")
HEADER_BYTES: Final = _PREFIX.size + _CRC.size


@dataclass(frozen=True, slots=True, kw_only=True)
class _Body:
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    applied: LogIndex
    nodes: tuple[RegisteredNode, ...]
    streams: tuple[Stream, ...]
    removals: tuple[Removal, ...]
    forgotten_epoch: NodeEpoch = NodeEpoch(0)  # noqa: RUF009 - a number
    ticket_keys: tuple[TicketKey, ...] = ()
    namespaces: tuple[Namespace, ...] = ()
    default_replicas: int = REPLICAS_DEFAULT
    voters_wanted: int | None = None
    cluster_id: str | None = None


_BODY: Final = TypeAdapter(_Body)


def encode(catalog: Catalog) -> bytes:
    """Return the snapshot of ``catalog``, in the format of its feature level."""
    level = catalog.cluster.feature_level
    body = canonical_json(
        _BODY.dump_python(
            _Body(
                applied=catalog.applied,
                nodes=catalog.nodes(),
                streams=catalog.streams(),
                removals=catalog.removals(),
                forgotten_epoch=catalog.forgotten_epoch,
                ticket_keys=catalog.ticket_keys,
                namespaces=catalog.namespaces.limited(),
                default_replicas=catalog.cluster.default_replicas,
                voters_wanted=catalog.cluster.voters_wanted,
                cluster_id=catalog.cluster.cluster_id,
            ),
            mode="json",
            exclude=None if level else _FIELDS_OF_LEVEL_1,
        )
    )
    assert len(body) <= SNAPSHOT_BYTES_MAX, f"snapshot of {len(body)} bytes"
    prefix = _PREFIX.pack(MAGIC, _FORMAT_OF_LEVEL_0 + level, len(body))
    return b"".join((prefix, _CRC.pack(_checksum(prefix, body)), body))


def decode(snapshot: bytes) -> Catalog:
    """Return the catalogue that ``snapshot`` holds.

    Raises:
        CorruptDataError: a byte differs from what `encode` wrote, or the rows break an invariant. A
            damaged catalogue is never read in part: what it leaves out would look deleted.
        UnsupportedFeatureLevel: a newer version has written it.
    """
    if len(snapshot) < HEADER_BYTES:
        raise CorruptDataError(f"catalogue snapshot of {len(snapshot)} bytes has no header")
    prefix, body = snapshot[: _PREFIX.size], snapshot[HEADER_BYTES:]
    magic, version, length = _PREFIX.unpack(prefix)
    (crc,) = _CRC.unpack_from(snapshot, _PREFIX.size)
    if magic != MAGIC or length != len(body) or crc != _checksum(prefix, body):
        raise CorruptDataError(f"catalogue snapshot of {len(snapshot)} bytes fails its checksum")
    if version == 0:
        raise CorruptDataError("catalogue snapshot has format 0, and there is none")
    level = max(version - _FORMAT_OF_LEVEL_0, 0)
    refuse_newer(level)
    return _catalog(_read(body), level)


def _read(body: bytes) -> _Body:
    try:
        return _BODY.validate_python(json.loads(body))
    except (ValidationError, JetstreamError, ValueError, RecursionError) as error:
        raise CorruptDataError(f"catalogue snapshot cannot be read: {error}") from error


def _catalog(body: _Body, level: int) -> Catalog:
    tables = Tables(
        nodes={node.node_id: node for node in body.nodes},
        streams={stream.name: stream for stream in body.streams},
        removals={removal.incarnation: removal for removal in body.removals},
        forgotten_epoch=body.forgotten_epoch,
        ticket_keys=body.ticket_keys,
        cluster=ClusterRow(
            feature_level=level,
            default_replicas=body.default_replicas,
            voters_wanted=body.voters_wanted,
            cluster_id=body.cluster_id,
        ),
        incarnations={stream.incarnation for stream in body.streams},
        partitions=partitions_of(body.streams),
        namespaces=NamespaceTable({row.name: row for row in body.namespaces}, uses_of(body.streams)),
    )
    problems = tables.problems()
    if len(tables.nodes) != len(body.nodes) or len(tables.streams) != len(body.streams):
        problems.append("a row is there twice")
    if len(tables.removals) != len(body.removals):
        problems.append("a removal is there twice")
    if len(tables.namespaces.rows) != len(body.namespaces):
        problems.append("a namespace is there twice")
    if body.forgotten_epoch < 0:
        problems.append(f"forgotten epoch {body.forgotten_epoch}")
    if body.applied < 0:
        problems.append(f"applied index {body.applied}")
    if problems:
        raise CorruptDataError("catalogue snapshot contradicts itself: " + "; ".join(problems[:3]))
    return Catalog(tables, body.applied)


def _checksum(prefix: bytes, body: bytes) -> int:
    return crc32c(body, crc32c(prefix))
