"""What is stored on a node of a cluster."""

from tests.support.sockets import RawPeer


async def all_bytes(peer: RawPeer, stream: str, end: int) -> bytes:
    """Read ``[0, end)``, waiting for it, a megabyte at a time."""
    data, offset = b"", 0
    while offset < end:
        await peer.request(op="fetch", id=2, stream=stream, offset=offset, max_wait_ms=10_000, end=end)
        header, body = await peer.response()
        assert header["start_offset"] == offset, header
        assert offset < header["next_offset"] <= header["high_watermark"]
        offset, data = header["next_offset"], data + body
    return data
