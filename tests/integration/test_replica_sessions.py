"""Replication sessions over real connections: what is asked is answered, in order and in bounded memory."""

import os
import ssl
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from envelope.errors import UnavailableError
from envelope.limits import MIB
from envelope.types import Incarnation, LeaderEpoch, Offset, StreamName
from jetstream.log.disk.os_disk import OsDisk
from jetstream.log.reader import FileRange
from jetstream.replica.wire import (
    Answer,
    BatchesMessage,
    Declare,
    DivergingMessage,
    FetchRefusal,
    Ping,
    Pong,
    RefusedMessage,
    RepairAnswer,
    RepairMessage,
    StartOverMessage,
    encode,
)
from tests.support.nats_identities import TlsFiles
from tests.support.page_cache import empty_page_cache
from tests.support.replica_session_process import body_for
from tests.support.replica_sessions import (
    LIFE,
    NAME,
    NOWHERE,
    A,
    B,
    C,
    RawEnd,
    SessionNode,
    answering,
    batches,
    connected,
    fetch_from,
    refusal,
    with_body,
)
from tests.support.sockets import LiveStream, run, until
from tests.support.tls_sockets import context

T = TypeVar("T")


class CountingExecutor(ThreadPoolExecutor):
    """Knows how often it was used."""

    used = 0

    def submit(self, work: Callable[..., T], /, *args: object, **named: object) -> Future[T]:
        self.used += 1
        return super().submit(work, *args, **named)


def stored(root: Path, *values: bytes) -> tuple[LiveStream, FileRange, bytes]:
    """A log of one batch with these values; the range of it, and its bytes."""
    stream = LiveStream("s", OsDisk(root))
    stream.add(values)
    found = stream.log.reader.plan_read(Offset(0), 64 * MIB, stream.log.log_end_offset)
    return stream, found, stream.log.reader.read(Offset(0), 64 * MIB, stream.log.log_end_offset)


# --- asking and answering -------------------------------------------------------------------------------


def test_what_is_asked_arrives_and_every_kind_of_answer_comes_back(loop: str) -> None:
    epochs = ((LeaderEpoch(6), Offset(9)), (LeaderEpoch(7), Offset(10)))
    answers: list[tuple[Answer, bytes | None]] = [
        (replace(batches(9, 3), epochs=epochs), b"body"),
        (batches(9, 0), None),
        (
            DivergingMessage(LeaderEpoch(7), LeaderEpoch(6), Offset(9), LeaderEpoch(5), Offset(3)),
            None,
        ),
        (StartOverMessage(LeaderEpoch(7), LeaderEpoch(6), Offset(9), Offset(100)), None),
        (refusal(), None),
    ]

    async def test() -> None:
        a, b, c = SessionNode(A), SessionNode(B), SessionNode(C)
        async with connected(a, b, c):
            assert a.sessions.is_connected(B)
            assert a.sessions.fetch(B, NAME, LIFE, fetch_from(9))
            await b.story.until_fetched(1)
            assert b.story.fetches == [(A, NAME, LIFE, fetch_from(9))]
            for answer, body in answers:
                sent = with_body(answer, body or b"") if isinstance(answer, BatchesMessage) else answer
                b.sessions.answer(A, NAME, LIFE, sent, body)
            await a.story.until_answered(len(answers))
            assert {tuple(who) for *who, _ in a.story.answers} == {(B, NAME, LIFE)}
            wanted = [
                replace(answer, body=body or b"", body_bytes=len(body or b""))
                if isinstance(answer, BatchesMessage)
                else answer
                for answer, body in answers
            ]
            assert [found for *_, found in a.story.answers] == wanted
            assert not c.story.fetches
            assert not c.story.answers

    run(test(), loop)


def test_streams_and_their_lives_and_both_directions_are_kept_apart(loop: str) -> None:
    async def test() -> None:
        a, b = SessionNode(A), SessionNode(B)
        lives = [(StreamName(name), Incarnation(life)) for name in ("x", "y") for life in ("1", "2")]
        async with connected(a, b):
            for here, there in ((a, b), (b, a)):
                there.story.on_fetch = answering(there, lambda fetch: body_for(fetch.log_end))
                for number, life in enumerate(lives * 2):
                    assert here.sessions.fetch(there.identity.node_id, *life, fetch_from(number))
            for here, peer in ((a, B), (b, A)):
                await here.story.until_answered(8)
                assert [
                    (who, (name, life), found.base, found.body)
                    for who, name, life, found in here.story.answers
                    if isinstance(found, BatchesMessage)
                ] == [(peer, life, number, body_for(number)) for number, life in enumerate(lives * 2)]

    run(test(), loop)


def test_what_is_asked_while_connected_is_being_told_goes_out(loop: str) -> None:
    async def test() -> None:
        a, b = SessionNode(A), SessionNode(B)
        a.story.on_connected = lambda peer: asked.append(a.sessions.fetch(peer, NAME, LIFE, fetch_from(1)))
        b.story.on_fetch = answering(b, lambda fetch: b"body")
        try:
            a.start({B: b.address})
            b.start({A: a.address})
            await a.story.until_answered(1)
            assert asked == [True]
            a.sessions.fetch(B, NAME, LIFE, fetch_from(2))
            await a.story.until_answered(2)
        finally:
            await a.stop()
            await b.stop()

    asked: list[bool] = []
    run(test(), loop)


def test_what_comes_with_the_greeting_is_not_lost(loop: str) -> None:
    async def test() -> None:
        b = SessionNode(B)
        b.start({A: NOWHERE})
        ping = encode(Ping())
        try:
            raw = await RawEnd.dial(b, early=ping + ping[:5])
            assert await raw.receive() == Pong()
            raw.writer.write(ping[5:])
            assert await raw.receive() == Pong()
            raw.close()
        finally:
            await b.stop()

    run(test(), loop)


def test_a_body_of_many_mebibytes_arrives_as_it_is_in_the_file(tmp_path: Path, loop: str) -> None:
    async def test() -> None:
        a, b = SessionNode(A), SessionNode(B)
        stream, found, data = stored(tmp_path, *(os.urandom(MIB) for _ in range(8)))
        async with connected(a, b):
            b.story.on_fetch = answering(b, lambda fetch: found if fetch.log_end % 2 else data)
            for number in range(4):
                a.sessions.fetch(B, StreamName(f"s{number}"), LIFE, fetch_from(number))
            await a.story.until_answered(4)
            bodies = [answer.body for *_, answer in a.story.answers if isinstance(answer, BatchesMessage)]
            assert bodies == [data] * 4
        assert found.segment._leases == 0
        stream.log.close()

    run(test(), loop)


def test_a_body_that_is_not_in_the_page_cache_is_read_on_a_thread_and_the_order_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loop: str
) -> None:
    empty_page_cache(monkeypatch)

    async def test() -> None:
        with CountingExecutor(1) as executor:
            a, b = SessionNode(A), SessionNode(B, executor=executor)
            stream, found, data = stored(tmp_path, os.urandom(3 * MIB))
            async with connected(a, b):
                b.story.on_fetch = answering(b, lambda fetch: b"" if fetch.log_end else found)
                for number in range(3):
                    a.sessions.fetch(B, StreamName(f"s{number}"), LIFE, fetch_from(number))
                await b.story.until_fetched(3)
                for number in range(1, 3):
                    b.sessions.answer(A, StreamName(f"s{number}"), LIFE, refusal())
                await a.story.until_answered(3)
                first = a.story.answers[0][3]
                assert isinstance(first, BatchesMessage)
                assert first.body == data
                assert executor.used == 1
            assert found.segment._leases == 0
            stream.log.close()

    run(test(), loop)


def test_sessions_work_over_tls(tmp_path: Path, tls_files: TlsFiles, loop: str) -> None:
    async def test() -> None:
        server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        server.load_cert_chain(tls_files.server_certificate, tls_files.server_key)
        a, b = (SessionNode(name, tls=(server, context(tls_files))) for name in (A, B))
        stream, found, data = stored(tmp_path, *(os.urandom(MIB) for _ in range(8)))
        async with connected(a, b):
            b.story.on_fetch = answering(b, lambda fetch: found)
            for number in range(3):
                a.sessions.fetch(B, StreamName(f"s{number}"), LIFE, fetch_from(number))
            await a.story.until_answered(3)
            bodies = [answer.body for *_, answer in a.story.answers if isinstance(answer, BatchesMessage)]
            assert bodies == [data] * 3
        assert found.segment._leases == 0
        stream.log.close()

    run(test(), loop)


# --- a follower that takes less than it asks for --------------------------------------------------------


async def asked_by_hand(node: SessionNode, count: int) -> RawEnd:
    """A follower that has asked for streams s0, s1, …, with the handles 0, 1, …"""
    end = await RawEnd.dial(node)
    for handle in range(count):
        declared = Declare(StreamName(f"s{handle}"), LIFE)
        end.writer.write(encode(declared, handle) + encode(fetch_from(handle), handle))
    await node.story.until_fetched(count)
    return end


@pytest.mark.parametrize("in_memory", [False, True])
def test_a_follower_that_does_not_read_costs_bounded_memory_and_gets_everything_in_order(
    tmp_path: Path, loop: str, in_memory: bool
) -> None:
    async def test() -> None:
        count = 40
        b = SessionNode(B)
        stream, found, data = stored(tmp_path, os.urandom(MIB))
        b.story.on_fetch = answering(b, lambda fetch: data if in_memory else found)
        b.start({A: NOWHERE})
        try:
            raw = await asked_by_hand(b, count)
            end = b.sessions._led[A]
            line = end._line
            assert 4 * MIB < line._piece_bytes + line._transport.get_write_buffer_size() < 16 * MIB
            assert len(end.answers._waiting) > 10
            assert found.segment._leases == (0 if in_memory else len(end.answers._waiting))
            answers = [await raw.receive() for _ in range(count)]
            assert [
                (answer.base, answer.body) for answer in answers if isinstance(answer, BatchesMessage)
            ] == [(number, data) for number in range(count)]
            assert found.segment._leases == 0
            raw.close()
        finally:
            await b.stop()
        stream.log.close()

    run(test(), loop)


def test_of_two_answers_of_one_stream_that_wait_only_the_newer_one_is_sent(tmp_path: Path, loop: str) -> None:
    async def test() -> None:
        count = 40
        b = SessionNode(B)
        stream, found, _ = stored(tmp_path, os.urandom(MIB))
        b.story.on_fetch = answering(b, lambda fetch: found)
        b.start({A: NOWHERE})
        try:
            raw = await asked_by_hand(b, count)
            leases = found.segment._leases
            b.sessions.answer(A, StreamName(f"s{count - 1}"), LIFE, refusal())
            assert found.segment._leases == leases - 1
            raw.writer.write(encode(fetch_from(100), 0))
            answers = [await raw.receive() for _ in range(count + 1)]
            assert (raw.handles[count - 1], answers[count - 1]) == (count - 1, refusal())
            last = answers[-1]
            assert isinstance(last, BatchesMessage)
            assert (raw.handles[-1], last.base) == (0, 100)
            raw.close()
        finally:
            await b.stop()
        stream.log.close()

    run(test(), loop)


def test_what_repairs_a_log_comes_beside_what_a_follower_is_sent(tmp_path: Path, loop: str) -> None:
    async def test() -> None:
        a, b = SessionNode(A), SessionNode(B)
        stream, found, data = stored(tmp_path, os.urandom(MIB))
        name = StreamName("s")
        async with connected(a, b):
            a.sessions.fetch(B, name, LIFE, fetch_from(0))
            a.sessions.fetch(B, name, LIFE, RepairMessage(Offset(0), Offset(1)))
            await b.story.until(lambda: len(b.story.questions) == len(b.story.fetches) == 1)
            assert b.story.questions[0][1:] == (name, LIFE, RepairMessage(Offset(0), Offset(1)))
            answer = RepairAnswer(Offset(0), Offset(1), found.length)
            b.sessions.answer(A, name, LIFE, answer, found)
            b.sessions.answer(A, name, LIFE, refusal())
            await a.story.until(lambda: len(a.story.repairs) == len(a.story.answers) == 1)
            assert a.story.repairs[0][3] == replace(answer, body=data)
            assert a.story.answers[0][3] == refusal()
        assert found.segment._leases == 0
        stream.log.close()

    run(test(), loop)


def test_a_repair_whose_body_cannot_be_read_is_answered_with_nothing(tmp_path: Path, loop: str) -> None:
    async def test() -> None:
        a, b = SessionNode(A), SessionNode(B)
        stream, found, _ = stored(tmp_path, os.urandom(MIB))
        with found.segment.leased() as file:
            os.truncate(f"/proc/self/fd/{file.fileno()}", MIB // 2)
        async with connected(a, b):
            a.sessions.fetch(B, StreamName("s"), LIFE, RepairMessage(Offset(0), Offset(1)))
            await b.story.until(lambda: len(b.story.questions) == 1)
            b.sessions.answer(
                A, StreamName("s"), LIFE, RepairAnswer(Offset(0), Offset(1), found.length), found
            )
            await a.story.until(lambda: len(a.story.repairs) == 1)
            assert a.story.repairs[0][3] == RepairAnswer(Offset(0), Offset(0))
            assert a.story.told == []
        stream.log.close()

    run(test(), loop)


def test_leases_of_answers_that_nobody_takes_are_given_back_with_the_connection(
    tmp_path: Path, loop: str
) -> None:
    async def test() -> None:
        b = SessionNode(B)
        stream, found, _ = stored(tmp_path, os.urandom(MIB))
        b.story.on_fetch = answering(b, lambda fetch: found)
        b.start({A: NOWHERE})
        try:
            raw = await asked_by_hand(b, 40)
            assert found.segment._leases > 10
            raw.close()
            await until(lambda: found.segment._leases == 0)
            b.sessions.answer(A, StreamName("s1"), LIFE, batches(1), found)
            assert found.segment._leases == 0
        finally:
            await b.stop()
        stream.log.close()

    run(test(), loop)


def test_a_lease_is_kept_while_a_thread_reads_for_a_connection_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty_page_cache(monkeypatch)

    async def test() -> None:
        go_on = threading.Event()
        with ThreadPoolExecutor(1) as executor:
            b = SessionNode(B, executor=executor)
            stream, found, _ = stored(tmp_path, os.urandom(3 * MIB))
            executor.submit(go_on.wait)
            b.story.on_fetch = answering(b, lambda fetch: found)
            b.start({A: NOWHERE})
            try:
                raw = await asked_by_hand(b, 2)
                raw.close()
                await until(lambda: A not in b.sessions._led)
                assert found.segment._leases == 1
                go_on.set()
                await until(lambda: found.segment._leases == 0)
            finally:
                go_on.set()
                await b.stop()
            stream.log.close()

    run(test())


def test_a_fetch_whose_body_cannot_be_read_is_refused_and_the_others_are_served(
    tmp_path: Path, loop: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        a, b = SessionNode(A), SessionNode(B)
        stream, found, _ = stored(tmp_path, os.urandom(MIB))
        with found.segment.leased() as file:
            os.truncate(f"/proc/self/fd/{file.fileno()}", MIB // 2)
        async with connected(a, b):
            b.story.on_fetch = answering(b, lambda fetch: found if fetch.log_end == 0 else b"whole")
            for number in range(3):
                a.sessions.fetch(B, StreamName(f"s{number}"), LIFE, fetch_from(number))
            await a.story.until_answered(3)
            assert [name for _, name, *_ in a.story.answers] == ["s0", "s1", "s2"]
            refused = RefusedMessage(batches(0).leader_epoch, FetchRefusal.CANNOT_READ)
            assert a.story.answers[0][3] == refused
            assert "cannot read for a follower" in caplog.text
            assert a.story.told == []
        assert found.segment._leases == 0
        stream.log.close()

    run(test(), loop)


def test_a_range_whose_segment_is_gone_is_refused_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        a, b = SessionNode(A), SessionNode(B)
        stream, found, _ = stored(tmp_path, b"value")
        found.segment.retire()
        async with connected(a, b):
            a.sessions.fetch(B, NAME, LIFE, fetch_from(0))
            await b.story.until_fetched(1)
            with pytest.raises(UnavailableError):
                b.sessions.answer(A, NAME, LIFE, batches(0), found)
            b.sessions.answer(A, NAME, LIFE, refusal())
            await a.story.until_answered(1)
        stream.log.close()

    run(test())
