"""The load generator against a real nats-server, at the smallest size that shows something."""

import asyncio
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import nats
import pytest

from benchmarks import loadgen
from benchmarks.loadgen import Address, Load, LoadGeneratorError, LoadResult
from benchmarks.measurement import Case, measure
from benchmarks.systems import SUBJECT, BareRequestReply, BareStore, NatsJetStream
from tests.conftest import StartNatsServer
from tests.support.nats_server import NatsServer


def address_of(server: NatsServer) -> Address:
    return Address("127.0.0.1", server.port)


def tiny(connections: int = 2, window: int = 5, *, subjects: int = 1) -> Load:
    return Load(connections, window, 64, subjects=subjects, seconds=0.15, warmup_seconds=0.05)


def run(address: Address, load: Load) -> LoadResult:
    return loadgen.publish(address, SUBJECT, load, lambda _event: None)


@pytest.fixture
def jetstream(start_nats_server: StartNatsServer, tmp_path: Path) -> NatsJetStream:
    server = start_nats_server(f'jetstream {{ store_dir: "{tmp_path / "store"}" }}')
    return NatsJetStream("JetStream", address_of(server), {"nats-server": server.pid})


def test_every_message_gets_its_own_ack_and_is_stored_once(jetstream: NatsJetStream) -> None:
    measurement = measure(Case(jetstream, "tiny", tiny()))

    assert measurement.problem is None
    assert measurement.holdings is not None
    assert measurement.holdings.records == (measurement.result.acked,)
    assert measurement.result.published == measurement.result.acked > 0
    assert measurement.result.measured <= measurement.result.acked
    assert measurement.costs["nats-server"].cpu_seconds >= 0


def test_messages_are_spread_evenly_over_the_streams(jetstream: NatsJetStream) -> None:
    measurement = measure(Case(jetstream, "tiny", tiny(subjects=3)))

    assert measurement.problem is None
    assert measurement.holdings is not None
    assert max(measurement.holdings.records) - min(measurement.holdings.records) <= 1


def test_a_given_payload_is_what_every_message_is(jetstream: NatsJetStream, tmp_path: Path) -> None:
    payload = tmp_path / "payload"
    payload.write_bytes(b"\x8aJSE" + bytes(5000))

    async def stored() -> set[bytes]:
        async with await nats.connect(jetstream.address.url) as client:
            subscription = await client.jetstream().subscribe(SUBJECT, ordered_consumer=True)
            return {(await subscription.next_msg()).data for _ in range(10)}

    with jetstream.streams(1):
        assert run(jetstream.address, replace(tiny(), payload=payload)).acked >= 10
        assert asyncio.run(stored()) == {payload.read_bytes()}


def test_a_responder_answers_in_place_of_a_store(nats_server: NatsServer) -> None:
    bare = BareRequestReply("bare", address_of(nats_server), {"nats-server": nats_server.pid})

    measurement = measure(Case(bare, "tiny", tiny(connections=8, window=1, subjects=2)))

    assert measurement.problem is None
    assert measurement.holdings is None
    assert measurement.result.acked > 0


PROGRAMS = pytest.mark.parametrize("program", [(), loadgen.STORE_IN_PYTHON], ids=["C", "Python"])


@PROGRAMS
@pytest.mark.parametrize("sync", ["always", "os"])
def test_a_bare_store_answers_what_all_its_files_have(
    nats_server: NatsServer, tmp_path: Path, sync: str, program: tuple[str, ...]
) -> None:
    payload = tmp_path / "payload"
    payload.write_bytes(b"what is stored\r\n")
    load = replace(tiny(connections=8, window=3), payload=payload)
    directory = tmp_path / "store"
    directory.mkdir()
    copies = ("follower b", "follower c")
    bare = BareStore(
        name="bare store",
        address=address_of(nats_server),
        nats_server=nats_server.pid,
        directory=directory,
        sync=sync,
        copies=copies,
        program=program,
    )

    with bare.streams(1):
        result = run(bare.address, load)
        stored, *copied = (path.read_bytes() for path in sorted(directory.iterdir()))
        assert list(bare.processes) == ["leader", *copies, "nats-server"]

    assert result.acked == result.published > 0
    assert stored == payload.read_bytes() * result.acked
    assert [b"".join(groups_in(file)) for file in copied] == [stored, stored]
    assert not list(directory.iterdir())


def groups_in(file: bytes) -> Iterator[bytes]:
    """Yield what each group of a copy's file holds, behind its length."""
    while file:
        length = int.from_bytes(file[:4], "little")
        yield file[4 : 4 + length]
        file = file[4 + length :]


@PROGRAMS
def test_a_store_answers_a_group_when_its_copy_has_it(
    nats_server: NatsServer, tmp_path: Path, program: tuple[str, ...]
) -> None:
    """The test is the copy."""

    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            address, file = address_of(nats_server), tmp_path / "file"
            with loadgen.store(address, SUBJECT, file, "os", [port], program):
                copy, _ = listener.accept()
                async with (
                    await nats.connect(address_of(nats_server).url) as client,
                    asyncio.TaskGroup() as asking,
                ):
                    answers = []
                    for payload in (b"one", b"two"):
                        answers.append(asking.create_task(client.request(SUBJECT, payload, timeout=20)))
                        group = await asyncio.to_thread(copy.recv, 4 + len(payload), socket.MSG_WAITALL)
                        assert group[4:] == payload
                    await client.flush()
                    assert not any(answer.done() for answer in answers)
                    for answer in answers:
                        copy.send(b"\0")
                        await answer
                copy.close()

    asyncio.run(scenario())
    assert (tmp_path / "file").read_bytes() == b"onetwo"


def test_latencies_are_ordered_percentiles_of_the_measured_messages(nats_server: NatsServer) -> None:
    with loadgen.responder(address_of(nats_server), SUBJECT):
        result = run(address_of(nats_server), tiny())

    latency = result.latency
    assert latency["count"] == result.measured
    ordered = [latency[key] for key in ("min", "p50", "p90", "p99", "p999", "max")]
    assert ordered == sorted(ordered)
    assert latency["min"] > 0


def test_messages_leave_by_the_clock_at_a_given_rate(nats_server: NatsServer) -> None:
    load = Load(1, 100, 64, seconds=0.2, warmup_seconds=0.0, rate=100.0)
    with loadgen.responder(address_of(nats_server), SUBJECT):
        result = run(address_of(nats_server), load)

    # One every 10 ms, and some for the moment between the first and the start of the measured seconds; a
    # closed loop would send thousands.
    assert 0 < result.published <= 100 * result.seconds + 10
    assert result.acked == result.published
    assert result.latency["count"] == result.measured


def test_a_stall_is_charged_to_the_messages_that_were_due_in_it(nats_server: NatsServer) -> None:
    """One message at a time is too few for the rate: what is due leaves late, and its latency says so."""
    load = Load(1, 1, 64, seconds=0.2, warmup_seconds=0.0, rate=1_000_000.0)
    with loadgen.responder(address_of(nats_server), SUBJECT):
        result = run(address_of(nats_server), load)

    # A million a second do not fit one at a time: the last one leaves far behind its due moment.
    behind_us = 1e6 * result.seconds - result.published
    assert result.latency["max"] >= 0.9 * behind_us > 0


def test_a_subject_without_responder_is_counted_and_never_acked(nats_server: NatsServer) -> None:
    result = run(address_of(nats_server), tiny(connections=1, window=1))

    assert result.acked == result.measured == 0
    assert result.no_responders == result.published > 0


def test_an_error_answer_is_not_an_ack(start_nats_server: StartNatsServer, tmp_path: Path) -> None:
    server = start_nats_server(f'jetstream {{ store_dir: "{tmp_path / "store"}" }}')
    system = NatsJetStream("JetStream", address_of(server), {"nats-server": server.pid})
    refused = '{"error":{"code":503,"description":"no \\"room\\""}}'

    with loadgen.responder(system.address, SUBJECT, answer=refused):
        result = run(system.address, tiny(connections=1, window=1))

    assert result.acked == 0
    assert result.errors == result.published > 0
    assert result.first_error == refused


def test_the_disk_is_sampled_between_messages(nats_server: NatsServer, tmp_path: Path) -> None:
    load = Load(1, 1, 64, seconds=0.15, warmup_seconds=0.0, probe_file=tmp_path / "probe", probe_every=10)
    with loadgen.responder(address_of(nats_server), SUBJECT):
        result = run(address_of(nats_server), load)

    assert result.fdatasync["count"] == result.measured // 10
    assert (tmp_path / "probe").stat().st_size == 64 * result.fdatasync["count"]


def test_the_raw_loop_counts_its_syncs_and_cleans_up(tmp_path: Path) -> None:
    result = loadgen.fsync_loop(tmp_path / "file", 128, seconds=0.05, warmup_seconds=0.01)

    assert result.duration["count"] > 0
    assert result.rate > 0
    assert not (tmp_path / "file").exists()


def test_a_server_that_is_not_there_is_said_in_its_own_words() -> None:
    with pytest.raises(LoadGeneratorError, match="connect to"):
        run(Address("127.0.0.1", 1), tiny())


def test_a_second_build_takes_the_binary_of_the_first() -> None:
    first = loadgen.build().stat().st_mtime_ns

    assert loadgen.build().stat().st_mtime_ns == first
