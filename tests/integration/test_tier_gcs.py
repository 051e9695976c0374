"""A stream in a store that speaks Google Cloud Storage's API: an emulator stands in for a real one."""

from pathlib import Path

from tests.support.gcs_server import gcs_server
from tests.support.nodes import run
from tests.support.tiered_nodes import check_life


def test_a_stream_lives_in_gcs_and_comes_back_from_there(tmp_path: Path) -> None:
    with gcs_server() as uri:
        run(check_life(tmp_path, uri))
