"""Old envelopes stay readable, and an encoder that was written from the page alone makes the same bytes."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import jetstream
from envelope.envelopes import Envelope, Kind, claimed, decode
from envelope.limits import MIB
from envelope.types import Offset, TimestampUs
from jetstream.ingest.batches import joined_records, read_batch
from tests.interop.golden_envelopes import ALL_FIELDS, DIRECTORY, ROWS, VECTORS, envelopes, vector
from tests.support.commands import REPOSITORY
from tests.support.javascript import script
from tests.support.node_packages import EXAMPLES, NotInstallable, installed_examples
from tests.support.nodes import nats_and_node, run

NAMES = sorted(envelopes())
ENCODER = EXAMPLES / "envelope.mjs"
ENCODER_LINES_MAX = 60
PAGE = REPOSITORY / "docs" / "envelope.md"
PROGRAM = """
import { readFileSync } from 'node:fs';
import { batch, message } from '%s';
const vectors = JSON.parse(readFileSync(0, 'utf8'));
const bytes = (hex) => hex == null ? null : Buffer.from(hex, 'hex');
for (const [name, v] of Object.entries(vectors)) {
  const asked = {
    extent: v.extent, messageId: bytes(v.message_id), key: bytes(v.key), txid: v.txid, ack: v.ack,
    ackInbox: v.ack_inbox, correlationId: v.correlation_id, zstd: v.zstd,
    headers: v.headers.map(([name, value]) => [name, bytes(value)]),
  };
  const payload = v.tombstone ? null : bytes(v.payload);
  const made = v.kind === 1 ? message(payload, asked) : batch(payload, v.extent[0], asked);
  console.log(name, made.toString('hex'));
}
"""


def golden(name: str) -> bytes:
    return (DIRECTORY / f"{name}.bin").read_bytes()


def opened(name: str) -> Envelope:
    found = decode(golden(name))
    assert found is not None
    return found


def vectors() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(VECTORS.read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_an_envelope_of_the_past_is_read_as_it_was_meant(name: str) -> None:
    assert vector(golden(name)) == vectors()[name]


def test_there_is_no_file_without_a_vector() -> None:
    assert sorted(path.stem for path in DIRECTORY.glob("*.bin")) == sorted(vectors()) == NAMES


@pytest.mark.parametrize("name", ["empty", "message", "all_fields", "tombstone"])
def test_the_encoder_still_makes_the_same_bytes(name: str) -> None:
    assert envelopes()[name] == golden(name)


def test_the_payloads_of_the_past_are_what_went_in() -> None:
    assert bytes(opened("all_fields").content(MIB)) == b"hello"
    assert opened("all_fields").headers == ALL_FIELDS["headers"]
    assert bytes(opened("message_zstd").content(MIB)) == b"hello " * 100
    for name in ("batch", "batch_zstd"):
        content = read_batch(opened(name), b"s", (), MIB)
        records = joined_records([content], Offset(0), TimestampUs(0))
        for column, rows in ROWS.items():
            assert records[column].to_pylist() == rows.to_pylist(), (name, column)
        assert claimed(golden(name))[0] == 3


def test_the_page_shows_an_envelope_as_it_is() -> None:
    """The bytes in the example are those of a golden file, and each of its lines says what they are."""
    (example,) = re.findall(r"```text\n(8a 4a.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    shown = "".join(re.split(r"\s{2,}", line)[0] for line in example.splitlines())
    assert bytes.fromhex(shown.replace(" ", "")) == golden("tombstone")


def test_the_encoder_in_javascript_is_short() -> None:
    assert len(ENCODER.read_text(encoding="utf-8").splitlines()) < ENCODER_LINES_MAX


def test_the_encoder_in_javascript_makes_the_golden_files() -> None:
    if (node := shutil.which("node")) is None:
        pytest.skip("there is no node command on the PATH")
    done = subprocess.run(
        [node, "--input-type=module", "-e", PROGRAM % ENCODER.as_uri()],
        input=VECTORS.read_text(encoding="utf-8"),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    made = dict(line.split() for line in done.stdout.splitlines())
    assert made == {name: golden(name).hex() for name in NAMES}


def test_a_batch_from_javascript_is_stored_with_one_ack(tmp_path: Path) -> None:
    try:
        examples = installed_examples()
    except NotInstallable as missing:
        pytest.skip(str(missing))

    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await js.streams.create("orders", "orders.>")
            code, (first, again), complaints = await script(
                examples, "publish_batch.mjs", url, "orders.new", "1000"
            )
            assert code == 0, complaints
            assert (first["first_offset"], first["offset"], first["count"]) == (0, 999, 1000)
            assert again == first | {"duplicate": True}
            values = [record.value async for record in js.read("orders")]
            assert values == [b"record %d" % number for number in range(1000)]

    run(scenario())


def test_every_kind_is_among_the_golden_files() -> None:
    kinds = {(opened(name).kind, opened(name).compressed) for name in NAMES}
    assert kinds == {(kind, compressed) for kind in Kind for compressed in (False, True)}
