"""The registry: one word and one number for each error, for good."""

import pytest

from envelope.errors import OWN_ACK_CODES, RequestError, UnavailableError, registry

GIVEN_BY_NATS = {
    "bad_request": 10003,
    "unavailable": 10008,
    "out_of_resources": 10023,
    "limit_reached": 10027,
    "disk_full": 10047,
    "invalid_config": 10052,
    "record_too_large": 10054,
    "stream_exists": 10058,
    "stream_not_found": 10059,
    "stream_read_only": 10109,
    "retention_bytes_required": 10113,
    "wrong_expected_stream": 10060,
    "wrong_last_msg_id": 10070,
    "wrong_last_sequence": 10071,
    "overloaded": 10077,
    "stream_offline": 10118,
}
"""Where nats-server's ``errors.json`` has a number for the case."""

GIVEN_BY_US = {
    "internal": 60000,
    "invalid_name": 60001,
    "invalid_subject": 60002,
    "offset_out_of_range": 60003,
    "diverged_history": 60004,
    "stream_recreated": 60005,
    "invalid_header": 60006,
    "txid_decreasing": 60007,
    "unsupported": 60008,
    "unauthorized": 60009,
    "node_not_found": 60010,
    "foreign_replica": 60011,
    "no_responders": 60012,
    "deadline_passed": 60013,
    "connection_lost": 60014,
    "protocol_error": 60015,
    "corrupt_data": 60016,
    "storage_error": 60017,
    "fsync_failed": 60018,
    "fenced": 60019,
    "tls_failed": 60020,
    "not_leader": 60021,
    "not_replica": 60022,
    "not_enough_replicas": 60023,
    "removal_pending": 60024,
    "node_in_use": 60025,
    "stream_has_leader": 60026,
    "sequence_gap": 60027,
    "sequence_passed": 60028,
    "tier_unavailable": 60032,
    "session_expired": 60029,
    "invalid_envelope": 60030,
    "offset_forgotten": 60031,
    "invalid_cursor": 60033,
    "stream_lost": 60034,
    "member_fenced": 60040,
    "instance_fenced": 60041,
    "illegal_generation": 60042,
    "partition_not_owned": 60043,
    "cursor_behind": 60044,
    "group_not_found": 60045,
    "group_in_use": 60046,
    "stream_is_partition": 60050,
    "stream_is_partitioned": 60051,
    "partitions_missing": 60052,
    "invalid_option": 60053,
    "data_loss": 60054,
    "subscription_refused": 60055,
    "cancelled": 60057,
    "forbidden": 60058,
    "invalid_ticket": 60059,
    "txid_too_far": 60056,
    "namespace_limit_reached": 60075,
    "subject_not_allowed": 60076,
    "creations_too_fast": 60077,
    "reassignment_under_way": 60080,
    "feature_level_too_low": 60095,
    "nodes_too_old": 60096,
    "unsupported_feature_level": 60097,
    "not_acceptable": 60093,
    "wrong_host": 60094,
    "record_not_found": 60098,
    "path_not_found": 60099,
    "offsets_apart": 60085,
    "origin_differs": 60086,
    "source_truncated": 60087,
    "damaged_backup": 60090,
    "unknown_backup": 60091,
    "directory_in_use": 60092,
}


def test_clients_of_other_versions_know_these_numbers() -> None:
    assert {word: error.ack_code for word, error in registry().items()} == GIVEN_BY_NATS | GIVEN_BY_US


def test_our_own_numbers_are_none_that_nats_may_give_and_fit_its_clients() -> None:
    assert set(GIVEN_BY_US.values()) <= set(OWN_ACK_CODES)
    assert OWN_ACK_CODES.start > 20_000
    assert OWN_ACK_CODES.stop <= 1 << 16


def test_two_errors_cannot_have_one_word_or_one_number() -> None:
    before = registry()
    with pytest.raises(TypeError, match="taken by TxidDecreasing"):
        type("Same", (RequestError,), {}, err_code="txid_decreasing", ack_code=60_999)
    with pytest.raises(TypeError, match="taken by TxidDecreasing"):
        type("Same", (RequestError,), {}, err_code="new", ack_code=60_007)
    assert registry() == before


def test_an_error_with_a_word_needs_a_number() -> None:
    with pytest.raises(TypeError, match="no ack_code of its own"):
        type("Half", (UnavailableError,), {}, err_code="half")
    with pytest.raises(TypeError, match="no ack_code of its own"):
        type("Half", (UnavailableError,), {"err_code": "half", "ack_code": 60_998})
    assert "half" not in registry()
