"""What the options of the sink may say."""

import pytest

from envelope.spark_errors import InvalidOption
from jetstream.spark.writing.sink_options import parse_sink_options

GOOD = {"servers": "nats://127.0.0.1:4222", "subject": "orders.new"}


def test_options_are_taken_in_any_case() -> None:
    given = {
        "SERVERS": "nats://a:1,nats://b:2",
        "Subject": "orders.new",
        "stream": "orders",
        "WINDOW": "4",
        "windowbytes": "1m",
        "ackTimeoutMs": "200",
        "RETRYTIMEOUTMS": "3000",
        "compress": "True",
    }
    options = parse_sink_options(given, streaming=False)
    assert options.access.servers == ("nats://a:1", "nats://b:2")
    assert (options.subject, options.stream, options.session_name) == ("orders.new", "orders", None)
    assert options.session_options("orders/1", 4) == {
        "stream": "orders/1",
        "window": 4,
        "window_bytes": 1 << 18,
        "timeout_s": 0.2,
        "retry_s": 3.0,
        "derived": True,
    }
    assert options.compress


def test_sparks_own_options_are_not_the_sinks() -> None:
    own = {"checkpointlocation": "/tmp/c", "queryname": "q"}
    assert parse_sink_options(GOOD | own, streaming=True) == parse_sink_options(GOOD, streaming=True)


@pytest.mark.parametrize(
    ("options", "streaming", "message"),
    [
        ({"subject": "s"}, True, "servers"),
        (GOOD | {"windowByte": "1"}, True, "did you mean windowBytes"),
        (GOOD | {"startingOffsets": "earliest"}, True, "startingOffsets is an option of the source"),
        (GOOD | {"topic": "s"}, False, "subject"),
        (GOOD | {"sessionName": "a"}, True, "sessionName is an option of a batch write"),
        (GOOD | {"staging": "/tmp"}, False, "staging is an option of a streaming write"),
        (GOOD | {"asyncProgressTrackingEnabled": "true"}, True, "written down before it runs"),
        (GOOD | {"subject": "orders.*"}, True, "wildcard"),
        (GOOD | {"subject": ">"}, True, "wildcard"),
        (GOOD | {"subject": " a"}, True, "blanks"),
        (GOOD | {"stream": ""}, True, "empty"),
        (GOOD | {"stream": "a,b"}, True, "one stream"),
        (GOOD | {"sessionName": "ä" * 51}, False, "at most 100 bytes"),
        (GOOD | {"window": "0"}, True, "window"),
        (GOOD | {"windowBytes": "0"}, True, "windowBytes"),
        (GOOD | {"ackTimeoutMs": "x"}, True, "ackTimeoutMs"),
        (GOOD | {"retryTimeoutMs": "-1"}, True, "retryTimeoutMs"),
        (GOOD | {"compress": "zstd"}, True, "compress"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, str], streaming: bool, message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        parse_sink_options(options, streaming=streaming)
