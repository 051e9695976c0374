"""The value of one record as a response of its own."""

import re
from http import HTTPStatus
from typing import Final

import pyarrow as pa

from envelope.errors import UnknownRecord
from envelope.types import Offset
from jetstream.log.format.batch import decode
from jetstream.node.disk.leased_range import Body
from jetstream.node.http.page import Page

_UNKNOWN_TYPE: Final = "application/octet-stream"
_MEDIA_TYPE: Final = re.compile(r"[\w.+-]{1,64}/[\w.+-]{1,64}(?:; ?charset=[\w-]{1,32})?", re.ASCII)
_HARMLESS: Final = (
    ("x-content-type-options", "nosniff"),
    # Anybody may have published it: a browser that shows it runs nothing of it.
    ("content-security-policy", "default-src 'none'; sandbox"),
    ("cache-control", "no-cache"),
)


def value_page(body: Body | bytes | memoryview, stream: str, offset: Offset) -> Page:
    """Return the value of the record at ``offset``, if a selected answer has it.

    Raises:
        UnknownRecord: it has not, or the value is null.
    """
    assert not isinstance(body, Body), "headers and value are selected"
    records = decode(body)[1] if len(body) else None
    if records is None or not records.num_rows or records["offset"][0].as_py() != offset:
        raise UnknownRecord(f"there is no record {offset} in {stream}", offset=offset)
    value = records["value"][0].as_py()
    if value is None:
        raise UnknownRecord(f"record {offset} in {stream} is a tombstone", offset=offset)
    return Page(HTTPStatus.OK, _content_type(records["headers"][0]), value, _HARMLESS)


def _content_type(headers: "pa.Scalar[pa.DataType]") -> str:
    """Return the content type of the record's headers, if there is one that a header can carry."""
    for header in headers.as_py() or ():
        if header["key"].lower() == "content-type" and header["value"] is not None:
            text = header["value"].decode("latin-1")
            return text if _MEDIA_TYPE.fullmatch(text) else _UNKNOWN_TYPE
    return _UNKNOWN_TYPE
