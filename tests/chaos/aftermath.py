"""What must be so when all is mended: the cluster is whole, its files say what its clients heard."""

import asyncio
import hashlib
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from nats.aio.client import Client

from envelope.errors import JetstreamError, UnknownStream
from jetstream.log.disk.os_disk import OsDisk
from jetstream.log.format.batch import decode, iter_frames
from jetstream.log.format.schema import SCHEMA_MESSAGE
from jetstream.log.inspection import ProblemKind, inspect_stream
from tests.chaos.administrator import Churned
from tests.chaos.cluster import ChaosCluster, asked, passes, until_answered
from tests.chaos.publishers import Publisher
from tests.chaos.readers import drain, seen
from tests.chaos.recorder import Recorder
from tests.support.history import Drained, Read

_END_OF_STREAM: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_NO_VOTE: Final = "this voter has no vote"
WHOLE_SECONDS: Final = 60.0
"""How long a mended cluster may take until every stream is led and all of its replicas are in sync."""
_READ_BACK_SECONDS: Final = 0.001
"""And for each record: a node that starts reads back the ids of a day."""


def whole_seconds(acked: int) -> float:
    """Return how long a mended cluster with so many records may take until it is whole."""
    return WHOLE_SECONDS + acked * _READ_BACK_SECONDS


def is_whole(info: Mapping[str, Any]) -> bool:
    """Tell whether a stream is led, where it is to be, and in sync everywhere."""
    return (
        info.get("state") == "online"
        and info.get("target") is None
        and sorted(info["isr"]) == sorted(info["replicas"])
    )


async def problems_of_recovery(client: Client, streams: Sequence[str], seconds: float) -> list[str]:
    """Wait until the streams are whole; return what they lack after so long."""
    last: dict[str, Any] = {}
    try:
        async with asyncio.timeout(seconds):
            for stream in streams:
                last = {"name": stream}
                await until_answered(client, is_whole, "stream.info", name=stream)
    except TimeoutError:
        now = await asked(client, "stream.info", 5.0, name=last["name"])
        told = {
            key: now.get(key) for key in ("state", "reason", "leader", "isr", "replicas", "target", "error")
        }
        return [f"{last['name']} is not whole {seconds:.0f} s after all was mended: {told}"]
    return []


async def problems_of_voters(cluster: ChaosCluster) -> list[str]:
    """Wait until every node has a vote, also one that came back empty; return what is said instead."""
    last: dict[str, str] = {}
    try:
        async with asyncio.timeout(WHOLE_SECONDS):
            for name, node in cluster.nodes.items():
                while not (last := {name: await asyncio.to_thread(_health, node.http_port)})[name] or (
                    _NO_VOTE in last[name]
                ):
                    await passes(0.05, asyncio.Event())
    except TimeoutError:
        return [f"not everybody has a vote {WHOLE_SECONDS:.0f} s after all was mended: {last}"]
    return []


def _health(port: int) -> str:
    """Return what a probe is told; nothing while nobody answers it."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=2.0) as page:
            return str(page.read().decode())
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.read().decode()
    except OSError:
        return ""


async def problems_of_churned(client: Client, publisher: Publisher, churned: Sequence[Churned]) -> list[str]:
    """Compare the streams that came and went with what was answered last, and publish to those that are."""
    problems: list[str] = []
    for stream in churned:
        info = await until_answered(
            client,
            lambda answer: (
                "state" in answer or answer.get("error", {}).get("err_code") == UnknownStream.err_code
            ),
            "stream.info",
            name=stream.name,
        )
        if stream.exists != ("state" in info):
            problems.append(f"{stream.name} was {'created' if stream.exists else 'deleted'}, now: {info}")
        elif stream.exists and not await publisher.put(stream.key, stream.subject):
            problems.append(f"{stream.name} takes no message after all was mended")
    return problems


async def problems_of_draining(recorder: Recorder, url: str, streams: Mapping[str, str]) -> list[str]:
    """Read whole streams from the leader and from any replicas; ``streams`` are names by key."""
    problems: list[str] = []
    for key, name in streams.items():
        try:
            end = await drain(recorder, url, f"drain {key}", (key, name), "auto")
            for number in range(3):
                await drain(recorder, url, f"drain {key} {number}", (key, name), "any", until=end)
        except JetstreamError as error:
            problems.append(f"{key} cannot be read when all is mended: {error!r}")
    return problems


def directories(cluster: ChaosCluster, stream: str) -> dict[str, Path]:
    """Return where the nodes have a stream's files."""
    pattern = f"{stream.replace('/', '.')}@*"
    found = {name: list((node.data / "streams").glob(pattern)) for name, node in cluster.nodes.items()}
    return {name: paths[0] for name, paths in found.items() if paths}


def problems_of_files(
    recorder: Recorder, cluster: ChaosCluster, replicas: Mapping[str, Sequence[str]]
) -> list[str]:
    """Compare the replicas' segments byte by byte, inspect them, and read them into the history."""
    problems: list[str] = []
    for stream, names in replicas.items():
        found = directories(cluster, stream)
        if sorted(found) != sorted(names):
            problems.append(f"{stream} has files on {sorted(found)}, its replicas are {sorted(names)}")
        digests = {name: _digests(path) for name, path in found.items() if name in names}
        [first, *_] = sorted(digests)
        problems += [
            f"{stream}: files of {name} and {first} differ: {_differences(digests[first], other)}"
            for name, other in digests.items()
            if other != digests[first]
        ]
        for name in digests:
            problems += _inspected(cluster, name, found[name])
            reader = f"files of {stream} on {name}"
            for path in sorted(found[name].glob("*.arrows")):
                _read(recorder, reader, stream, path)
            recorder.record(Drained(recorder.now(), reader, stream))
    return problems


def problems_of_keyed_files(cluster: ChaosCluster, stream: str, replicas: Sequence[str]) -> list[str]:
    """Inspect the replicas of a stream that is compacted, and compare the last value of each key in them."""
    problems: list[str] = []
    latest: dict[str, dict[bytes | None, bytes | None]] = {}
    for name, path in directories(cluster, stream).items():
        if name in replicas:
            problems += _inspected(cluster, name, path)
            latest[name] = _latest(path)
    [first, *others] = sorted(latest)
    return problems + [
        f"{stream}: the last values on {name} and {first} differ"
        for name in others
        if latest[name] != latest[first]
    ]


def _latest(directory: Path) -> dict[bytes | None, bytes | None]:
    found: dict[bytes | None, bytes | None] = {}
    for path in sorted(directory.glob("*.arrows")):
        data = path.read_bytes().removesuffix(_END_OF_STREAM)
        for frame in iter_frames(data, len(SCHEMA_MESSAGE)):
            _, records = decode(frame)
            keys, values = records.column("key").to_pylist(), records.column("value").to_pylist()
            found.update(zip(keys, values, strict=True))
    return {key: value for key, value in found.items() if value is not None}


def _inspected(cluster: ChaosCluster, name: str, directory: Path) -> list[str]:
    disk = OsDisk(cluster.nodes[name].data)
    try:
        report = inspect_stream(disk, f"streams/{directory.name}")
    finally:
        disk.close()
    return [
        f"{name}: {problem.path}: {problem.kind} {problem.description}"
        for problem in report.problems
        if problem.kind is not ProblemKind.DERIVED
    ]


def _read(recorder: Recorder, reader: str, stream: str, path: Path) -> None:
    data = path.read_bytes().removesuffix(_END_OF_STREAM)
    for frame in iter_frames(data, len(SCHEMA_MESSAGE)):
        header, records = decode(frame)
        recorder.record(Read(recorder.now(), reader, stream, tuple(seen(records, header.leader_epoch))))


def _digests(directory: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.glob("*.arrows"))
    }


def _differences(ones: Mapping[str, str], others: Mapping[str, str]) -> list[str]:
    return sorted(name for name in {*ones, *others} if ones.get(name) != others.get(name))


def traces(log: Path) -> list[str]:
    """Return what a node's log has of errors that nobody caught."""
    lines = log.read_text(errors="replace").splitlines()
    return [
        f"{log.parent.name}: {' | '.join(lines[place : place + 30])}"
        for place, line in enumerate(lines)
        if line.startswith("Traceback ") or '"Traceback' in line
    ]
