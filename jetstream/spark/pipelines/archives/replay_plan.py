"""The pieces of an archive that are published again, and how far that has come; pure.

A piece is published in a session of its own, whose name has the piece's first offset and the life of its
stream: an archive that was made anew of a stream that was created again has other records there. Publishing
a piece again, with the same rows in the same order, adds nothing. So the pieces are fixed
when a replay begins: rows that the archive gets later are published once it is complete.
"""

from dataclasses import dataclass, field, replace
from typing import ClassVar, Final, NamedTuple
from urllib.parse import quote

from pydantic import ConfigDict, TypeAdapter, ValidationError

from envelope.errors import CorruptDataError, InvalidConfig
from jetstream.log.disk.state_file import Json
from jetstream.spark.pipelines.archives.archive_files import STATE_DIRECTORY, ArchiveManifest

PIECE_OFFSETS: Final = 1 << 20
"""What one task sorts and publishes, between two looks at whether to stop."""
_DIRECTORY: Final = f"{STATE_DIRECTORY}/replays"
_INCARNATION_CHARACTERS: Final = 12
"""Of a life, in the name of a session, which has 128 at most."""


class ReplayRange(NamedTuple):
    """Records of one stream, of offsets ``[start, end)``."""

    stream: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Replay:
    """The progress of a replay.

    Attributes:
        session: begins the names of its sessions.
        subject: that records are published on; ``{subject}`` stands for their own.
        stream: whose acks are awaited; None: the only one that binds the subject.
        ends: of each stream, the first offset that is not part of it.
        reached: of each stream, the first offset that is not known to be published.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    session: str
    subject: str
    stream: str | None
    ends: dict[str, int] = field(default_factory=dict)
    reached: dict[str, int] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """Where an archive keeps it."""
        return f"{_DIRECTORY}/{quote(self.session, safe='')}.json"

    @property
    def left(self) -> int:
        """Offsets that are to be published."""
        return sum(end - self.reached[name] for name, end in self.ends.items())

    def resumed(self, stored: "Replay | None", manifest: ArchiveManifest) -> "Replay":
        """Return the replay to go on with: one that was begun is finished first.

        Raises:
            InvalidConfig: it was begun with another subject or stream.
        """
        if stored is None:
            return self.extended(manifest)
        if (stored.subject, stored.stream) != (self.subject, self.stream):
            raise InvalidConfig(
                f"the replay {self.session} was begun with subject {stored.subject} and stream "
                f"{stored.stream}: another one needs another session"
            )
        return stored if stored.left else stored.extended(manifest)

    def extended(self, manifest: ArchiveManifest) -> "Replay":
        """Return the replay with all that the archive has now."""
        ends = {name: kept.end for name, kept in manifest.streams.items()}
        starts = {name: kept.start for name, kept in manifest.streams.items()}
        return replace(self, ends=ends, reached=starts | self.reached)

    def next_piece(self) -> ReplayRange | None:
        """Return the piece to publish next, None at the end."""
        for name in sorted(self.ends):
            start, end = self.reached[name], self.ends[name]
            if start < end:
                return ReplayRange(name, start, min(start + PIECE_OFFSETS, end))
        return None

    def session_of(self, piece: ReplayRange, incarnation: str) -> str:
        """Return the name of the session of a piece of a stream in that life."""
        return f"{self.session}/{piece.stream}/{incarnation[:_INCARNATION_CHARACTERS]}/{piece.start}"

    def after(self, piece: ReplayRange) -> "Replay":
        """Return how far it is when ``piece`` is published."""
        return replace(self, reached=self.reached | {piece.stream: piece.end})


_REPLAY: Final = TypeAdapter(Replay)


def encode_replay(replay: Replay) -> dict[str, Json]:
    """Return the content of a replay's state file."""
    content: dict[str, Json] = _REPLAY.dump_python(replay, mode="json")
    return content


def decode_replay(content: dict[str, Json]) -> Replay:
    """Return the replay in a state file.

    Raises:
        CorruptDataError: it is none.
    """
    try:
        found = _REPLAY.validate_python(content)
    except ValidationError as error:
        raise CorruptDataError(f"how far a replay is cannot be read: {error}") from error
    if found.ends.keys() != found.reached.keys() or found.left < 0:
        raise CorruptDataError(f"a replay contradicts itself: {found}")
    return found
