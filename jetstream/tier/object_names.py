"""The names of objects, by which a listing alone identifies them.

    <stream>@<incarnation>/<base>-<next>-<epoch>-<SHA-256>.arrows
    <stream>@<incarnation>/manifest-<version>-<epoch>-<SHA-256>.json

Numbers have 20 decimal digits, the hash 64 hexadecimal ones. The epoch is that of the reign whose leader
wrote the object: a deposed leader deletes nothing of a later reign, whatever it believes.
"""

import re
from dataclasses import dataclass
from typing import Final

from envelope.types import LeaderEpoch, Offset

SEGMENT_ENDING: Final = ".arrows"
_SEGMENT: Final = re.compile(r"(\d{20})-(\d{20})-(\d{20})-([0-9a-f]{64})\.arrows")
_MANIFEST: Final = re.compile(r"manifest-(\d{20})-(\d{20})-([0-9a-f]{64})\.json")


@dataclass(frozen=True, slots=True)
class SegmentName:
    """The name of a segment's object."""

    base: Offset
    next: Offset
    epoch: LeaderEpoch
    sha256: str

    def __str__(self) -> str:
        return f"{self.base:020d}-{self.next:020d}-{self.epoch:020d}-{self.sha256}{SEGMENT_ENDING}"


@dataclass(frozen=True, slots=True)
class ManifestName:
    """The name of a manifest's object."""

    version: int
    epoch: LeaderEpoch
    sha256: str

    def __str__(self) -> str:
        return f"manifest-{self.version:020d}-{self.epoch:020d}-{self.sha256}.json"


def parsed_name(path: str) -> SegmentName | ManifestName | None:
    """Return the name in ``path``; None: no object of ours."""
    name = path.rpartition("/")[2]
    found = _SEGMENT.fullmatch(name)
    if found is not None:
        return SegmentName(Offset(int(found[1])), Offset(int(found[2])), LeaderEpoch(int(found[3])), found[4])
    found = _MANIFEST.fullmatch(name)
    if found is not None:
        return ManifestName(int(found[1]), LeaderEpoch(int(found[2])), found[3])
    return None
