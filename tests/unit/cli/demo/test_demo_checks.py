"""What the demo on several nodes takes for a loss, a double or a difference."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from envelope.errors import CorruptDataError
from jetstream.cli.demo.flights import Flight
from jetstream.cli.demo.three_nodes import checked_as_acked, equal_files

MESSAGES = [Flight(f"flights.JFK.{place}", b"%d" % place) for place in range(4)]
ACKED = [0, 1, 3, 2]
"""The third message had to be sent again."""
STORED = [0, 1, 3, 2]
"""The messages in the order of the stream."""


def table(stored: Sequence[int], first: int = 0) -> pa.Table:
    return pa.table(
        {
            "offset": pa.array(range(first, first + len(stored)), pa.int64()),
            "subject": pa.array([MESSAGES[place].subject for place in stored]),
            "value": pa.array([MESSAGES[place].value for place in stored]),
        }
    )


def test_every_message_once_and_where_it_was_acked_passes() -> None:
    expected = hashlib.sha256(b"0123").hexdigest()
    assert checked_as_acked(MESSAGES, ACKED, table(STORED)) == expected


@pytest.mark.parametrize(
    ("acked", "stored", "first"),
    [
        (ACKED, [0, 1, 3], 0),
        (ACKED, [0, 1, 3, 2, 2], 0),
        (ACKED, [0, 1, 3, 3], 0),
        (ACKED, [0, 1, 2, 3], 0),
        ([0, 1, 2, 2], STORED, 0),
        (ACKED, STORED, 1),
    ],
    ids=["lost", "doubled", "doubled for a lost one", "elsewhere", "acked twice", "other offsets"],
)
def test_anything_else_is_damage(acked: list[int], stored: list[int], first: int) -> None:
    with pytest.raises(CorruptDataError):
        checked_as_acked(MESSAGES, acked, table(stored, first))


def test_a_value_that_is_not_the_published_one_is_damage() -> None:
    stored = table(STORED).set_column(2, "value", pa.array([b"0", b"1", b"2", b"3"]))
    with pytest.raises(CorruptDataError, match="SHA-256"):
        checked_as_acked(MESSAGES, ACKED, stored)


def test_files_that_all_replicas_have_are_to_be_equal(tmp_path: Path) -> None:
    replicas = []
    for node in "ab":
        (tmp_path / node).mkdir()
        files = {name: tmp_path / node / name for name in ("1", "2", node)}
        for name, path in files.items():
            path.write_text(name)
        replicas.append(files)
    assert equal_files(replicas) == 2
    replicas[1]["2"].write_text("3")
    with pytest.raises(CorruptDataError, match="files 2 differ"):
        equal_files(replicas)
