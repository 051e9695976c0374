"""A container of Azure Blob Storage; without one every test is skipped and says why."""

import os
import uuid

import pyarrow.fs as pafs
import pytest


@pytest.fixture(scope="session")
def azure() -> str:
    """The URI of a container, which is made if it is not there."""
    uri = os.environ.get("JETSTREAM_AZURE")
    if uri is None:
        pytest.skip(
            "NOTHING WAS RUN ON AZURE: no container is named in JETSTREAM_AZURE; docs/testing.md says how to "
            "have one"
        )
    files, container = pafs.FileSystem.from_uri(uri)
    files.create_dir(container)
    return uri


@pytest.fixture
def place(azure: str) -> str:
    """A place in the container that no other test has."""
    base, _, options = azure.partition("?")
    return f"{base}/jetstream-tests/{uuid.uuid4()}?{options}"
