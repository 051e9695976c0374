"""A node's data directory, as the command prepares it."""

from pathlib import Path
from typing import Final

from envelope.errors import InvalidConfig, StorageError
from jetstream.log.disk.identity import DirectoryIdentity
from jetstream.log.disk.os_disk import OsDisk

EMBEDDED_NATS_DIRECTORY: Final = "nats"
"""Where the embedded NATS server keeps its files, inside the data directory."""

CLUSTER_FILE: Final = "cluster"
"""What a directory has that is not a node's own but that of several."""


def claim_data_directory(directory: Path) -> None:
    """Make ``directory`` a data directory, if it is not one, before anything else is put into it.

    A node takes no directory that has files and no identity; so the identity comes first.

    Raises:
        InvalidConfig: it is the directory of several nodes.
        StorageError: a process uses it, or it has files that are not a node's.
    """
    if (directory / CLUSTER_FILE).exists():
        raise InvalidConfig(
            f"{directory} has the data of several nodes: start them with --nodes, "
            "or choose another directory with --data"
        )
    disk = OsDisk(directory)
    try:
        DirectoryIdentity.open_or_create(disk).close()
    except StorageError as error:
        raise type(error)(f"{directory}: {error.description}") from None
    finally:
        disk.close()
