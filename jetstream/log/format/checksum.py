"""CRC32C (Castagnoli) over any buffer: ``crc32c(data, crc=0)`` continues from ``crc``.

Other threads run during a large one. It is the library's own function: one call per batch.

Source: RFC 3720, appendix B.4.
"""

from crc32c import crc32c

__all__ = ["crc32c"]
