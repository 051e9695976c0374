import pytest

from envelope.errors import (
    InvalidConfig,
    InvalidName,
    InvalidSubject,
    RequestError,
    UnknownStream,
    Unsupported,
)
from envelope.limits import API_REQUEST_BYTES_MAX
from envelope.types import AckPolicy
from metadata.api.requests import (
    REQUESTS,
    ClusterInfoRequest,
    CreateStreamRequest,
    DeleteGroupRequest,
    DeleteStreamRequest,
    DrainNodeRequest,
    GroupInfoRequest,
    GroupPlace,
    ListGroupsRequest,
    ListStreamsRequest,
    LookupStreamsRequest,
    ReassignStreamRequest,
    RebalanceRequest,
    RemoveNodeRequest,
    Request,
    ResetGroupRequest,
    SetTxidRequest,
    StreamInfoRequest,
    StreamPublishersRequest,
    TruncateStreamRequest,
    UpdateClusterRequest,
    UpdateStreamRequest,
)
from metadata.api.wire import encode_request, parse_request
from metadata.stream_config import StreamConfig
from metadata.stream_patch import StreamPatch


@pytest.mark.parametrize(
    ("suffix", "payload", "request_"),
    [
        ("stream.create", '{"name":"a","subject":"a.>"}', CreateStreamRequest(name="a", subject="a.>")),
        (
            "stream.create",
            '{"name":"a","subject":"a","ack":"leader","retention":{"age":"P7D"},"replicas":1}',
            CreateStreamRequest.model_validate(
                {"name": "a", "subject": "a", "ack": AckPolicy.LEADER, "retention": {"age": 604800}}
            ),
        ),
        ("stream.update", '{"name":"a","subject":"b"}', UpdateStreamRequest(name="a", subject="b")),
        ("stream.delete", '{"name":"a/b"}', DeleteStreamRequest(name="a/b")),
        ("stream.info", '{"name":"a"}', StreamInfoRequest(name="a")),
        ("stream.publishers", '{"name":"a","after":"s"}', StreamPublishersRequest(name="a", after="s")),
        ("stream.list", "", ListStreamsRequest()),
        ("stream.list", " \n", ListStreamsRequest()),
        ("stream.list", '{"prefix":"a/","limit":5}', ListStreamsRequest(prefix="a/", limit=5)),
        ("stream.lookup", '{"subject":"a.b"}', LookupStreamsRequest(subject="a.b")),
        ("stream.truncate", '{"name":"a","before":0}', TruncateStreamRequest(name="a", before=0)),
        (
            "stream.set_txid",
            '{"name":"a","txid":-9223372036854775808}',
            SetTxidRequest(name="a", txid=-(1 << 63)),
        ),
        (
            "stream.reassign",
            '{"name":"a","replicas":["n2","n1"]}',
            ReassignStreamRequest(name="a", replicas=["n2", "n1"]),
        ),
        ("stream.reassign", '{"name":"a","cancel":true}', ReassignStreamRequest(name="a", cancel=True)),
        ("group.list", "", ListGroupsRequest()),
        (
            "group.list",
            '{"shard":"__cursors/7","prefix":"a/","offset":1,"limit":2}',
            ListGroupsRequest(shard="__cursors/7", prefix="a/", offset=1, limit=2),
        ),
        ("group.info", '{"group":"a/b","offset":3}', GroupInfoRequest(group="a/b", offset=3)),
        (
            "group.reset",
            """{"group":"a","force":true,"cursors":[{"stream":"s","offset":0},
            {"stream":"s","partition":1,"offset":7,"incarnation":"1f","metadata":""}]}""",
            ResetGroupRequest(
                group="a",
                cursors=[
                    GroupPlace(stream="s", offset=0),
                    GroupPlace(stream="s", partition=1, offset=7, incarnation="1f", metadata=""),
                ],
                force=True,
            ),
        ),
        ("group.delete", '{"group":"a"}', DeleteGroupRequest(group="a")),
        ("cluster.info", "{}", ClusterInfoRequest()),
        ("cluster.update", '{"default_replicas":3}', UpdateClusterRequest(default_replicas=3)),
        ("cluster.update", '{"default_replicas":null}', UpdateClusterRequest(default_replicas=None)),
        ("cluster.update", '{"voters":5}', UpdateClusterRequest(voters=5)),
        ("cluster.update", '{"voters":null}', UpdateClusterRequest(voters=None)),
        ("cluster.update", '{"feature_level":1}', UpdateClusterRequest(feature_level=1)),
        ("cluster.update", '{"feature_level":"latest"}', UpdateClusterRequest(feature_level="latest")),
        ("cluster.drain", '{"node":"n1"}', DrainNodeRequest(node="n1")),
        ("cluster.rebalance", "", RebalanceRequest()),
        ("cluster.rebalance", '{"dry_run":true}', RebalanceRequest(dry_run=True)),
        ("cluster.remove", '{"node":"n1"}', RemoveNodeRequest(node="n1")),
    ],
)
def test_a_request_is_read_into_its_model_and_written_back(
    suffix: str, payload: str, request_: Request
) -> None:
    parsed = parse_request(suffix, payload.encode())
    assert parsed == request_
    assert parse_request(suffix, encode_request(parsed)) == parsed


@pytest.mark.parametrize(
    "payload",
    [
        b'{"name":"a"}',
        b'{"name":"a","replicas":["n1"],"cancel":true}',
        b'{"name":"a","replicas":[]}',
        b'{"name":"a","replicas":[""]}',
        b'{"name":"a","replicas":"n1"}',
    ],
)
def test_a_reassignment_says_where_to_or_that_it_is_cancelled(payload: bytes) -> None:
    with pytest.raises(RequestError):
        parse_request("stream.reassign", payload)


def test_a_creation_carries_exactly_a_stream_configuration() -> None:
    request = parse_request("stream.create", b'{"name":"a","subject":"a","labels":{"x":"y"}}')
    assert isinstance(request, CreateStreamRequest)
    assert request.config() == StreamConfig(name="a", subject="a", labels={"x": "y"})
    assert type(request.config()) is StreamConfig
    assert CreateStreamRequest.of(request.config()) == request


def test_a_creation_without_a_number_of_replicas_has_the_default_and_fits_it() -> None:
    request = parse_request("stream.create", b'{"name":"a","subject":"a","min_insync_replicas":2}')
    assert isinstance(request, CreateStreamRequest)
    assert request.config(3) == StreamConfig(name="a", subject="a", replicas=3, min_insync_replicas=2)
    with pytest.raises(InvalidConfig, match="min_insync_replicas: 2 is more than replicas: 1"):
        request.config(1)
    said = parse_request("stream.create", b'{"name":"a","subject":"a","replicas":1}')
    assert isinstance(said, CreateStreamRequest)
    assert said.config(3).replicas == 1


def test_an_update_keeps_null_and_absent_apart() -> None:
    request = parse_request("stream.update", b'{"name":"a","segment_age":null,"retention":{"age":null}}')
    assert isinstance(request, UpdateStreamRequest)
    assert request.patch == StreamPatch.model_validate({"segment_age": None, "retention": {"age": None}})
    assert request.patch.model_fields_set == {"segment_age", "retention"}
    assert request.patch.retention is not None
    assert request.patch.retention.model_fields_set == {"age"}
    assert encode_request(request) == b'{"name":"a","segment_age":null,"retention":{"age":null}}'


@pytest.mark.parametrize(
    ("suffix", "payload", "kind", "words"),
    [
        ("stream.creat", "{}", Unsupported, "no request 'stream.creat'"),
        ("", "{}", Unsupported, "stream.create"),
        ("stream.create", "{", RequestError, "not JSON"),
        ("stream.create", "\xff", RequestError, "not JSON"),
        ("stream.create", "[]", RequestError, "JSON object"),
        ("stream.create", "null", RequestError, "JSON object"),
        ("stream.create", '"a"', RequestError, "JSON object"),
        ("stream.create", '{"name":NaN}', RequestError, "not JSON"),
        ("stream.create", '{"name":"\\ud800","subject":"a"}', RequestError, "not JSON"),
        ("stream.create", "", RequestError, "name: is required"),
        ("stream.create", '{"name":"a"}', RequestError, "subject: is required"),
        ("stream.create", '{"name":1,"subject":"a"}', RequestError, "name: Input should be a valid string"),
        (
            "stream.create",
            '{"name":"a","subject":"a","segment_bytes":"1"}',
            RequestError,
            "segment_bytes: Input",
        ),
        (
            "stream.create",
            '{"name":"a","subject":"a","replicas":true}',
            RequestError,
            "replicas: Input should",
        ),
        (
            "stream.create",
            '{"name":"a","subject":"a","segment_age":true}',
            RequestError,
            "segment_age: Input",
        ),
        ("stream.create", '{"name":"a","subject":"a","sbject":"a"}', RequestError, "sbject: unknown key"),
        (
            "stream.create",
            '{"name":"a","subject":"a","retention":{"ages":1}}',
            RequestError,
            "retention.ages: unknown key",
        ),
        (
            "stream.create",
            '{"name":"a","subject":"a","labels":{"a":1}}',
            RequestError,
            "labels.a: Input should",
        ),
        ("stream.create", '{"name":"a b","subject":"a"}', InvalidName, "'a b'"),
        ("stream.create", '{"name":"a","subject":"a..b"}', InvalidSubject, "'a..b'"),
        (
            "stream.create",
            '{"name":"a","subject":"a","ack":"maybe"}',
            InvalidConfig,
            "ack: Input should be 'all'",
        ),
        ("stream.create", '{"name":"a","subject":"a","replicas":0}', InvalidConfig, "replicas: Input should"),
        ("stream.create", '{"name":"a","subject":"a","segment_bytes":1}', InvalidConfig, "segment_bytes: "),
        ("stream.create", '{"name":"a","subject":"a","segment_age":"x"}', InvalidConfig, "segment_age: "),
        (
            "stream.create",
            '{"name":"a","subject":"a","replicas":1,"min_insync_replicas":2}',
            InvalidConfig,
            "min_insync",
        ),
        ("cluster.update", "{}", RequestError, "default_replicas, voters, feature_level: say which"),
        ("cluster.update", '{"feature_level":null}', RequestError, "feature_level"),
        ("cluster.update", '{"feature_level":0}', RequestError, "feature_level"),
        ("cluster.update", '{"feature_level":"newest"}', RequestError, "feature_level"),
        ("cluster.update", '{"default_replicas":16}', RequestError, "default_replicas: Input"),
        ("cluster.update", '{"voters":true}', RequestError, "voters: Input should be a valid integer"),
        ("stream.create", '{"name":"a","subject":"a","partitions":2}', InvalidConfig, "partition_by: say"),
        (
            "stream.create",
            '{"name":"a","subject":"a","partition_by":"key"}',
            InvalidConfig,
            "partition_by: say",
        ),
        (
            "stream.create",
            '{"name":"a","subject":"a","partitions":true,"partition_by":"key"}',
            RequestError,
            "partitions: Input should",
        ),
        (
            "stream.create",
            '{"name":"a","subject":"a","partitions":257,"partition_by":"key"}',
            InvalidConfig,
            "partitions: Input should",
        ),
        (
            "stream.create",
            '{"name":"a/0","subject":"a","partitions":2,"partition_by":"key","partition_of":"a","partition":0}',
            InvalidConfig,
            "partition_of: partitions are made together",
        ),
        ("stream.create", '{"name":"__cursors","subject":"a"}', Unsupported, "internal"),
        ("stream.update", '{"name":"__cursors","read_only":true}', Unsupported, "internal"),
        ("stream.delete", '{"name":"__cursors"}', Unsupported, "internal"),
        ("stream.truncate", '{"name":"__cursors","before":1}', Unsupported, "internal"),
        ("stream.restore", '{"name":"__x"}', Unsupported, "internal"),
        ("cursor.get", '{"consumer":"a"}', RequestError, "stream: is required"),
        ("cursor.get", '{"consumer":"a.b","stream":"s"}', InvalidName, "a.b"),
        ("cursor.list", '{"limit":0}', RequestError, "limit: Input should"),
        ("group.list", '{"shard":"__cursors"}', UnknownStream, "shard: '__cursors' has no"),
        ("group.list", '{"shard":"__cursors/8"}', UnknownStream, "shard: '__cursors/8' has no"),
        ("group.list", '{"limit":1025}', RequestError, "limit: Input should"),
        ("group.info", "", RequestError, "group: is required"),
        ("group.info", '{"group":"a.b"}', InvalidName, "a.b"),
        ("group.info", '{"group":"a","offset":-1}', RequestError, "offset: Input should"),
        ("group.reset", '{"group":"a"}', RequestError, "cursors: is required"),
        ("group.reset", '{"group":"a","cursors":[]}', RequestError, "cursors: List should"),
        ("group.reset", '{"group":"a","cursors":[{"stream":"s"}]}', RequestError, "offset: is required"),
        ("group.reset", '{"group":"a","cursors":[{"stream":"s.t","offset":1}]}', InvalidName, "s.t"),
        ("group.reset", '{"group":"a","cursors":[{"stream":"s","offset":"1"}]}', RequestError, "offset: In"),
        ("group.reset", '{"group":"a","cursors":[{"stream":"s","offset":-1}]}', RequestError, "offset: In"),
        (
            "group.reset",
            '{"group":"a","cursors":[{"stream":"s","offset":1},{"stream":"s","partition":0,"offset":2}]}',
            RequestError,
            "partition 0 of 's' is there twice",
        ),
        (
            "group.reset",
            '{"group":"a","cursors":[{"stream":"s","offset":1}],"force":1}',
            RequestError,
            "force: Input should",
        ),
        ("group.delete", '{"group":"a","forced":true}', RequestError, "forced: unknown key"),
        ("stream.update", '{"subject":"a"}', RequestError, "name: is required"),
        ("stream.update", '{"name":null}', RequestError, "name: Input should be a valid string"),
        ("stream.update", '{"name":"a","segment_bytes":1}', InvalidConfig, "segment_bytes: "),
        ("stream.update", '{"name":"a","read_replicas":-1}', InvalidConfig, "read_replicas: Input should"),
        ("stream.update", '{"name":"a","read_replicas":true}', RequestError, "read_replicas: Input should"),
        (
            "stream.update",
            '{"name":"a","unclean_election":1}',
            RequestError,
            "unclean_election: Input should",
        ),
        ("stream.reassign", '{"name":"a"}', RequestError, "replicas: say where"),
        ("stream.reassign", '{"name":"a","read_replicas":[],"cancel":true}', RequestError, "not both"),
        ("stream.elect", '{"name":"a","node":"n1"}', RequestError, "unclean: is required"),
        ("stream.elect", '{"name":"a","node":"n1","unclean":false}', RequestError, "unclean: true"),
        ("stream.delete", "", RequestError, "name: is required"),
        ("stream.delete", '{"name":"../etc"}', InvalidName, "../etc"),
        ("stream.info", '{"name":"a","x":1}', RequestError, "x: unknown key"),
        ("stream.list", '{"limit":0}', RequestError, "limit: Input should"),
        ("stream.list", '{"limit":100000}', RequestError, "limit: Input should"),
        ("stream.list", '{"offset":-1}', RequestError, "offset: Input should"),
        ("stream.lookup", '{"subject":"a.*"}', InvalidSubject, "wildcard"),
        ("stream.truncate", '{"name":"a"}', RequestError, "before: is required"),
        ("stream.set_txid", '{"name":"a"}', RequestError, "txid: is required"),
        ("stream.set_txid", '{"name":"a","txid":9223372036854775808}', RequestError, "txid: Input should"),
        ("stream.set_txid", '{"name":"__cursors","txid":1}', Unsupported, "internal"),
        ("stream.create", '{"name":"a","subject":"a","txid_max_step":0}', InvalidConfig, "txid_max_step"),
        ("stream.truncate", '{"name":"a","before":"5"}', RequestError, "before: Input should"),
        ("cluster.info", '{"name":"a"}', RequestError, "name: unknown key"),
    ],
)
def test_a_bad_request_is_refused_with_its_field_and_the_reason(
    suffix: str, payload: str, kind: type[RequestError], words: str
) -> None:
    with pytest.raises(RequestError) as raised:
        parse_request(suffix, payload.encode("latin-1"))
    assert type(raised.value) is kind
    assert words in raised.value.description


def test_an_oversized_request_is_refused_before_it_is_read() -> None:
    with pytest.raises(RequestError, match="the limit is") as raised:
        parse_request("stream.create", b"[" * (API_REQUEST_BYTES_MAX + 1))
    assert raised.value.detail == {"limit": API_REQUEST_BYTES_MAX}
    with pytest.raises(RequestError, match="not JSON"):
        parse_request("stream.create", b"[" * API_REQUEST_BYTES_MAX)


def test_every_request_has_its_own_suffix() -> None:
    assert len(set(REQUESTS.values())) == len(REQUESTS)
