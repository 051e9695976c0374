"""Every program in examples/ runs against a real node and prints what it says it does."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support.commands import REPOSITORY, WAIT_SECONDS, up

EXAMPLES = REPOSITORY / "examples"

OUTPUTS = {
    "publish_and_read.py": """\
stored in orders at offset 0
retried: offset 0, duplicate True
9998 orders.us b'9999' b'{"id": 9999}'
9999 orders.us b'10000' b'{"id": 10000}'
10000 records read as Arrow batches
followed to offset 10000
""",
    "plain_nats_js_publish.py": """\
stored in invoices as sequence 1
retried: sequence 1, duplicate True
refused: wrong last sequence: 1 (err_code 10071)
100 more, sequences 2 to 101
""",
    "existing_service.py": """\
hello, ada
hello, grace
hello, barbara
the stream audit holds 4 messages
""",
    "tiered_files.py": """\
pyarrow: columns offset, timestamp, subject, key, headers, txid, value
pyarrow: all that the manifest says: True
polars: as many: True, first hour 0
duckdb: as many: True
duckdb: first of each subject [('readings.0', 0), ('readings.1', 100), ('readings.2', 200)]
""",
    "exactly_once.py": """\
4 of the clerks were killed
3000 receipts for 3000 purchases
each purchase exactly once: True
""",
    "resuming_consumer.py": """\
starting at None
took parcel 0, parcel 1
committed 2 in __cursors
starting at 2
took parcel 2, parcel 3
committed 4 in __cursors
starting at 4
took parcel 4
committed 5 in __cursors
refused: 60033
""",
    "overlapping_streams.py": """\
sales.eu.berlin is stored by ['sales', 'sales-eu']
acked by sales-eu at offset 0
acked by [('sales', 1), ('sales-eu', 1)]
refused: wrong_expected_stream
sales: ['1 bicycle', '2 bicycles']
sales-eu: ['1 bicycle', '2 bicycles']
""",
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder that is the node's object store."""
    return str(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory, store: str) -> Iterator[str]:
    """URL of the NATS server of a running node."""
    settings = {"JETSTREAM_NODE_TIER": store, "JETSTREAM_NODE_MAINTENANCE_INTERVAL": "PT0.1S"}
    process, endpoints = up(tmp_path_factory.mktemp("data"), **settings)
    with process:
        yield endpoints["nats"]
        assert process.signalled(signal.SIGTERM)[0] == 0


QUICK = {"publish_and_read.py", "existing_service.py"}
"""In the test command; the others are slow."""


def test_every_example_is_tested() -> None:
    in_spark = {"flights_spark.py"}  # tests/spark/test_flights_example.py
    assert {path.name for path in EXAMPLES.glob("*.py")} == {*OUTPUTS, *in_spark}


_SLOW = pytest.mark.slow("tests/integration/test_examples.py", "tests/integration/test_page_examples.py")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else _SLOW) for name in sorted(OUTPUTS)]
)
def test_the_example_prints_what_it_should(nats: str, store: str, name: str) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), nats],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "JETSTREAM_NODE_TIER": store},
    )
    assert (done.stdout, done.stderr, done.returncode) == (OUTPUTS[name], "", 0)
