import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from envelope.errors import (
    DiskFull,
    Fenced,
    InternalError,
    JetstreamError,
    OffsetOutOfRange,
    RemoteProtocolError,
    UnknownStream,
    registry,
)
from envelope.types import TimestampUs
from metadata.api.publisher_responses import SetTxidResponse
from metadata.api.requests import REQUESTS, ListStreamsRequest
from metadata.api.responses import (
    RESPONSES,
    ClusterInfo,
    CompactionInfo,
    CreateStreamResponse,
    DedupeInfo,
    DeleteStreamResponse,
    ListStreamsResponse,
    NodeInfo,
    OffsetRange,
    PossibleGap,
    StreamInfo,
    StreamSummary,
    TierInfo,
    TruncateStreamResponse,
    list_page,
    utc,
)
from metadata.api.wire import decode_response, encode_error, encode_response
from metadata.limits import LIST_PAGE_BYTES_MAX
from metadata.stream_config import StreamConfig

INFO = CreateStreamResponse(
    config=StreamConfig(name="orders", subject="orders.>"),
    incarnation="l1",
    created_at=utc(TimestampUs(1_700_000_000_000_001)),
    state="online",
    leader="n1",
    leader_epoch=3,
    replicas=["n1"],
    isr=["n1"],
    log_start_offset=0,
    log_end_offset=43,
    high_watermark=43,
    bytes=4096,
    segments=1,
    dedupe=DedupeInfo(
        ids=5,
        effective_window=timedelta(minutes=2),
        sessions=2,
        effective_session_window=timedelta(days=7),
    ),
    compaction=CompactionInfo(dirty_ratio=0.25, cleaned_end=40, purged_end=30),
    rewritten_end=20,
    tier=TierInfo(start=1, end=20, manifest="m", local_start_offset=10),
    possible_gaps=[PossibleGap(kind="reconnect", since=utc(TimestampUs(1)), until=None, count=1)],
    corrupt_ranges=[OffsetRange(start=3, end=9)],
    created=True,
)


def summary(name: str, subject: str = "a") -> StreamSummary:
    return StreamSummary(name=name, subject=subject, ack="all", replicas=["n1"], leader="n1", leader_epoch=1)


def test_a_stream_is_told_as_documented() -> None:
    assert json.loads(encode_response(INFO)) == {
        "config": {
            "name": "orders",
            "subject": "orders.>",
            "replicas": 1,
            "min_insync_replicas": None,
            "read_replicas": 0,
            "unclean_election": False,
            "read_only": False,
            "ack": "all",
            "sync": "always",
            "sync_interval": "PT1S",
            "compression": "none",
            "segment_bytes": 268435456,
            "segment_age": None,
            "record_bytes_max": 67108864,
            "retention": {"age": None, "bytes": None, "messages": None},
            "tier": False,
            "local_retention": None,
            "local_retention_bytes": None,
            "compact": "none",
            "compact_dirty_ratio": 0.5,
            "compact_age_max": "P1D",
            "tombstone_retention": "P1D",
            "rewrite_after": "PT1H",
            "dedupe_window": "PT2M",
            "dedupe_ids_max": 500000,
            "session_window": "P7D",
            "txid_max_step": None,
            "group": None,
            "labels": {},
            **dict.fromkeys(("partitions", "partition_by", "partition_of", "partition")),
        },
        "incarnation": "l1",
        "created_at": "2023-11-14T22:13:20.000001Z",
        "state": "online",
        "reason": None,
        "reason_code": None,
        "leader": "n1",
        "leader_epoch": 3,
        "replicas": ["n1"],
        "target": None,
        "read_replicas": [],
        "last_unclean_election": None,
        "isr": ["n1"],
        "blank": [],
        "replica_states": [],
        "log_start_offset": 0,
        "log_end_offset": 43,
        "high_watermark": 43,
        "bytes": 4096,
        "segments": 1,
        "time_ahead": "PT0S",
        "dedupe": {
            "ids": 5,
            "effective_window": "PT2M",
            "sessions": 2,
            "effective_session_window": "P7D",
        },
        "compaction": {"dirty_ratio": 0.25, "cleaned_end": 40, "purged_end": 30},
        "rewritten_end": 20,
        "tier": {"start": 1, "end": 20, "manifest": "m", "local_start_offset": 10, "problem": None},
        "possible_gaps": [
            {"kind": "reconnect", "since": "1970-01-01T00:00:00.000001Z", "until": None, "count": 1}
        ],
        "corrupt_ranges": [{"start": 3, "end": 9}],
        "created": True,
    }


@pytest.mark.parametrize(
    "response",
    [
        INFO,
        DeleteStreamResponse(name="a", incarnation="l1"),
        ListStreamsResponse(streams=[summary("a")], total=1, offset=0),
        TruncateStreamResponse(name="a", log_start_offset=5, high_watermark=9),
        TruncateStreamResponse(
            name="a", log_start_offset=5, high_watermark=9, freed_bytes=4096, frees_more_at=7
        ),
        SetTxidResponse(name="a", offset=9, txid=5, last_txid=7),
        ClusterInfo(
            name="c",
            nodes=[NodeInfo(id="n1", node_epoch=1, host="127.0.0.1", port=7000, http_port=None, version="1")],
            metadata_leader="n1",
            streams=0,
            protocol_versions=[1],
        ),
    ],
)
def test_a_response_reads_back_equal(
    response: CreateStreamResponse
    | DeleteStreamResponse
    | ListStreamsResponse
    | TruncateStreamResponse
    | SetTxidResponse
    | ClusterInfo,
) -> None:
    assert decode_response(type(response), encode_response(response)) == response


def test_a_client_ignores_what_a_newer_node_adds() -> None:
    body = json.loads(encode_response(INFO))
    body["mood"] = "good"
    body["state"] = "migrating"
    body["config"]["flavour"] = "mint"
    body["config"]["retention"]["keys"] = 7
    body["possible_gaps"][0]["kind"] = "meteor"
    info = decode_response(StreamInfo, json.dumps(body).encode())
    assert info.config == INFO.config
    assert info.state == "migrating"


@pytest.mark.parametrize(
    "error",
    [
        UnknownStream("no stream 'a'", stream="a"),
        DiskFull("full"),
        OffsetOutOfRange("below", log_start_offset=5, log_end_offset=9),
        Fenced("old", leader_epoch=4),
        InternalError("ours", description="also a detail", self="too"),
    ],
)
def test_an_error_is_told_and_raised_again_as_itself(error: JetstreamError) -> None:
    body = json.loads(encode_error(error))["error"]
    assert body == {
        "code": error.status,
        "err_code": error.err_code,
        "description": error.description,
        "retriable": error.retriable,
        "detail": error.detail,
    }
    with pytest.raises(type(error)) as raised:
        decode_response(StreamInfo, encode_error(error))
    assert (raised.value.description, raised.value.detail) == (error.description, error.detail)


def test_every_registered_error_crosses_the_wire() -> None:
    for kind in registry().values():
        with pytest.raises(kind) as raised:
            decode_response(StreamInfo, encode_error(kind("x", n=1)))
        assert type(raised.value) is kind


def test_an_unknown_error_code_is_still_an_error() -> None:
    teapot = {"code": 418, "err_code": "teapot", "description": "of a later version", "retriable": False}
    with pytest.raises(InternalError, match="of a later version"):
        decode_response(StreamInfo, json.dumps({"error": teapot}).encode())


@pytest.mark.parametrize(
    "payload", [b"", b"{", b"[]", b"{}", b"\xff", b'{"error":1}', b'{"error":{"code":"x"}}']
)
def test_what_is_no_answer_is_the_peers_fault(payload: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="not a StreamInfo"):
        decode_response(StreamInfo, payload)


def test_a_long_description_is_cut_so_that_the_error_always_fits() -> None:
    assert len(encode_error(UnknownStream("x" * 100_000))) < 2000


def test_a_page_ends_at_its_limit_and_reads_no_further() -> None:
    read: list[int] = []

    def summaries() -> Iterator[StreamSummary]:
        for number in range(100):
            read.append(number)
            yield summary(f"s{number}")

    page = list_page(ListStreamsRequest(offset=10, limit=3), 110, summaries())
    assert [stream.name for stream in page.streams] == ["s0", "s1", "s2"]
    assert (page.total, page.offset) == (110, 10)
    assert len(read) <= 4


def test_a_page_ends_before_it_outgrows_a_nats_message() -> None:
    long = [summary(f"s{number}", subject="x" * 4000) for number in range(1000)]
    page = list_page(ListStreamsRequest(limit=1000), 1000, long)
    assert 100 < len(page.streams) < 150
    assert len(encode_response(page)) < LIST_PAGE_BYTES_MAX + 4096
    assert (
        len(list_page(ListStreamsRequest(limit=1), 1, [summary("s", subject="x" * (1 << 20))]).streams) == 1
    )


def test_every_request_has_a_response() -> None:
    assert REQUESTS.keys() == RESPONSES.keys()


def test_timestamps_are_exact_to_the_microsecond() -> None:
    assert utc(TimestampUs(4_102_444_799_999_999)) == datetime(2099, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
