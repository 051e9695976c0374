"""A store that speaks Google Cloud Storage's API: an emulator on this machine stands in for a real one."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import ThreadingHTTPServer

from gcp_storage_emulator.handlers import buckets  # type: ignore[import-untyped]  # it ships no types
from gcp_storage_emulator.server import RequestHandler  # type: ignore[import-untyped]  # as above
from gcp_storage_emulator.storage import Storage  # type: ignore[import-untyped]  # as above


@contextmanager
def gcs_server() -> Iterator[str]:
    """Start a server with a bucket; yield the URI of a place in it."""
    storage = Storage(use_memory_fs=True)
    buckets.create_bucket("streams", storage)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(RequestHandler, storage)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            port = server.server_address[1]
            options = f"scheme=http&endpoint_override=127.0.0.1%3A{port}&retry_limit_seconds=30"
            yield f"gs://anonymous@streams/of-a-test?{options}"
        finally:
            server.shutdown()
            thread.join()
