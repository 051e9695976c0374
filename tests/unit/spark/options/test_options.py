import pickle
import re
from collections.abc import Mapping

import pytest

from envelope.spark_errors import InvalidOption
from jetstream.spark.options.option_names import CALLED_HERE, names_of
from jetstream.spark.options.option_values import duration_s, size_bytes
from jetstream.spark.options.places import EARLIEST, LATEST, StreamPlace
from jetstream.spark.options.sink_options import SinkOptions
from jetstream.spark.options.source_options import (
    COLUMNS,
    HEADERS,
    PARTITIONS_MAX,
    SourceOptions,
    parse_source_options,
)

CLUSTER = {"servers": "nats://one:4222"}


def streaming(given: Mapping[str, str] | None = None) -> SourceOptions:
    return parse_source_options({**CLUSTER, "stream": "orders", **(given or {})}, streaming=True)


def batch(given: Mapping[str, str] | None = None) -> SourceOptions:
    return parse_source_options({**CLUSTER, "stream": "orders", **(given or {})}, streaming=False)


def test_a_stream_has_the_defaults_of_kafkas_source() -> None:
    options = streaming()
    assert options.starting == StreamPlace("startingOffsets", everywhere=LATEST)
    assert (options.max_offsets, options.min_offsets, options.max_delay_s) == (None, None, 15 * 60)
    assert (options.min_partitions, options.max_records_per_partition) == (None, None)
    assert options.fail_on_data_loss
    assert not options.include_headers
    assert options.no_match == "error"
    assert (options.fetch_timeout_s, options.fetch_retries, options.fetch_retry_interval_s) == (120, 3, 1)
    assert options.patience_s == 4 * 120 + 3 * 1


def test_a_batch_read_takes_all_that_is_there() -> None:
    options = batch()
    assert options.starting == StreamPlace("startingOffsets", everywhere=EARLIEST)
    assert options.ending == StreamPlace("endingOffsets", everywhere=LATEST)


def test_what_is_kafkas_by_name_is_not_kafkas_by_default() -> None:
    options = streaming()
    assert (options.max_bytes, options.subject, options.key, options.columns) == (None, None, None, None)
    assert options.read_preference == "auto"
    assert options.output_columns == COLUMNS


def test_every_option_is_taken() -> None:
    options = streaming(
        {
            "maxOffsetsPerTrigger": "1000",
            "maxBytesPerTrigger": "64m",
            "minOffsetsPerTrigger": "10",
            "maxTriggerDelay": "90s",
            "minPartitions": "4",
            "maxRecordsPerPartition": "500",
            "failOnDataLoss": "False",
            "includeHeaders": "TRUE",
            "subject": "orders.eu.*",
            "key": "order-17",
            "readPreference": "Any",
            "fetchTimeoutMs": "1500",
            "fetchRetries": "0",
            "fetchRetryIntervalMs": "0",
            "startingOffsetsByTimestampStrategy": "Latest",
        }
    )
    assert (options.max_offsets, options.max_bytes, options.min_offsets) == (1000, 64 << 20, 10)
    assert (options.max_delay_s, options.min_partitions, options.max_records_per_partition) == (90, 4, 500)
    assert (options.fail_on_data_loss, options.include_headers) == (False, True)
    assert (options.subject, options.key, options.read_preference) == ("orders.eu.*", "order-17", "any")
    assert (options.fetch_timeout_s, options.fetch_retries, options.fetch_retry_interval_s) == (1.5, 0, 0)
    assert options.patience_s == 1.5
    assert options.no_match == "latest"
    assert pickle.loads(pickle.dumps(options)) == options


def test_the_case_of_names_does_not_matter() -> None:
    assert streaming({"MAXOFFSETSPERTRIGGER": "7"}) == streaming({"maxoffsetspertrigger": "7"})
    with pytest.raises(InvalidOption, match="given twice"):
        streaming({"maxOffsetsPerTrigger": "7", "maxoffsetspertrigger": "8"})


def parsed(options: Mapping[str, str], *, streaming: bool = True) -> SourceOptions:
    return parse_source_options({**CLUSTER, **options}, streaming=streaming)


def test_streams_are_named_in_one_way() -> None:
    assert parsed({"stream": " orders/2 "}).streams == ("orders/2",)
    assert parsed({"streams": "orders, shop/eu,"}).streams == ("orders", "shop/eu")
    assert parsed({"streamPattern": "ord.*"}).pattern == "ord.*"
    with pytest.raises(InvalidOption, match="one of stream, streams and streamPattern, not none"):
        parsed({})
    with pytest.raises(InvalidOption, match="not stream and streamPattern"):
        parsed({"stream": "a", "streamPattern": "b"})


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"stream": "a,b"}, "stream: 'a,b': one name"),
        ({"stream": "or.ders"}, "stream: invalid stream name 'or.ders'"),
        ({"stream": " "}, "stream: ' ': at least one"),
        ({"streams": "a,b,a"}, "streams: a is named twice"),
        ({"streamPattern": "a("}, "streamPattern: 'a(': no regular expression"),
        ({"streamPattern": ""}, "streamPattern is empty"),
    ],
)
def test_names_that_cannot_be_are_refused(options: dict[str, str], problem: str) -> None:
    with pytest.raises(InvalidOption, match=re.escape(problem)):
        parsed(options)


def test_a_query_reads_the_streams_it_names_and_all_their_partitions() -> None:
    options = parsed({"streams": "orders,shop/2"})
    assert options.wants("orders")
    assert options.wants("orders/7", "orders")
    assert options.wants("shop/2", "shop")
    assert not options.wants("shop/1", "shop")
    assert not options.wants("orders2")
    assert parsed({"stream": "__cursors/0"}).wants("__cursors/0")


def test_a_pattern_is_for_whole_names_and_not_for_the_systems_own() -> None:
    options = parsed({"streamPattern": "ord[a-z]*|.*/0|__.*"})
    assert options.wants("orders")
    assert options.wants("orders/7", "orders")
    assert options.wants("shop/0", "shop")
    assert not options.wants("shop/1", "shop")
    assert not options.wants("orders-eu")
    assert not options.wants("__cursors/0")


# --- places ---------------------------------------------------------------------------------------------


def test_offsets_of_partitions_are_written_in_either_way() -> None:
    whole = streaming({"startingOffsets": '{"orders": {"0": 23, "1": -2}, "shop": -1}'}).starting
    assert whole.of_each(["orders/0", "orders/1", "shop"]) == {"orders/0": 23, "orders/1": -2, "shop": -1}
    single = streaming({"startingOffsets": '{"orders/0": 23, "orders/1": -2, "shop": {"0": -1}}'}).starting
    assert single.of_each(["orders/0", "orders/1", "shop"]) == whole.of_each(["orders/0", "orders/1", "shop"])


def test_words_for_places_are_taken_in_any_case() -> None:
    assert streaming({"startingOffsets": " Earliest "}).starting.of_each(["a", "b"]) == {"a": -2, "b": -2}
    assert streaming({"startingOffsets": "LATEST"}).starting.of_each(["a"]) == {"a": -1}


def test_each_stream_that_is_read_must_be_named_and_no_other() -> None:
    starting = streaming({"startingOffsets": '{"orders": {"0": 23, "7": 5}}'}).starting
    with pytest.raises(
        InvalidOption,
        match=re.escape("startingOffsets: orders/1 is not named; orders/7 is not read: name each stream"),
    ):
        starting.of_each(["orders/0", "orders/1"])
    with pytest.raises(InvalidOption, match=re.escape("startingOffsets: orders/7 is not read: name each")):
        starting.of_each(["orders/0"])


def test_moments_are_kafkas_milliseconds_or_iso_8601() -> None:
    moment = 1_795_235_816_000_000
    for text in ("1795235816000", "2026-11-21T04:36:56Z", "2026-11-21T05:36:56+01:00"):
        starting = streaming({"startingTimestamp": text}).starting
        assert (starting.everywhere, starting.is_moment) == (moment, True)
    each = streaming({"startingOffsetsByTimestamp": '{"a": {"1": 5, "2": "6"}, "b": -7}'}).starting
    assert each.streams == {"a/1": 5000, "a/2": 6000, "b": -7000}
    assert each.is_moment


def test_a_moment_goes_before_an_offset_as_with_kafka() -> None:
    offsets = {"startingOffsets": "earliest", "endingOffsets": '{"orders": 9}'}
    each = {"startingOffsetsByTimestamp": '{"orders": 1}', "endingOffsetsByTimestamp": '{"orders": 2}'}
    one = {"startingTimestamp": "3", "endingTimestamp": "4"}
    by_offset, by_each, by_one = batch(offsets), batch(offsets | each), batch(offsets | each | one)
    assert (by_offset.starting.everywhere, by_offset.ending.streams) == (EARLIEST, {"orders": 9})
    assert (by_each.starting.streams, by_each.ending.streams) == ({"orders": 1000}, {"orders": 2000})
    assert (by_one.starting.everywhere, by_one.ending.everywhere) == (3000, 4000)


@pytest.mark.parametrize(
    "text",
    [
        *("newest", "", "{}", "[1]", "23", "{", '{"orders": null}', '{"orders": true}', '{"orders": 1.5}'),
        *(
            '{"orders": -3}',
            '{"orders": 9223372036854775808}',
            '{"orders": {"x": 1}}',
            '{"orders": {"-1": 1}}',
        ),
        *('{"orders/0": 1, "orders": {"0": 2}}', '{"orders": {}}', '{"orders": [0]}', "[" * 100_000),
    ],
)
def test_offsets_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match=r"^startingOffsets"):
        streaming({"startingOffsets": text})


@pytest.mark.parametrize("text", ["", "now", "2026-11-21T12:36:56", "1.5", "9223372036854775807", "²"])
def test_moments_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match=r"^startingTimestamp: "):
        streaming({"startingTimestamp": text})


@pytest.mark.parametrize(
    ("option", "text", "problem"),
    [
        ("startingOffsets", "latest", "reads nothing"),
        ("startingOffsets", '{"orders": -1}', "reads nothing"),
        ("endingOffsets", "earliest", "reads nothing"),
        ("endingOffsets", '{"orders": -2}', "reads nothing"),
    ],
)
def test_a_batch_read_of_nothing_is_refused(option: str, text: str, problem: str) -> None:
    with pytest.raises(InvalidOption, match=f"^{option}.*{problem}"):
        batch({option: text})


# --- columns --------------------------------------------------------------------------------------------


def test_columns_come_in_the_order_in_which_they_are_named() -> None:
    options = streaming({"columns": "VALUE, timestamptype,offset"})
    assert options.output_columns == ("value", "timestampType", "offset")


def test_headers_come_last_or_where_they_are_named() -> None:
    assert streaming({"includeHeaders": "true"}).output_columns == (*COLUMNS, HEADERS)
    named = streaming({"columns": "headers,value"})
    assert named.output_columns == ("headers", "value")
    assert named.include_headers
    assert not streaming({"columns": "value"}).include_headers


@pytest.mark.parametrize(
    ("columns", "headers"), [("value", "true"), ("value,headers", "false")], ids=["lacking", "named"]
)
def test_headers_that_are_wanted_and_not_wanted_are_refused(columns: str, headers: str) -> None:
    with pytest.raises(InvalidOption, match="includeHeaders and columns contradict"):
        streaming({"columns": columns, "includeHeaders": headers})


# --- what does not exist, or not here -------------------------------------------------------------------


@pytest.mark.parametrize("name", names_of(SourceOptions, "batch"))
def test_a_stream_has_no_end(name: str) -> None:
    with pytest.raises(InvalidOption, match=f"^{name} is an option of a batch read"):
        streaming({name.lower(): "latest"})


@pytest.mark.parametrize("name", names_of(SourceOptions, "stream"))
def test_a_batch_read_has_no_triggers(name: str) -> None:
    with pytest.raises(InvalidOption, match=f"^{name} is an option of a stream"):
        batch({name.lower(): "1"})


@pytest.mark.parametrize("name", sorted(set(names_of(SinkOptions)) - set(names_of(SourceOptions))))
def test_an_option_of_the_sink_is_said_to_be_one(name: str) -> None:
    for parse in (streaming, batch):
        with pytest.raises(InvalidOption, match=f"^{name} is an option of the sink"):
            parse({name.lower(): "1"})


@pytest.mark.parametrize("name", sorted(CALLED_HERE))
def test_kafkas_names_are_translated(name: str) -> None:
    with pytest.raises(InvalidOption, match=f"^{re.escape(name)}: here it is called "):
        streaming({name.lower(): "x"})


def test_kafkas_other_options_are_not_needed() -> None:
    with pytest.raises(InvalidOption, match="groupIdPrefix is not needed: the checkpoint has the offsets"):
        streaming({"groupIdPrefix": "x"})
    with pytest.raises(InvalidOption, match="passed on to Kafka, and there is none here"):
        streaming({"kafka.max.poll.records": "x"})


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("startingOfset", "startingOffsets"),
        ("startingoffset", "startingOffsets"),
        ("server", "servers"),
        ("maxOffsetPerTrigger", "maxOffsetsPerTrigger"),
        ("failOnDataLost", "failOnDataLoss"),
        ("nats.pasword", "nats.password"),
        ("headers", "includeHeaders"),
    ],
)
def test_a_misspelt_option_is_told_the_nearest(written: str, meant: str) -> None:
    with pytest.raises(InvalidOption, match=f"there is no option {written}: did you mean {meant}[?]"):
        streaming({written: "1"})


def test_an_option_like_no_other_is_told_all() -> None:
    with pytest.raises(
        InvalidOption, match="there is no option zzz: there are apiPrefix, columns, "
    ) as refused:
        streaming({"zzz": "1"})
    for name in names_of(SourceOptions, "both", "stream"):
        assert name in refused.value.description


def test_a_value_of_an_unknown_option_is_not_shown() -> None:
    with pytest.raises(InvalidOption) as refused:
        streaming({"nats.pasword": "hidden"})
    assert "hidden" not in str(refused.value)


# --- values ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("maxOffsetsPerTrigger", "0"),
        ("maxOffsetsPerTrigger", "-5"),
        ("maxOffsetsPerTrigger", "1e3"),
        ("maxOffsetsPerTrigger", ""),
        ("maxOffsetsPerTrigger", "9223372036854775808"),
        ("maxOffsetsPerTrigger", "1" * 5000),
        ("maxOffsetsPerTrigger", "²"),
        ("minOffsetsPerTrigger", "many"),
        ("maxBytesPerTrigger", "0"),
        ("maxBytesPerTrigger", "5 parsecs"),
        ("maxBytesPerTrigger", "999999999p"),
        ("minPartitions", "0"),
        ("minPartitions", str(PARTITIONS_MAX + 1)),
        ("maxRecordsPerPartition", "0"),
        ("failOnDataLoss", "yes"),
        ("includeHeaders", "1"),
        ("subject", "orders..eu"),
        ("key", "k" * 1025),
        ("columns", "value,topic"),
        ("columns", "value,VALUE"),
        ("columns", ","),
        ("readPreference", "far"),
        ("readPreference", "follower"),
        ("readPreference", "nearest"),
        ("fetchTimeoutMs", "0"),
        ("fetchTimeoutMs", "86400001"),
        ("fetchRetries", "-1"),
        ("fetchRetryIntervalMs", "-1"),
        ("startingOffsetsByTimestampStrategy", "earliest"),
    ],
)
def test_values_that_cannot_be_are_refused(option: str, text: str) -> None:
    with pytest.raises(InvalidOption, match=f"^{option}: "):
        streaming({option: text})


def test_what_kafka_calls_otherwise_is_said() -> None:
    with pytest.raises(InvalidOption, match="here it is called any"):
        streaming({"readPreference": "Nearest"})


def test_limits_of_a_trigger_that_contradict_each_other_are_refused() -> None:
    assert streaming({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "5"}).min_offsets == 5
    with pytest.raises(InvalidOption, match="minOffsetsPerTrigger 6 is above maxOffsetsPerTrigger 5"):
        streaming({"minOffsetsPerTrigger": "6", "maxOffsetsPerTrigger": "5"})
    with pytest.raises(InvalidOption, match="maxTriggerDelay: how long minOffsetsPerTrigger waits"):
        streaming({"maxTriggerDelay": "1m"})


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("15m", 900), ("15 min", 900), ("90S", 90), ("500ms", 0.5), ("250", 0.25), ("2h", 7200), ("1d", 86400)],
)
def test_durations_are_sparks(text: str, seconds: float) -> None:
    assert duration_s("maxTriggerDelay", text) == seconds


@pytest.mark.parametrize("text", ["", "m", "1.5m", "-1m", "1 fortnight", "PT15M", "1m30s"])
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match=r"^maxTriggerDelay: "):
        duration_s("maxTriggerDelay", text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("10b", 10),
        ("1k", 1024),
        ("2KB", 2048),
        ("64 m", 64 << 20),
        ("1GiB", 1 << 30),
        ("3t", 3 << 40),
    ],
)
def test_sizes_are_sparks_powers_of_1024(text: str, size: int) -> None:
    assert size_bytes("maxBytesPerTrigger", text) == size
