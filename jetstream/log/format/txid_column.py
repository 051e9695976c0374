"""The largest transaction id of a batch, from its bytes, for the index.

A scan of a segment for its index decodes nothing. Most batches have no transaction id, as the null count in
their metadata shows; of any other batch only that column is read, decompressed if need be.

`last_txid_in` must equal pyarrow's result, `jetstream.log.format.batch.last_txid`: held by a property test.
"""

import struct

import numpy as np
import pyarrow as pa

from envelope.errors import CorruptDataError
from envelope.types import Buffer
from jetstream.log.format.message import txid_buffers, txid_nulls


def last_txid_in(frame: Buffer) -> int | None:
    """Return the largest transaction id in one whole message whose CRC was checked, None if there is none.

    None also for a message that is not Arrow of our schema: no record of it can be read.
    """
    try:
        records, nulls = txid_nulls(frame)
        return None if nulls == records else _largest(frame, records, nulls)
    except (pa.ArrowException, OSError, ValueError, IndexError, struct.error, CorruptDataError):
        return None


def _largest(frame: Buffer, records: int, nulls: int) -> int:
    validity, values = txid_buffers(frame)
    txids = np.frombuffer(values, "<i8", records)
    if nulls:
        present = np.unpackbits(np.frombuffer(validity, np.uint8), count=records, bitorder="little")
        txids = txids[present.view(np.bool_)]
    return int(txids.max())
