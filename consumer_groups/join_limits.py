"""What a join may ask for."""

from collections.abc import Iterator

from consumer_groups.coordinator_events import Join, Refusal
from envelope.errors import InvalidConfig, InvalidName, LimitReached
from envelope.limits import (
    MEMBER_CLAIMS_MAX,
    MEMBER_STREAMS_MAX,
    MEMBER_WORD_BYTES_MAX,
    REBALANCE_TIMEOUT_MS_MAX,
    SESSION_TIMEOUT_MS_MAX,
    SESSION_TIMEOUT_MS_MIN,
)
from envelope.subjects import validated_stream_name

_MS = 1_000_000


def value_refusal(join: Join) -> Refusal | None:
    """Return what of the join is outside its limits, if anything is."""
    return next(_problems(join), None)


def _problems(join: Join) -> Iterator[Refusal]:
    words = (join.client, join.instance_id, join.node, join.rack)
    for word in words:
        if word is not None and not _is_word(word):
            yield Refusal(
                InvalidName, f"{word!r}: a name has 1 to {MEMBER_WORD_BYTES_MAX} bytes, all printable"
            )
    if not join.streams:
        yield Refusal(InvalidConfig, "a member subscribes to at least one stream")
    if len(join.streams) > MEMBER_STREAMS_MAX:
        text = f"{len(join.streams)} streams; a member subscribes to {MEMBER_STREAMS_MAX} at most"
        yield Refusal(LimitReached, text)
    if len(join.owned) > MEMBER_CLAIMS_MAX:
        yield Refusal(LimitReached, f"{len(join.owned)} claims, the limit is {MEMBER_CLAIMS_MAX}")
    yield from _problems_of_names(join)
    yield from _problems_of_times(join)


def _is_word(word: str) -> bool:
    return word.isprintable() and 0 < len(word.encode("utf-8", "surrogatepass")) <= MEMBER_WORD_BYTES_MAX


def _problems_of_names(join: Join) -> Iterator[Refusal]:
    for name in sorted(join.streams):
        try:
            validated_stream_name(name)
        except InvalidName as error:
            yield Refusal(InvalidName, error.description)


def _problems_of_times(join: Join) -> Iterator[Refusal]:
    session_ms, rebalance_ms = join.session_timeout_ns / _MS, join.rebalance_timeout_ns / _MS
    if not SESSION_TIMEOUT_MS_MIN <= session_ms <= SESSION_TIMEOUT_MS_MAX:
        limits = f"{SESSION_TIMEOUT_MS_MIN} to {SESSION_TIMEOUT_MS_MAX}"
        text = f"a session timeout of {session_ms:g} ms; {limits} can be"
        yield Refusal(InvalidConfig, text)
    if not 0 < rebalance_ms <= REBALANCE_TIMEOUT_MS_MAX:
        text = f"a rebalance timeout of {rebalance_ms:g} ms; up to {REBALANCE_TIMEOUT_MS_MAX} can be"
        yield Refusal(InvalidConfig, text)
