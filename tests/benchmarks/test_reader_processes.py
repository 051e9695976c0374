"""Every kind of reader against what it really reads, at the smallest size that shows something."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import loadgen, long_poll
from benchmarks.helper_process import HelperProcess, helper
from benchmarks.processes import ProcessError
from benchmarks.readers import ReadCase, read_once
from benchmarks.report import Settings
from benchmarks.stored import Stored, StoredSegments, filled
from benchmarks.systems import BARE, OURS_ALWAYS, PEER_DEFAULT, Laboratory, Ours, System

SIZE_BYTES = 256
VALUES_BYTES = 64 * 1024
PARKED = 10


@pytest.fixture(scope="module")
def laboratory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laboratory]:
    loadgen.build()
    with Laboratory(tmp_path_factory.mktemp("systems")) as laboratory:
        yield laboratory


@pytest.fixture(scope="module")
def ours(laboratory: Laboratory) -> Ours:
    system = laboratory.system(OURS_ALWAYS)
    assert isinstance(system, Ours)
    return system


@pytest.fixture(scope="module")
def stored(ours: Ours) -> Iterator[Stored]:
    with filled(ours, SIZE_BYTES, VALUES_BYTES) as stored:
        yield stored


@pytest.fixture(scope="module")
def segments(ours: Ours, stored: Stored) -> StoredSegments:
    del stored  # it fills them
    return StoredSegments.of(ours)


@pytest.fixture(scope="module")
def sender(segments: StoredSegments) -> Iterator[HelperProcess]:
    with helper("raw_stream", *segments.files) as sender:
        yield sender


@pytest.fixture(scope="module")
def sender_port(sender: HelperProcess) -> int:
    return int(sender.hear("ready")["port"])


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(tmp_path, seconds=1.0, warmup_seconds=0.05, runs=1, quick=True)


@pytest.mark.parametrize("kind", ["batches", "records"])
@pytest.mark.parametrize("once", [False, True])
def test_our_readers_read_every_record_in_order(
    kind: str, once: bool, ours: Ours, stored: Stored, settings: Settings
) -> None:
    words = (kind, "--socket", StoredSegments.of(ours).socket, "--records", stored.records)
    case = ReadCase("ours", kind, words, {"node": ours.processes["node"]}, SIZE_BYTES, readers=2, cold=once)

    run = read_once(case, settings)

    assert run.problem is None
    assert run.rate > 0
    assert not once or {reading.amount for reading in run.readings} == {stored.records}


def test_a_stream_with_fewer_records_than_were_promised_is_a_problem(
    ours: Ours, stored: Stored, settings: Settings
) -> None:
    words = ("batches", "--socket", StoredSegments.of(ours).socket, "--records", stored.records + 1)

    run = read_once(ReadCase("ours", "too many", words, {}, SIZE_BYTES, cold=True), settings)

    assert run.problem == f"a pass ended at offset {stored.records} of {stored.records + 1}"


@pytest.mark.parametrize("kind", ["raw", "files"])
def test_bare_files_are_read_whole(
    kind: str, segments: StoredSegments, sender: HelperProcess, sender_port: int, settings: Settings
) -> None:
    words = (kind, "--socket", f"127.0.0.1:{sender_port}", "--files", *segments.files)
    case = ReadCase(
        kind, "once", words, {"sender": sender.pid}, SIZE_BYTES, unit_bytes=1.0, files=segments.files
    )

    assert read_once(case, settings).problem is None
    (reading,) = read_once(ReadCase(kind, "once", words, {}, SIZE_BYTES, cold=True), settings).readings
    assert (reading.amount, reading.passes) == (segments.bytes, 1)


@pytest.mark.parametrize("kind", ["ordered", "pull"])
def test_consumers_of_nats_read_every_message_in_order(
    kind: str, laboratory: Laboratory, settings: Settings
) -> None:
    peer = laboratory.system(PEER_DEFAULT)
    with filled(peer, SIZE_BYTES, VALUES_BYTES) as stored:
        words = (kind, "--nats", peer.address.url, "--records", stored.records)
        run = read_once(ReadCase("peer", kind, words, peer.processes, SIZE_BYTES, cold=True), settings)

    assert run.problem is None
    assert run.readings[0].amount == stored.records


@pytest.mark.parametrize("name", [OURS_ALWAYS, PEER_DEFAULT])
def test_a_waiting_reader_gets_every_record(name: str, laboratory: Laboratory, settings: Settings) -> None:
    system = _fresh(laboratory, name)

    wake_ups = long_poll.wake_one(system, settings)

    assert wake_ups.problem is None
    assert len(wake_ups.append_to_reader) == int(settings.seconds / long_poll.PACE_SECONDS)
    assert min(wake_ups.publish_to_reader) > 0


@pytest.mark.parametrize("name", [OURS_ALWAYS, BARE])
def test_every_waiting_connection_gets_every_append(
    name: str, laboratory: Laboratory, settings: Settings
) -> None:
    crowd = long_poll.crowd(_fresh(laboratory, name), PARKED, 100, settings)

    assert len(crowd.publish_to_all_us) == long_poll.APPENDS_QUICK
    for first, last in zip(crowd.publish_to_first_us, crowd.publish_to_all_us, strict=True):
        assert 0 < first <= last


def test_a_helper_that_ends_is_said_in_its_own_words() -> None:
    with (
        helper("reader_process", "batches", "--nonsense") as reader,
        pytest.raises(ProcessError, match="unrecognized arguments: --nonsense"),
    ):
        reader.hear("ready")


def _fresh(laboratory: Laboratory, name: str) -> System:
    """Return a system without streams: those of this module's other tests have the names that are needed."""
    return laboratory.system(name, sync="os") if name == OURS_ALWAYS else laboratory.system(name)
