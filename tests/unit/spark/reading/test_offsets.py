import json
import re

import pytest

from envelope.errors import RequestError
from jetstream.spark.reading.offsets import INITIAL, StreamOffset, decode_offsets, encode_offsets, is_initial

LIFE = "c932c8bd567b9b11"


def test_offsets_are_written_as_documented() -> None:
    offsets = {"orders/1": StreamOffset(LIFE, 7, start=3), "orders/0": StreamOffset(LIFE, 42)}
    assert json.dumps(encode_offsets(offsets)) == (
        '{"v": 1, "streams": {"orders/0": {"id": "c932c8bd567b9b11", "offset": 42}, '
        '"orders/1": {"id": "c932c8bd567b9b11", "offset": 7, "start": 3}}}'
    )


def test_what_was_written_is_read_again() -> None:
    offsets = {"orders": StreamOffset(LIFE, 42), "a/2": StreamOffset(LIFE, 0, start=0)}
    assert decode_offsets(encode_offsets(offsets)) == offsets
    assert decode_offsets({"v": 1, "streams": {}}) == {}


def test_only_the_initial_offset_says_that_nothing_was_read() -> None:
    assert is_initial(INITIAL)
    assert decode_offsets(INITIAL) == {}
    assert not is_initial(encode_offsets({}))


def one(**fields: object) -> dict[str, object]:
    return {"v": 1, "streams": {"orders": {"id": LIFE, "offset": 42} | fields}}


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ({"v": 2, "streams": {}}, "version 2 "),
        ({"v": True, "streams": {}}, "version True "),
        ({"orders": {"0": 42}}, "version None "),
        ({"v": 1}, "no streams"),
        ({"v": 1, "streams": {}, "more": 1}, "an unknown field more"),
        ({"v": 1, "streams": [1]}, "streams is [1], not an object"),
        ({"v": 1, "streams": {"orders": 42}}, "orders is 42, not an object"),
        ({"v": 1, "streams": {"orders": {"offset": 42}}}, "orders: no id"),
        ({"v": 1, "streams": {"orders": {"id": LIFE}}}, "orders: no offset"),
        (one(epoch=3), "orders: an unknown field epoch"),
        (one(id=""), "orders: id is ''"),
        (one(id=7), "orders: id is 7"),
        (one(offset=-1), "orders: offset is -1, not an offset"),
        (one(offset=True), "orders: offset is True, not an offset"),
        (one(offset="42"), "orders: offset is '42', not an offset"),
        (one(offset=1 << 63), "orders: offset is 9223372036854775808, not an offset"),
        (one(start=-2), "orders: start is -2, not an offset"),
        (one(start=43), "orders: a batch from 43 to 42"),
    ],
)
def test_a_checkpoint_that_cannot_be_read_says_why(written: dict[str, object], problem: str) -> None:
    with pytest.raises(RequestError, match=f"^checkpoint: .*{re.escape(problem)}"):
        decode_offsets(written)
