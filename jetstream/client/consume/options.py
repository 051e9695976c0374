"""The options of a consumer."""

import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypedDict, TypeVar, get_args

from consumer_groups.assignment.assignors import Assignor
from consumer_groups.assignment.partitions import InstanceId
from consumer_groups.coordinator.group_state import ClientId
from consumer_groups.member.member import Terms
from envelope.errors import RequestError
from envelope.limits import (
    MEMBER_STREAMS_MAX,
    MEMBER_WORD_BYTES_MAX,
    MIB,
    REBALANCE_TIMEOUT_MS_MAX,
    SESSION_TIMEOUT_MS_MAX,
    SESSION_TIMEOUT_MS_MIN,
)
from envelope.subjects import validated_stream_name
from envelope.types import NodeId, StreamName
from jetstream.client.nodes.replica_choice import Locality, ReadFrom, ReadPreference
from jetstream.client.read.fetch_pipeline import Wanted
from jetstream.client.read.places import Start
from jetstream.client.read.read_range import ReadRange
from jetstream.protocol.requests import Column

CommitMode = Literal["auto", "before", "manual"]
Reset = Literal["earliest", "latest"]
PartitionsTold = Callable[[list[str]], Awaitable[None] | None]
"""Called with the names of streams: of a partitioned stream its partitions, ``orders/2``."""

Word = TypeVar("Word", bound=str)
Number = TypeVar("Number", int, float)

COMMIT_INTERVAL_S_DEFAULT: Final = 5.0
SESSION_TIMEOUT_S_DEFAULT: Final = 10.0
REBALANCE_TIMEOUT_S_DEFAULT: Final = 60.0
PREFETCH_BYTES_DEFAULT: Final = 64 * MIB
_AHEAD_DEFAULT: Final = 1_000
_NS: Final = 1_000_000_000


class ConsumeOptions(TypedDict, total=False):
    """How a consumer reads, commits, and shares with the other members of its group."""

    commit: CommitMode
    """``"auto"`` (the default): in the background, what is processed: at least once. ``"before"``: before it
    is handed out: at most once. ``"manual"``: by `Consumer.commit` alone."""
    commit_interval_s: float
    """``auto``: so often; 5 seconds by default."""
    commit_records: int | None
    """``auto``: also after so many records. ``before``: so many are committed at a time, 1,000 by default."""
    start: Start
    """Where the group has no cursor: ``"earliest"`` (the default), ``"latest"``, or what `js.read` takes."""
    reset: Reset | None
    """Where to go on if the cursor's offset is not in the stream any more, or the stream was created again;
    None (the default): that is an error."""
    session_timeout_s: float
    """How long the coordinator waits for a sign of life before others get the partitions; 10 by default."""
    rebalance_timeout_s: float
    """How long a member has to give up a partition before it is put out; 60 by default. It does so when the
    application asks for the record after the one that it works on."""
    processing_timeout_s: float | None
    """If the application does not ask for the next record for so long, the member leaves the group until it
    does; None (the default): a record may take for ever."""
    instance: str | None
    """A name of this member that its next process has too: started again within the session timeout it has
    the same partitions, and nothing moves."""
    assignor: Assignor | Literal["sticky", "range", "round_robin"]
    """How the group shares partitions out; all of its members want the same."""
    node: str | None
    """The node that this member is next to: it rather gets partitions that are there, and reads them there
    rather than elsewhere."""
    rack: str | None
    """The rack that it stands in, likewise."""
    read_from: ReadFrom
    """As for `js.read`."""
    subject: str
    """As for `js.read`; what is left out counts as processed."""
    key: str
    """As for `js.read`."""
    columns: Sequence[Column]
    """As for `js.read`."""
    prefetch_bytes: int
    """Fetched ahead of the application, of all partitions together; of one an eighth of it at most. 64 MiB by
    default."""
    on_assigned: PartitionsTold | None
    """Partitions are this member's; called before anything of them is handed out. May `Consumer.seek`."""
    on_revoked: PartitionsTold | None
    """Partitions are to be given up: nothing more of them is handed out; called before the last commit."""
    on_lost: PartitionsTold | None
    """Partitions were taken away, and nothing can be committed for them: others may have them already."""


@dataclass(frozen=True, slots=True)
class Callbacks:
    """The application's callbacks for partitions that come and go."""

    on_assigned: PartitionsTold | None = None
    on_revoked: PartitionsTold | None = None
    on_lost: PartitionsTold | None = None


@dataclass(frozen=True, slots=True)
class ConsumeSettings:
    """The options of a consumer, checked."""

    group: str
    streams: frozenset[StreamName]
    terms: Terms
    commit: CommitMode
    commit_interval_s: float
    commit_records: int | None
    start: Start
    reset: Reset | None
    processing_timeout_s: float | None
    preference: ReadPreference
    wanted: Wanted
    prefetch_bytes: int
    callbacks: Callbacks

    @property
    def session_timeout_s(self) -> float:
        """How long the coordinator waits for a sign of life."""
        return self.terms.session_timeout_ns / _NS


def consume_settings(streams: str | Sequence[str], group: str, options: ConsumeOptions) -> ConsumeSettings:
    """Return the options, checked.

    Raises:
        RequestError: an option, or a combination, is invalid.
        InvalidName: of the group or of a stream.
    """
    terms = _terms(options)
    names = [streams] if isinstance(streams, str) else list(streams)
    if not 0 < len(names) <= MEMBER_STREAMS_MAX:
        raise RequestError(f"{len(names)} streams: from 1 to {MEMBER_STREAMS_MAX} can be")
    validated_stream_name(group)
    commit = _one_of("commit", options.get("commit", "auto"), get_args(CommitMode))
    reset = options.get("reset")
    if reset is not None:
        _one_of("reset", reset, get_args(Reset))
    columns = options.get("columns")
    wanted = Wanted(options.get("subject"), options.get("key"), None if columns is None else tuple(columns))
    start = options.get("start", "earliest")
    checked = [
        ReadRange(validated_stream_name(name), start, follow=True, wanted=wanted).validated()
        for name in names
    ]
    return ConsumeSettings(
        group=group,
        streams=frozenset(StreamName(each.stream) for each in checked),
        terms=terms,
        commit=commit,
        commit_interval_s=_positive(
            "commit_interval_s", options.get("commit_interval_s", COMMIT_INTERVAL_S_DEFAULT)
        ),
        commit_records=_commit_records(commit, options.get("commit_records")),
        start=start,
        reset=reset,
        processing_timeout_s=_processing_timeout_s(options),
        preference=ReadPreference(
            _one_of("read_from", options.get("read_from", "auto"), get_args(ReadFrom)),
            Locality(terms.node, terms.rack),
        ),
        wanted=wanted,
        prefetch_bytes=_positive("prefetch_bytes", options.get("prefetch_bytes", PREFETCH_BYTES_DEFAULT)),
        callbacks=Callbacks(options.get("on_assigned"), options.get("on_revoked"), options.get("on_lost")),
    )


def _terms(options: ConsumeOptions) -> Terms:
    for name in ("instance", "node", "rack"):
        word = options.get(name)
        if word is not None and not (isinstance(word, str) and _is_word(word)):
            raise RequestError(f"{name}: {word!r}: 1 to {MEMBER_WORD_BYTES_MAX} bytes, all printable")
    assignors = tuple(each.value for each in Assignor)
    assignor = Assignor(_one_of("assignor", options.get("assignor", Assignor.STICKY), assignors))
    session_s = _seconds(
        "session_timeout_s",
        options.get("session_timeout_s", SESSION_TIMEOUT_S_DEFAULT),
        SESSION_TIMEOUT_MS_MAX,
    )
    rebalance_s = _seconds(
        "rebalance_timeout_s",
        options.get("rebalance_timeout_s", REBALANCE_TIMEOUT_S_DEFAULT),
        REBALANCE_TIMEOUT_MS_MAX,
    )
    instance, node = options.get("instance"), options.get("node")
    return Terms(
        client=ClientId(uuid.uuid4().hex),
        session_timeout_ns=int(session_s * _NS),
        rebalance_timeout_ns=int(rebalance_s * _NS),
        instance_id=None if instance is None else InstanceId(instance),
        assignor=assignor,
        node=None if node is None else NodeId(node),
        rack=options.get("rack"),
    )


def _is_word(word: str) -> bool:
    return word.isprintable() and 0 < len(word.encode("utf-8", "surrogatepass")) <= MEMBER_WORD_BYTES_MAX


def _one_of(name: str, value: Word, words: tuple[str, ...]) -> Word:
    if value not in words:
        raise RequestError(f"{name}: {value!r}: there are {', '.join(words)}")
    return value


def _seconds(name: str, value: float, ms_max: int) -> float:
    if not SESSION_TIMEOUT_MS_MIN <= 1000 * value <= ms_max:
        raise RequestError(
            f"{name}: {value!r}: from {SESSION_TIMEOUT_MS_MIN / 1000:g} to {ms_max / 1000:g} can be"
        )
    return value


def _positive(name: str, value: Number) -> Number:
    if not value > 0:
        raise RequestError(f"{name}: {value!r}: above 0")
    return value


def _commit_records(mode: CommitMode, records: int | None) -> int | None:
    if records is not None:
        return _positive("commit_records", records)
    return _AHEAD_DEFAULT if mode == "before" else None


def _processing_timeout_s(options: ConsumeOptions) -> float | None:
    timeout_s = options.get("processing_timeout_s")
    return None if timeout_s is None else _positive("processing_timeout_s", timeout_s)
