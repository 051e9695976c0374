"""Peers of replication sessions: who lives, who only seems to, and who says what may not be said."""

import asyncio
import signal
import threading

import pytest

from envelope.types import Incarnation
from jetstream.node.peers import fetch_sessions as replica_session_ends
from jetstream.replica.wire import BatchesMessage, Declare, FetchMessage, Ping, Pong, encode
from tests.support.replica_session_process import body_for, process_beside
from tests.support.replica_sessions import (
    HASTY,
    LIFE,
    NAME,
    NOWHERE,
    A,
    B,
    C,
    RawEnd,
    RawLeader,
    SessionNode,
    answering,
    batches,
    connected,
    fetch_from,
)
from tests.support.sockets import run

# --- who lives ------------------------------------------------------------------------------------------


def test_a_killed_peer_is_dead_at_once(loop: str) -> None:
    async def test() -> None:
        a = SessionNode(A)  # so patient that no timeout can have told
        async with process_beside(a) as process:
            assert a.sessions.fetch(B, NAME, LIFE, fetch_from(12))
            await a.story.until_answered(1)
            answer = a.story.answers[0][3]
            assert isinstance(answer, BatchesMessage)
            assert answer.body == body_for(12)
            process.kill()
            await a.story.until_told("disconnected", "died", of=B)
            assert a.sessions.is_lost(B)
            assert not a.sessions.is_connected(B)
            assert not a.sessions.fetch(B, NAME, LIFE, fetch_from(12))

    run(test(), loop)


def test_a_stopped_peer_is_silent_after_the_timeout_and_heard_when_it_goes_on(loop: str) -> None:
    async def test() -> None:
        a = SessionNode(A, HASTY)
        async with process_beside(a) as process:
            process.send_signal(signal.SIGSTOP)
            await a.story.until_told("silent", "disconnected", of=B)
            assert a.sessions.is_lost(B)
            assert not a.sessions.is_connected(B)
            process.send_signal(signal.SIGCONT)
            await a.story.until_told("silent", "disconnected", "heard", "connected", of=B)
            assert a.sessions.fetch(B, NAME, LIFE, fetch_from(1))
            await a.story.until_answered(1)

    run(test(), loop)


def test_a_silent_peer_that_is_killed_is_dead(loop: str) -> None:
    async def test() -> None:
        a = SessionNode(A, HASTY)
        async with process_beside(a) as process:
            process.send_signal(signal.SIGSTOP)
            await a.story.until_told("silent", "disconnected", of=B)
            process.kill()
            await a.story.until_told("silent", "disconnected", "died", of=B)
            assert a.sessions.is_lost(B)

    run(test(), loop)


def test_a_pause_of_this_node_is_no_silence_of_its_peers(loop: str) -> None:
    async def test() -> None:
        a = SessionNode(A, HASTY)
        async with process_beside(a):
            for number in range(2):
                threading.Event().wait(2 * HASTY.leader_timeout_ns / 1e9)  # the loop stands still
                a.sessions.fetch(B, NAME, LIFE, fetch_from(number))
                await a.story.until_answered(number + 1)
            assert a.story.told == []

    run(test(), loop)


def test_a_peer_that_never_started_is_dead_after_the_timeout_and_a_deaf_one_is_silent(loop: str) -> None:
    async def test() -> None:
        a, b, c = SessionNode(A, HASTY), SessionNode(B), SessionNode(C)
        await b.stop()
        c.socket.listen()
        began = asyncio.get_running_loop().time()
        a.start({B: b.address, C: c.address})
        try:
            await a.story.until(lambda: len(a.story.told) == 2)
            assert sorted(a.story.told) == [("died", B), ("silent", C)]
            assert asyncio.get_running_loop().time() - began > 0.9 * HASTY.leader_timeout_ns / 1e9
            assert a.sessions.is_lost(B)
            assert a.sessions.is_lost(C), "which the host was told as silence"
            b.listen_again()
            b.start({A: a.address})
            await a.story.until_told("died", "heard", "connected", of=B)
        finally:
            for node in (a, b, c):
                await node.stop()

    run(test(), loop)


def test_a_peer_that_starts_again_is_heard_and_asked_again(loop: str) -> None:
    async def test() -> None:
        a, b = SessionNode(A), SessionNode(B)
        async with connected(a, b):
            a.sessions.fetch(B, NAME, LIFE, fetch_from(1))
            await b.story.until_fetched(1)
            await b.stop()
            await a.story.until_told("disconnected", "died", of=B)
            b.listen_again()
            b.story.forget()
            b.start({A: a.address})
            await a.story.until_told("disconnected", "died", "heard", "connected", of=B)
            b.story.on_fetch = answering(b, lambda fetch: b"again")
            for number in range(2):
                assert a.sessions.fetch(B, NAME, LIFE, fetch_from(number))
            await a.story.until_answered(2)

    run(test(), loop)


def test_pings_keep_a_session_alive_also_while_only_one_side_speaks(loop: str) -> None:
    async def test() -> None:
        a, at = SessionNode(A, HASTY), SessionNode(B)
        leader = RawLeader()
        async with leader.listening(at.socket):
            a.start({B: at.address})
            try:
                end = await leader.ends.get()
                pings = 0
                while pings < 12:  # twice the timeout
                    message = await end.receive()
                    if isinstance(message, Ping):
                        pings += 1
                        end.writer.write(encode(Pong()))
                    else:
                        assert isinstance(message, Declare | FetchMessage)
                    a.sessions.fetch(B, NAME, LIFE, fetch_from(pings))  # as to one that parks all fetches
                assert a.story.of(B) == ["connected"]
                await a.story.until_told("connected", "silent", "disconnected", of=B)
            finally:
                await a.stop()

    run(test(), loop)


def test_who_only_hears_still_says_that_it_lives(loop: str) -> None:
    async def test() -> None:
        a, at = SessionNode(A, HASTY), SessionNode(B)
        leader = RawLeader()

        async def speak(end: RawEnd) -> None:
            while True:
                end.writer.write(encode(Pong()))
                await end.writer.drain()
                await asyncio.sleep(0)

        async with leader.listening(at.socket):
            a.start({B: at.address})
            try:
                end = await leader.ends.get()
                async with asyncio.TaskGroup() as tasks:
                    speaking = tasks.create_task(speak(end))
                    assert [await end.receive() for _ in range(3)] == 3 * [Ping()]
                    speaking.cancel()
            finally:
                await a.stop()

    run(test(), loop)


def test_who_pings_is_not_given_up(loop: str) -> None:
    async def test() -> None:
        b = SessionNode(B, HASTY)
        b.start({A: NOWHERE})
        now = asyncio.get_running_loop().time
        try:
            raw = await RawEnd.dial(b)
            over = now() + 2 * HASTY.leader_timeout_ns / 1e9
            while now() < over:
                raw.writer.write(encode(Ping()))
                assert await raw.receive() == Pong()
            raw.close()
        finally:
            await b.stop()

    run(test(), loop)


def test_sessions_that_stop_are_cut_while_their_port_stays_open(loop: str) -> None:
    async def test() -> None:
        a, b = SessionNode(A, HASTY), SessionNode(B)
        async with connected(a, b):
            b.task.cancel()
            await asyncio.wait([b.task])
            await a.story.until_told("disconnected", "silent", of=B)
            assert not b.sessions._led

    run(test(), loop)


def test_who_is_asked_answers_pings_and_gives_up_one_that_says_nothing(loop: str) -> None:
    async def test() -> None:
        b = SessionNode(B, HASTY)
        b.start({A: NOWHERE})
        try:
            raw = await RawEnd.dial(b)
            raw.writer.write(encode(Ping()) + encode(Ping()))
            assert [await raw.receive() for _ in range(3)] == [Pong(), Pong(), None]
        finally:
            await b.stop()

    run(test(), loop)


# --- who says what may not be said ----------------------------------------------------------------------

_DAMAGED = bytearray(encode(Ping()))
_DAMAGED[-1] ^= 1


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(_DAMAGED),
        encode(Pong()),
        encode(batches(1, 0), 0),
        encode(fetch_from(1), 0),
        2 * encode(Declare(NAME, LIFE), 0),
    ],
    ids=["garbage", "damaged", "pong", "answer", "undeclared", "declared-twice"],
)
def test_a_follower_that_makes_no_sense_is_cut_off_and_others_are_served(
    said: bytes, loop: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        b, c = SessionNode(B), SessionNode(C)
        b.start({A: NOWHERE, C: c.address})
        c.start({B: b.address})
        try:
            await c.story.until_told("connected", of=B)
            raw = await RawEnd.dial(b)
            raw.writer.write(encode(Ping()))
            assert await raw.receive() == Pong()
            raw.writer.write(said)
            assert await raw.receive() is None
            assert "a connection with peer=a is closed" in caplog.text
            b.story.on_fetch = answering(b, lambda fetch: b"fine")
            assert c.sessions.fetch(B, NAME, LIFE, fetch_from(1))
            await c.story.until_answered(1)
            assert c.story.of(B) == ["connected"]
            assert [peer for peer, *_ in b.story.fetches] == [C]
        finally:
            await b.stop()
            await c.stop()

    run(test(), loop)


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        bytes(_DAMAGED),
        encode(Ping()),
        encode(batches(1, 0), 1),
    ],
    ids=["garbage", "damaged", "ping", "undeclared"],
)
def test_a_leader_that_makes_no_sense_is_cut_off_and_dialled_again(
    said: bytes, loop: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        a, at = SessionNode(A), SessionNode(B)
        leader = RawLeader()
        async with leader.listening(at.socket):
            a.start({B: at.address})
            try:
                end = await leader.ends.get()
                await a.story.until_told("connected", of=B)
                a.sessions.fetch(B, NAME, LIFE, fetch_from(1))
                assert await end.receive() == Declare(NAME, LIFE)
                end.writer.write(encode(batches(1, 0), 0) + said)
                await a.story.until_told("connected", "disconnected", "connected", of=B)
                assert "a connection with peer=b is closed" in caplog.text
                assert [answer for *_, answer in a.story.answers] == [batches(1, 0)]
                a.sessions.fetch(B, NAME, LIFE, fetch_from(2))
                end = await leader.ends.get()
                assert await end.receive() == Declare(NAME, LIFE)
            finally:
                await a.stop()

    run(test(), loop)


def test_a_wrong_token_is_silence_on_both_sides(loop: str, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        a, b = SessionNode(A, HASTY), SessionNode(B, HASTY, token="other")
        a.start({B: b.address})
        b.start({A: a.address})
        try:
            await a.story.until_told("silent", of=B)
            await b.story.until_told("silent", of=A)
            assert not a.sessions.fetch(B, NAME, LIFE, fetch_from(1))
            refusals = [text for text in caplog.messages if "refuses us: the token is not right" in text]
            assert len(refusals) == 2  # each of the two, for each purpose, once
        finally:
            await a.stop()
            await b.stop()

    run(test(), loop)


def test_a_newer_connection_of_a_peer_takes_the_place_of_the_one_before(loop: str) -> None:
    async def test() -> None:
        b = SessionNode(B)
        b.start({A: NOWHERE})
        try:
            old, new = await RawEnd.dial(b), await RawEnd.dial(b)
            new.writer.write(encode(Ping()))
            assert await old.receive() is None
            assert await new.receive() == Pong()
            assert len(b.sessions._led) == 1
            new.close()
        finally:
            await b.stop()

    run(test(), loop)


def test_a_connection_whose_handles_are_used_up_is_made_anew(
    monkeypatch: pytest.MonkeyPatch, loop: str
) -> None:
    monkeypatch.setattr(replica_session_ends, "_HANDLES_MAX", 3)

    async def test() -> None:
        a, b = SessionNode(A), SessionNode(B)
        async with connected(a, b):
            lives = [Incarnation(str(number)) for number in range(4)]
            assert [a.sessions.fetch(B, NAME, life, fetch_from(1)) for life in lives] == [True] * 3 + [False]
            await a.story.until_told("disconnected", "connected", of=B)
            b.story.forget()
            assert a.sessions.fetch(B, NAME, lives[3], fetch_from(1))
            await b.story.until_fetched(1)

    run(test(), loop)


def test_an_error_of_ours_ends_the_sessions_and_is_told(loop: str) -> None:
    async def test() -> None:
        a, b = SessionNode(A), SessionNode(B)

        def wrong(*fetched: object) -> None:
            raise LookupError("a bug")

        async with connected(a, b):
            b.story.on_fetch = wrong
            a.sessions.fetch(B, NAME, LIFE, fetch_from(1))
            await asyncio.wait([b.task])
            error = b.task.exception()
            assert isinstance(error, ExceptionGroup)
            assert error.subgroup(LookupError) is not None
            await a.story.until(lambda: "disconnected" in a.story.of(B))
            assert not b.sessions._led

    run(test(), loop)


# --- who comes and goes ---------------------------------------------------------------------------------


def test_a_node_that_comes_later_is_met_and_one_that_goes_is_parted_with(loop: str) -> None:
    async def test() -> None:
        a, b, c = SessionNode(A), SessionNode(B), SessionNode(C)
        c.start({A: a.address})
        async with connected(a, b):
            try:
                assert not a.sessions.fetch(C, NAME, LIFE, fetch_from(0)), "nobody has told of it"
                assert a.sessions.is_lost(C)
                assert not a.sessions.is_connected(C)
                a.sessions.meet(C, c.address)
                await a.story.until_told("connected", of=C)
                await c.story.until_told("connected", of=A)  # it was told to come again until then
                assert not a.sessions.is_lost(C)
                assert a.sessions.fetch(C, NAME, LIFE, fetch_from(3))
                await c.story.until_fetched(1)
                a.sessions.part(C)
                await a.story.until_told("connected", "disconnected", of=C)
                await c.story.until_told("connected", "disconnected", of=A)
                assert a.sessions.peers == {B}
                assert not a.sessions.fetch(C, NAME, LIFE, fetch_from(3))
                a.sessions.part(C)
                assert a.story.of(B) == [], "others notice nothing"
            finally:
                await c.stop()

    run(test(), loop)


def test_a_node_at_another_address_is_dialled_there(loop: str) -> None:
    async def test() -> None:
        a, b = SessionNode(A), SessionNode(B)
        async with connected(a, b):
            moved = SessionNode(B)
            moved.start({A: a.address})
            try:
                a.sessions.meet(B, b.address)
                assert a.story.of(B) == [], "that is where it is"
                a.sessions.meet(B, moved.address)
                await a.story.until_told("disconnected", "connected", of=B)
                assert a.sessions.fetch(B, NAME, LIFE, fetch_from(3))
                await moved.story.until_fetched(1)
                assert not b.story.fetches
            finally:
                await moved.stop()

    run(test(), loop)
