"""CRC32C (Castagnoli) over any buffer.

Source: RFC 3720, appendix B.4.
"""

from typing import Final

import google_crc32c

_CHUNK_BYTES: Final = 1 << 20
"""The library takes only `bytes`; copying in chunks keeps a large frame from being held twice."""


def crc32c(data: bytes | bytearray | memoryview, crc: int = 0) -> int:
    """Return the CRC32C of ``data``, continuing from ``crc``."""
    if len(data) <= _CHUNK_BYTES:
        return int(google_crc32c.extend(crc, bytes(data)))
    view = memoryview(data)
    for start in range(0, len(view), _CHUNK_BYTES):
        crc = google_crc32c.extend(crc, bytes(view[start : start + _CHUNK_BYTES]))
    return crc
