"""A store that speaks S3 over HTTP: moto's server on this machine stands in for a real one."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import quote

from moto.server import ThreadedMotoServer
from pyarrow.fs import S3FileSystem


@dataclass(frozen=True)
class S3Server:
    """One bucket, in the memory of this process: it outlives the server."""

    port: int

    def uri(self, place: str, port: int = 0) -> str:
        """A place in the bucket, at the server's own port or that of a proxy before it."""
        endpoint = quote(f"127.0.0.1:{port or self.port}")
        return f"s3://key:secret@streams/{place}?scheme=http&endpoint_override={endpoint}&region=us-east-1"


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """Start a server with a bucket."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        _, port = server.get_host_and_port()
        bucket = S3FileSystem(
            access_key="key",
            secret_key="secret",
            scheme="http",
            endpoint_override=f"127.0.0.1:{port}",
            region="us-east-1",
            allow_bucket_creation=True,
        )
        bucket.create_dir("streams")
        yield S3Server(port)
    finally:
        server.stop()
