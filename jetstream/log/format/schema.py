"""The columns of a log, format 1, and the two byte strings that frame a segment.

New columns are nullable and last; a new format begins only at a segment's start.

Source: Apache Arrow columnar format, "IPC Streaming Format".
"""

from typing import Any, Final

import pyarrow as pa

SCHEMA_ID: Final = 1
"""Name of `SCHEMA` in the socket protocol."""

HEADERS_TYPE: Final[pa.DataType] = pa.list_(
    pa.struct([pa.field("key", pa.utf8()), pa.field("value", pa.binary())])
)

_COLUMNS: "list[pa.Field[Any]]" = [
    pa.field("offset", pa.int64(), nullable=False),
    pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
    pa.field("subject", pa.utf8(), nullable=False),
    pa.field("key", pa.binary()),
    pa.field("headers", HEADERS_TYPE),
    pa.field("txid", pa.int64()),
    pa.field("value", pa.binary()),
]

SCHEMA: Final = pa.schema(_COLUMNS)

NO_RECORDS: Final = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in _COLUMNS], schema=SCHEMA)
"""An empty batch."""

SCHEMA_MESSAGE: Final = bytes.fromhex(
    "ffffffff380200001000000000000a000c000600050008000a000000000104000c000000080008000000040008000000"
    "0400000007000000d001000078010000480100002001000064000000300000000400000000ffffff0000010410000000"
    "1800000004000000000000000500000076616c7565000000ccfeffff28ffffff00000102100000001800000004000000"
    "0000000004000000747869640000000074feffff000000014000000058ffffff0000010c140000001c00000004000000"
    "010000001400000007000000686561646572730028ffffff84ffffff0000010d18000000200000000400000002000000"
    "4000000014000000040000006974656d0000000058ffffffb4ffffff0000010410000000180000000400000000000000"
    "0500000076616c756500000080ffffffdcffffff0000010510000000140000000400000000000000030000006b657900"
    "a4ffffff100014000800060007000c000000100010000000000001041000000014000000040000000000000003000000"
    "6b657900d8ffffff90ffffff00000005100000001c0000000400000000000000070000007375626a6563740004000400"
    "04000000bcffffff0000000a100000002400000004000000000000000900000074696d657374616d7000000008000c00"
    "060008000800000000000200040000000300000055544300100014000800000007000c00000010001000000000000002"
    "10000000200000000400000000000000060000006f6666736574000008000c0008000700080000000000000140000000"
)
"""Encapsulated schema message: the first bytes of every segment, whichever pyarrow wrote the rest.

Pinned, so that equal logs are equal files and a flipped bit in it is seen; a test holds it to `SCHEMA`.
"""

END_OF_STREAM: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""The last bytes of a sealed segment."""

assert len(SCHEMA_MESSAGE) % 8 == 0, "batches must begin at a multiple of 8"
