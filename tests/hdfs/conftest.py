"""An HDFS; without one every test is skipped and says why."""

import faulthandler
import os
import uuid
from pathlib import Path

import pytest

from tests.hdfs.namenode import Namenode


@pytest.fixture(scope="session")
def hdfs() -> str:
    """The URI of the HDFS that ``with_hdfs`` has started, or of any other."""
    uri = os.environ.get("JETSTREAM_HDFS")
    if uri is None:
        pytest.skip(
            "NOTHING WAS RUN ON HDFS: none is named in JETSTREAM_HDFS; docs/testing.md says how to have one"
        )
    # The Java machine needs SIGSEGV for itself, and pytest would take it back at its end.
    faulthandler.disable()
    return uri


@pytest.fixture
def place(hdfs: str) -> str:
    """A directory that no other test has."""
    return f"{hdfs}/jetstream-tests/{uuid.uuid4()}"


@pytest.fixture
def namenode(hdfs: str) -> Namenode:
    """The namenode, to be killed and started again."""
    scratch = os.environ.get("JETSTREAM_HDFS_SCRATCH")
    if scratch is None:
        pytest.skip(
            f"NO OUTAGE WAS MADE ON HDFS: only with_hdfs starts a namenode that may be killed, not {hdfs}"
        )
    return Namenode(Path(scratch))
