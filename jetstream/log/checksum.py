"""CRC32C (Castagnoli) over any buffer.

Source: RFC 3720, appendix B.4.
"""

from crc32c import crc32c as _crc32c


def crc32c(data: bytes | bytearray | memoryview, crc: int = 0) -> int:
    """Return the CRC32C of ``data``, continuing from ``crc``; other threads run during a large one."""
    return _crc32c(data, crc)
