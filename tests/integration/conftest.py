"""What several modules of integration tests share."""

import pytest

from tests.support.nats_identities import TlsFiles, make_tls_files
from tests.support.sockets import LOOPS


@pytest.fixture(params=list(LOOPS))
def loop(request: pytest.FixtureRequest) -> str:
    """The name of an event loop: asyncio's own and uvloop, which differ in sockets and in TLS."""
    name: str = request.param
    return name


@pytest.fixture(scope="session")
def tls_files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    """Certificates of one authority."""
    return make_tls_files(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="session")
def tls_strangers(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    """Certificates of another authority."""
    return make_tls_files(tmp_path_factory.mktemp("strangers"))
