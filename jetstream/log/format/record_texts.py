"""The columns of records as texts, a column at a time in Arrow: bytes, headers and timestamps.

Bytes that are UTF-8 stay as they are, any other become base64 in a column of their own: nothing is lost, and
which of the two it is shows. Values and keys of any bytes cost no step in Python for each record.

Source: RFC 8259, section 7 (JSON strings); RFC 3629, section 4 (UTF-8); RFC 4648, section 4 (base64);
RFC 3339 (timestamps).
"""

from binascii import b2a_base64
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from envelope.limits import MIB

BYTES_AT_ONCE: Final = 128 * MIB
"""Of records whose texts are made together: an Arrow column of texts holds 2 GiB, and JSON may need six bytes
for one."""

OPTIONAL_COLUMNS: Final = ("key", "headers", "txid", "value")
"""The columns that a reader may do without, as `requests.Column`; the others are in every line."""

_ESCAPES: Final = {
    "\\": "\\\\",  # before those that bring more of it
    '"': '\\"',
    **{chr(code): f"\\u{code:04x}" for code in range(0x20)},
    "\b": "\\b",
    "\t": "\\t",
    "\n": "\\n",
    "\f": "\\f",
    "\r": "\\r",
}
"""What JSON escapes, and nothing that it need not."""

_UTF8: Final = (
    r"\A(?:[\x00-\x7F]|[\xC2-\xDF][\x80-\xBF]"
    r"|\xE0[\xA0-\xBF][\x80-\xBF]|[\xE1-\xEC\xEE\xEF][\x80-\xBF]{2}|\xED[\x80-\x9F][\x80-\xBF]"
    r"|\xF0[\x90-\xBF][\x80-\xBF]{2}|[\xF1-\xF3][\x80-\xBF]{3}|\xF4[\x80-\x8F][\x80-\xBF]{2})*\z"
)
"""Arrow matches binary columns byte by byte, in linear time."""

_PADDING: Final = pa.array([b"", b"\0", b"\0\0"])
_NO_TEXT: Final = pa.scalar(None, pa.utf8())
_NO_BYTES: Final = pa.scalar(None, pa.binary())


class ByteTexts(NamedTuple):
    """A column of bytes as two of text: a value that is not null is in one of them, and null in the other."""

    utf8: "pa.Array[Any]"
    base64: "pa.Array[Any] | None"
    """None: all values are UTF-8."""


def slices(batch: pa.RecordBatch, bytes_max: int = BYTES_AT_ONCE) -> Iterator[pa.RecordBatch]:
    """Yield ``batch`` in parts of at most ``bytes_max`` each, or of one record; views."""
    if batch.num_rows > 1 and batch.nbytes > bytes_max:
        middle = batch.num_rows // 2
        yield from slices(batch.slice(0, middle), bytes_max)
        yield from slices(batch.slice(middle), bytes_max)
    else:
        yield batch


def byte_texts(column: "pa.Array[Any]") -> ByteTexts:
    """Return ``column`` as text, and as base64 where it is none."""
    try:
        return ByteTexts(column.cast(pa.utf8()), None)
    except pa.ArrowInvalid:  # some value is not UTF-8: it is looked for
        # Copied, as of a view older versions of `if_else` choose other bytes (Arrow GH-49410).
        column = pa.concat_arrays([column, column.slice(0, 0)])
        is_utf8 = pc.match_substring_regex(column, _UTF8)
    texts = pc.if_else(is_utf8, column, _NO_BYTES).cast(pa.utf8())
    return ByteTexts(texts, _base64(pc.if_else(is_utf8, _NO_BYTES, column)))


def timestamp_texts(column: "pa.Array[Any]") -> "pa.Array[Any]":
    """Return UTC moments as RFC 3339 with microseconds but without the final ``Z``: 26 characters.

    A year before 0 or after 9999, which RFC 3339 does not have, takes more.
    """
    # Without its zone: that would be looked up in the machine's database of zones.
    texts = column.cast(pa.timestamp("us")).cast(pa.utf8())
    return pc.replace_substring(texts, pattern=" ", replacement="T", max_replacements=1)


def headers_json(headers: "pa.ListArray[Any]") -> "pa.Array[Any]":
    """Return each record's headers as a JSON array of objects, in their order; null where there are none."""
    first, last = headers.offsets[0].as_py(), headers.offsets[-1].as_py()
    items: Any = headers.values.slice(first, last - first)
    keys = joined('"', json_escaped(items.field("key")), '"').fill_null("null")
    values = json_member("value", items.field("value")).fill_null(',"value":null')
    objects = joined('{"key":', keys, values, "}")
    lists: Any = pa.ListArray.from_arrays(pc.subtract(headers.offsets, first), objects)
    elements: Any = pc.binary_join(lists, ",")
    texts: pa.Array[Any] = pc.if_else(headers.is_valid(), joined("[", elements, "]"), _NO_TEXT)
    return texts


def json_member(name: str, column: "pa.Array[Any]") -> "pa.Array[Any]":
    """Return bytes as a member of a JSON object that has others before it; null where they are null.

    Other bytes than UTF-8 stand as base64 under the name with ``_base64`` behind it.
    """
    texts = byte_texts(column)
    members = joined(f',"{name}":"', json_escaped(texts.utf8), '"')
    if texts.base64 is None:
        return members
    others = joined(f',"{name}_base64":"', texts.base64, '"')
    return pc.coalesce(members, others)


def json_escaped(texts: "pa.Array[Any]") -> "pa.Array[Any]":
    """Return texts as they stand between the quotes of JSON strings."""
    content = np.frombuffer(text_bytes(texts), np.uint8)
    if len(content) == 0:
        return texts
    has_control = int(content.min()) < 0x20
    for character, escape in _ESCAPES.items():
        if (has_control or character >= " ") and (content == ord(character)).any():
            texts = pc.replace_substring(texts, pattern=character, replacement=escape)
    return texts


def joined(*pieces: "pa.Array[Any] | str", skip_nulls: bool = False) -> "pa.Array[Any]":
    """Return the texts that stand side by side as one; null where one of them is null, if none is skipped."""
    handling = pc.JoinOptions("skip" if skip_nulls else "emit_null")
    texts: pa.Array[Any] = pc.call_function("binary_join_element_wise", [*pieces, ""], handling)
    return texts


def text_bytes(texts: "pa.Array[Any]") -> memoryview:
    """Return the bytes of all texts side by side, and maybe of nulls among them; a view."""
    _, ends, content = texts.buffers()
    if content is None or ends is None:
        return memoryview(b"")
    bounds = np.frombuffer(memoryview(ends), np.int32)[texts.offset : texts.offset + len(texts) + 1]
    return memoryview(content)[bounds[0] : bounds[-1]]


def _base64(column: "pa.Array[Any]") -> "pa.Array[Any]":
    """Return base64 with padding; null stays null.

    All values are encoded in one go, each filled up with zeros to a multiple of three bytes; the texts that
    come of these zeros are then replaced by the padding.
    """
    values: Any = column.fill_null(b"")
    lengths = pc.binary_length(values).to_numpy()
    zeros = -lengths % 3
    filled = pc.call_function("binary_join_element_wise", [values, _PADDING.take(pa.array(zeros)), b""])
    text = bytearray(b2a_base64(text_bytes(filled), newline=False))
    ends = np.concatenate([[0], np.cumsum((lengths + zeros) // 3 * 4)]).astype(np.int32)
    characters = np.frombuffer(text, np.uint8)
    characters[ends[1:][zeros > 0] - 1] = ord("=")
    characters[ends[1:][zeros > 1] - 2] = ord("=")
    buffers = [None, pa.py_buffer(ends.data), pa.py_buffer(text)]
    encoded: Any = pa.Array.from_buffers(pa.utf8(), len(column), buffers)
    texts: pa.Array[Any] = pc.if_else(column.is_valid(), encoded, _NO_TEXT)
    return texts
