"""Limits of namespaces under any commands: nothing grows beyond one, and their use is that of the rows."""

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from envelope.subjects import covers, matches
from envelope.types import Incarnation, NodeId, StreamName, TimestampUs
from metadata.catalog import snapshot
from metadata.catalog.catalog import Catalog
from metadata.catalog.commands import (
    CancelReassignment,
    Command,
    CreateStream,
    DeleteStream,
    FinishReassignment,
    LimitNamespace,
    ReassignReplicas,
)
from metadata.catalog.events import CommandRefused, StreamCreated
from metadata.namespaces import NamespaceLimits
from metadata.stream_config import Retention, StreamConfig
from tests.support.catalogs import CREATED, apply, catalog_of, register, update
from tests.support.example_counts import examples

NODES = ("n1", "n2", "n3")
NAMESPACES = ("", "a", "a/b")
NAMES = ("a/x", "a/b/x", "a/b/y", "d")
MINUTE = 60_000_000
SEGMENT = 1 << 20

Change = tuple[str, str, int, int, int]
"""What is done, to which stream, with how many kept bytes in segments, in how many copies, after how long."""

changes = st.tuples(
    st.sampled_from(("create", "create", "keep", "bind", "move", "finish", "cancel", "delete")),
    st.sampled_from(NAMES),
    st.sampled_from((0, 1, 1, 2, 3)),
    st.integers(1, 3),
    st.sampled_from((-3 * MINUTE, -1, 0, 0, 1, MINUTE // 3, MINUTE, 2 * MINUTE)),
)
limitings = st.builds(
    LimitNamespace,
    st.sampled_from(NAMESPACES),
    st.sampled_from(
        (
            NamespaceLimits(streams=2),
            NamespaceLimits(streams=None, bytes=None, creations_per_minute=None),
            NamespaceLimits(bytes=9 * SEGMENT),
            NamespaceLimits(bytes=9 * SEGMENT),
            NamespaceLimits(creations_per_minute=3),
            NamespaceLimits(subjects=("a.>",)),
            NamespaceLimits(subjects=None),
        )
    ),
)
steps = st.lists(st.one_of(limitings, changes, changes, changes), min_size=10, max_size=40)


def command_of(catalog: Catalog, change: Change, life: int, now: TimestampUs) -> Command:
    kind, name, kept, copies, _ = change
    row = catalog.stream(StreamName(name))
    nodes = tuple(NodeId(node) for node in NODES[:copies])
    subject = ("a.x", "a.*", "b", ">")[kept] if kind != "create" else "a.x"
    if row is None or kind == "create":
        return CreateStream(
            config=StreamConfig(
                name=name,
                subject=subject,
                replicas=copies,
                ack="none",
                segment_bytes=SEGMENT,
                retention=Retention(bytes=kept * SEGMENT or None),
            ),
            incarnation=Incarnation(f"life-{life}"),
            created=now,
            replicas=nodes,
            leader=nodes[0],
        )
    changed: dict[str, Command] = {
        "keep": update(name, retention={"bytes": kept * SEGMENT or None}),
        "bind": update(name, subject=subject),
        "move": ReassignReplicas(row.name, row.incarnation, nodes),
        "finish": FinishReassignment(row.name, row.incarnation, row.isr_version, row.leader_epoch),
        "cancel": CancelReassignment(row.name, row.incarnation),
        "delete": DeleteStream(row.name),
    }
    return changed[kind]


def recounted(catalog: Catalog, namespace: str) -> tuple[int, int]:
    """Streams and reserved bytes of a namespace, by its rows."""
    found = [row for row in catalog.streams() if not namespace or row.name.startswith(f"{namespace}/")]
    copies = [max(row.config.replicas, len(row.target or ())) + row.config.read_replicas for row in found]
    kept = [
        0 if row.config.retention.bytes is None else row.config.retention.bytes + SEGMENT for row in found
    ]
    return len(found), sum(count * size for count, size in zip(copies, kept, strict=True))


@settings(max_examples=examples(300))
@given(steps)
def test_nothing_grows_beyond_a_limit_and_the_use_is_what_the_streams_are(
    given_steps: list[LimitNamespace | Change],
) -> None:
    catalog = catalog_of(*(register(node) for node in NODES))
    now = CREATED
    for number, step in enumerate(given_steps):
        if not isinstance(step, LimitNamespace):
            now = TimestampUs(now + step[4])
        command = step if isinstance(step, LimitNamespace) else command_of(catalog, step, number, now)
        before = {name: recounted(catalog, name) for name in NAMESPACES}
        bound = {row.name: row.config.subject for row in catalog.streams()}
        rows = catalog.namespaces.limited()
        events = apply(catalog, command)
        catalog.audit()
        if isinstance(events[0], CommandRefused):
            assert catalog.namespaces.limited() == rows, "a refusal counts nothing"
            events[0].exception()
        for name in NAMESPACES:
            use, allowed = catalog.namespaces.uses.of(name), catalog.namespaces.limits_of(name)
            assert (use.streams, use.bytes) == recounted(catalog, name)
            if use.streams > before[name][0]:
                assert allowed.streams is None or use.streams <= allowed.streams
            if use.bytes > before[name][1]:
                assert allowed.bytes is None or use.bytes <= allowed.bytes
            for row in catalog.streams():
                if (
                    row.name.startswith(f"{name}/" if name else "")
                    and bound.get(row.name) != row.config.subject
                ):
                    assert allowed.allows_subject(row.config.subject)
        assert snapshot.encode(snapshot.decode(snapshot.encode(catalog))) == snapshot.encode(catalog)


@settings(max_examples=examples(200))
@given(st.integers(1, 5), st.lists(st.integers(0, MINUTE), max_size=60))
def test_no_time_sees_more_creations_than_a_minute_allows_and_its_share(rate: int, waits: list[int]) -> None:
    """A bucket of so many creations, filled evenly; nobody waits longer than for the share of one."""
    catalog = catalog_of(register(), LimitNamespace("c", NamespaceLimits(creations_per_minute=rate)))
    now, created = CREATED, []
    for number, wait_us in enumerate(waits):
        now = TimestampUs(now + wait_us)
        event = apply(catalog, creation(number, now))[0]
        if isinstance(event, CommandRefused):
            wait_ms = event.exception().detail["retry_after_ms"]
            assert isinstance(wait_ms, int)
            assert 0 < wait_ms <= MINUTE // rate // 1000 + 1
            now = TimestampUs(now + wait_ms * 1000)
            event = apply(catalog, creation(number, now))[0]
        assert isinstance(event, StreamCreated)
        created.append(now)
    for first in range(len(created)):
        for last in range(first, len(created)):
            seconds = created[last] - created[first]
            assert (last - first + 1 - rate) * MINUTE <= rate * seconds


@settings(max_examples=examples(200))
@given(st.integers(1, 5), st.lists(st.integers(0, 60 * 24 * MINUTE), min_size=1, max_size=20))
def test_whatever_the_clocks_say_nobody_waits_longer_than_two_minutes(rate: int, times: list[int]) -> None:
    catalog = catalog_of(register(), LimitNamespace("c", NamespaceLimits(creations_per_minute=rate)))
    for number, time in enumerate(times):
        event = apply(catalog, creation(number, TimestampUs(CREATED + time)))[0]
        if isinstance(event, CommandRefused):
            assert event.exception().detail["retry_after_ms"] in range(1, 120_001)


def creation(number: int, now: TimestampUs) -> CreateStream:
    return CreateStream(
        config=StreamConfig(name=f"c/{number}", subject="c"),
        incarnation=Incarnation(f"life-{number}"),
        created=now,
        replicas=(NodeId("n1"),),
        leader=NodeId("n1"),
    )


# All subjects of up to four tokens, of which one is in no pattern; patterns have up to three.
SUBJECTS = [".".join(tokens) for length in range(1, 5) for tokens in product("abz", repeat=length)]
_heads = st.lists(st.sampled_from(("a", "b", "*")), max_size=2)
patterns = st.builds(
    lambda head, last: ".".join([*head, last]), _heads, st.sampled_from(("a", "b", "*", ">"))
)


@settings(max_examples=examples(500))
@given(patterns, patterns)
def test_a_pattern_covers_another_if_it_matches_all_that_the_other_does(pattern: str, inner: str) -> None:
    expected = all(matches(pattern, subject) for subject in SUBJECTS if matches(inner, subject))
    assert covers(pattern, inner) == expected
