from datetime import timedelta
from typing import get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from envelope.errors import InvalidConfig, InvalidName, InvalidSubject
from metadata.limits import DURATION_MAX
from metadata.stream_config import (
    Duration,
    Retention,
    StreamConfig,
    iso_duration,
    reaches_reserved,
    reserved_refusal,
)
from metadata.stream_patch import RetentionPatch, StreamPatch


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (timedelta(0), "PT0S"),
        (timedelta(seconds=120), "PT2M"),
        (timedelta(days=7), "P7D"),
        (timedelta(days=1, hours=2, minutes=3, seconds=4, microseconds=500_000), "P1DT2H3M4.5S"),
        (timedelta(microseconds=1), "PT0.000001S"),
        (timedelta(hours=87_600), "P3650D"),
    ],
)
def test_durations_are_written_as_iso_8601(duration: timedelta, text: str) -> None:
    assert iso_duration(duration) == text


@given(st.timedeltas(min_value=timedelta(microseconds=1), max_value=DURATION_MAX))
def test_every_duration_reads_back_exactly(duration: timedelta) -> None:
    assert TypeAdapter[timedelta](Duration).validate_python(iso_duration(duration)) == duration


@pytest.mark.parametrize(
    ("written", "duration"),
    [
        ('"PT2M"', timedelta(minutes=2)),
        ("120", timedelta(minutes=2)),
        ("0.5", timedelta(milliseconds=500)),
        ('"P10Y"', timedelta(days=3650)),
    ],
)
def test_durations_are_read_as_iso_8601_or_seconds(written: str, duration: timedelta) -> None:
    config = StreamConfig.model_validate_json(f'{{"name":"a","subject":"a","segment_age":{written}}}')
    assert config.segment_age == duration


@pytest.mark.parametrize(
    "written", ["true", '"soon"', "-1", "0", '"P101Y"', "1e400", "[]", "{}", "0.0000001"]
)
def test_what_is_not_a_duration_is_refused(written: str) -> None:
    with pytest.raises(ValidationError):
        StreamConfig.model_validate_json(f'{{"name":"a","subject":"a","segment_age":{written}}}')


@pytest.mark.parametrize("field", ["replicas", "segment_bytes", "record_bytes_max"])
@pytest.mark.parametrize("written", ["true", '"100000"', "1.5", "100000.0", "null", "-1", "1e30"])
def test_a_number_of_the_wrong_type_or_size_is_refused(field: str, written: str) -> None:
    with pytest.raises(ValidationError):
        StreamConfig.model_validate_json(f'{{"name":"a","subject":"a","{field}":{written}}}')


def test_names_and_subjects_are_refused_with_their_own_errors() -> None:
    for name in ("", "a b", "a.b", "x" * 256, "a//b", "../a"):
        with pytest.raises(InvalidName):
            StreamConfig(name=name, subject="a")
    for subject in ("", "a b", "a..b", ">.a", "x" * 5000):
        with pytest.raises(InvalidSubject):
            StreamConfig(name="a", subject=subject)
    with pytest.raises(InvalidName):
        StreamConfig(name="a", subject="a", group="no good")


def test_the_minimum_in_sync_is_a_majority_unless_said() -> None:
    minima = [StreamConfig(name="a", subject="a", replicas=n).insync_minimum for n in range(1, 6)]
    assert minima == [1, 2, 2, 3, 3]
    assert StreamConfig(name="a", subject="a", replicas=3, min_insync_replicas=1).insync_minimum == 1
    with pytest.raises(InvalidConfig) as raised:
        StreamConfig(name="a", subject="a", replicas=2, min_insync_replicas=3)
    assert raised.value.detail == {"field": "min_insync_replicas"}


@pytest.mark.parametrize(
    ("pattern", "reaches"),
    [
        (">", True),
        ("*", True),
        ("*.a", True),
        ("$JS.API.>", True),
        ("$KV", True),
        ("_INBOX.>", True),
        ("_INBOX.a.b", True),
        ("api.js.stream.create", True),
        ("api.>", True),
        ("api.*.x", True),
        ("api.other.>", False),
        ("api", False),
        ("orders.>", False),
        ("orders.$x", False),
        ("_INBOXES.>", False),
    ],
)
def test_patterns_that_reach_reserved_subjects(pattern: str, reaches: bool) -> None:
    assert reaches_reserved(pattern, "api.js") is reaches
    refused = reserved_refusal(StreamConfig(name="a", subject=pattern), "api.js")
    assert (refused is not None) is reaches
    assert reserved_refusal(StreamConfig(name="a", subject=pattern, ack="none"), "api.js") is None


def test_a_patch_has_each_setting_with_its_type_and_nothing_else() -> None:
    assert list(StreamPatch.model_fields) == list(StreamConfig.model_fields)
    merged_by_key = {"retention", "labels"}
    types = get_type_hints(StreamPatch, include_extras=True)
    for name, declared in get_type_hints(StreamConfig, include_extras=True).items():
        if name in StreamConfig.model_fields and name not in merged_by_key:
            assert types[name] == declared | None, name
    assert list(RetentionPatch.model_fields) == list(Retention.model_fields)
