"""A reader checks what a server says: a server that is wrong makes an error, never a wrong record."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from envelope.errors import (
    CorruptDataError,
    JetstreamError,
    OffsetOutOfRange,
    RemoteProtocolError,
    UnavailableError,
)
from envelope.limits import RESPONSE_BODY_BYTES_MAX
from envelope.types import Incarnation
from jetstream.client.nodes.node_links import NodeLinks
from jetstream.client.nodes.socket_access import FixedAddresses
from jetstream.client.read.fetch_pipeline import FetchSettings
from jetstream.client.read.places import Start
from jetstream.client.read.read_range import ReadRange
from jetstream.client.read.reader import BatchReader, ReadSettings
from jetstream.log.disk.machine_id import machine_id
from jetstream.protocol.requests import Fetch
from jetstream.protocol.responses import FetchResponse, StoredRangeResponse
from tests.support.forged_responses import Answer, a_batch, a_response, listening
from tests.support.sockets import WAIT_SECONDS, run


def a_stored_range() -> StoredRangeResponse:
    return StoredRangeResponse(path="/nowhere", device=1, inode=1, position=0, length=20_000)


@asynccontextmanager
async def a_server(
    answer: Answer, log_starts: Sequence[int], machine: str | None = None, start: Start = "earliest"
) -> AsyncIterator[BatchReader]:
    """A reader up to offset 100 of a server that answers as the test likes."""
    async with listening(answer, log_starts, machine) as address:
        links = NodeLinks(FixedAddresses([address]), WAIT_SECONDS)
        try:
            yield BatchReader(links, ReadRange("s", start), ReadSettings(FetchSettings(), retry_s=0.05))
        finally:
            links.close()


def read(
    answer: Answer,
    log_starts: Sequence[int] = (0,),
    machine: str | None = None,
    start: Start = "earliest",
) -> list[int]:
    """Return the offsets that were read; raises what the reader raises, with these as a note."""

    async def test() -> list[int]:
        seen: list[int] = []
        async with a_server(answer, log_starts, machine, start) as reader:
            try:
                async for batch in reader:
                    seen += [offset for offset in batch.column(0).to_pylist() if offset is not None]
            except JetstreamError as error:
                error.add_note(str(seen))
                raise
        return seen

    return run(test())


def test_an_honest_server_is_believed() -> None:
    def answer(fetch: Fetch, offset: int) -> tuple[FetchResponse, bytes]:
        start = offset - offset % 10
        return a_response(fetch, start, start + 10), a_batch(start, 10)

    assert read(answer) == list(range(100))


@pytest.mark.parametrize(
    ("start", "end", "body"),
    [
        (5, 15, a_batch(5, 10)),
        (0, 10, a_batch(5, 10)),
        (0, 20, a_batch(0, 10)),
        (0, 20, a_batch(0, 10) + a_batch(15, 5)),
        (0, 20, a_batch(0, 10) + a_batch(0, 10)),
        (0, 10, b""),
        (0, 0, a_batch(0, 10)),
        (0, 10, a_batch(0, 10)[:-8]),
        (0, 10, a_batch(0, 10)[:-1] + b"\x01"),
        (0, 10, bytes(100)),
        (0, 10, b"\xff" * 100),
    ],
)
def test_a_server_that_is_wrong_about_a_range_is_found_out(start: int, end: int, body: bytes) -> None:
    with pytest.raises((CorruptDataError, RemoteProtocolError)) as caught:
        read(lambda fetch, _: (a_response(fetch, start, end), body))
    (seen,) = caught.value.__notes__
    assert seen in ("[]", str(list(range(10))))


def test_a_range_behind_the_reader_is_refused() -> None:
    def answer(fetch: Fetch, offset: int) -> tuple[FetchResponse, bytes]:
        return a_response(fetch, 0, 10), a_batch(0, 10)

    with pytest.raises(RemoteProtocolError) as caught:
        read(answer)
    assert caught.value.__notes__ == [str(list(range(10)))]


def test_a_file_that_nobody_asked_for_is_not_opened() -> None:
    """The server has not said that it is on this machine."""

    def answer(fetch: Fetch, offset: int) -> tuple[FetchResponse, bytes]:
        assert fetch.short_circuit is None
        response = a_response(fetch, offset, offset + 10)
        return response.model_copy(update={"file": a_stored_range()}), b""

    with pytest.raises(RemoteProtocolError, match="a file that was not asked for") as caught:
        read(answer)
    assert caught.value.__notes__ == ["[]"]


def test_a_file_beside_a_body_is_refused() -> None:
    def answer(fetch: Fetch, offset: int) -> tuple[FetchResponse, bytes]:
        assert fetch.short_circuit
        response = a_response(fetch, offset, offset + 10)
        return response.model_copy(update={"file": a_stored_range()}), a_batch(offset, 10)

    with pytest.raises(RemoteProtocolError, match="one beside a body"):
        read(answer, machine=machine_id())


@pytest.mark.parametrize(
    "wrong",
    [
        {"path": "relative"},
        {"path": ""},
        {"path": "/with/\0"},
        {"length": 0},
        {"length": RESPONSE_BODY_BYTES_MAX + 1},
        {"position": -1},
        {"position": 1 << 63},
        {"inode": -1},
    ],
    ids=str,
)
def test_a_file_that_cannot_be_one_breaks_the_connection(wrong: dict[str, object]) -> None:
    def answer(fetch: Fetch, offset: int) -> tuple[FetchResponse, bytes]:
        response = a_response(fetch, offset, offset + 10)
        return response.model_copy(update={"file": a_stored_range().model_copy(update=wrong)}), b""

    with pytest.raises(RemoteProtocolError, match=f"FetchResponse: file.{next(iter(wrong))}"):
        read(answer, machine=machine_id())


def test_a_server_that_names_a_device_is_asked_again_for_the_records_themselves() -> None:
    """With its real numbers: of /dev/zero there would be no end."""
    status = Path("/dev/zero").stat()
    device = {"path": "/dev/zero", "device": status.st_dev, "inode": status.st_ino}

    def answer(fetch: Fetch, offset: int) -> tuple[FetchResponse, bytes]:
        response = a_response(fetch, offset, offset + 10)
        if fetch.short_circuit is None:
            return response, a_batch(offset, 10)
        return response.model_copy(update={"file": a_stored_range().model_copy(update=device)}), b""

    assert read(answer, machine=machine_id()) == list(range(100))


def test_another_life_of_the_stream_is_found_out_whatever_the_server_says() -> None:
    def answer(fetch: Fetch, offset: int) -> tuple[FetchResponse, bytes]:
        response = a_response(fetch, offset, offset + 10)
        life = "i" if offset < 50 else "j"
        return response.model_copy(update={"incarnation": life}), a_batch(offset, 10)

    with pytest.raises(RemoteProtocolError, match="incarnation 'j' instead of 'i'") as caught:
        read(answer)
    assert caught.value.__notes__ == [str(list(range(50)))]


@pytest.mark.parametrize("start", ["earliest", -90])
def test_a_place_is_looked_up_again_if_retention_was_faster(start: Start) -> None:
    def answer(fetch: Fetch, offset: int) -> tuple[FetchResponse, bytes]:
        if offset < 50:
            raise OffsetOutOfRange("gone", log_start_offset=50)
        return a_response(fetch, 50, 100), a_batch(50, 50)

    assert read(answer, log_starts=(0, 20, 50), start=start) == list(range(50, 100))


def test_retention_that_overtakes_a_reader_is_an_error() -> None:
    def answer(fetch: Fetch, offset: int) -> tuple[FetchResponse, bytes]:
        if offset >= 50:
            raise OffsetOutOfRange("gone", log_start_offset=70)
        return a_response(fetch, 0, 50), a_batch(0, 50)

    with pytest.raises(OffsetOutOfRange) as caught:
        read(answer)
    assert caught.value.__notes__ == [str(list(range(50)))]


def test_every_fetch_that_names_a_place_names_the_history_it_continues() -> None:
    asked: list[tuple[int | str, int | None, str | None]] = []

    def answer(fetch: Fetch, offset: int) -> tuple[FetchResponse, bytes]:
        broken = offset == 50 and all(named != 50 for named, _, _ in asked)
        asked.append((fetch.offset, fetch.last_epoch, fetch.incarnation))
        if broken and fetch.offset == "next":
            raise UnavailableError("not now")
        return a_response(fetch, offset, offset + 25), a_batch(offset, 25)

    assert read(answer) == list(range(100))
    life = Incarnation("i")
    named = [fetch for fetch in asked if fetch[0] != "next"]
    assert named == [(0, None, life), (50, 1, life)]
    assert {fetch for fetch in asked if fetch[0] == "next"} == {("next", None, life)}, "its cursor knows"
