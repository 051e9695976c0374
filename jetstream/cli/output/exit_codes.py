"""The exit codes of the command, and the one of every error.

The numbers are a promise (docs/cli.md): a new meaning takes a new number.
"""

from enum import IntEnum
from typing import Final

import nats.errors

from envelope.errors import (
    CorruptDataError,
    DiskFull,
    Fenced,
    JetstreamError,
    Overloaded,
    RequestError,
    StreamOffline,
    UnavailableError,
    UnknownBackup,
    UnknownNode,
    UnknownStream,
)
from envelope.group_errors import UnknownGroup
from envelope.namespace_errors import CreationsTooFast


class ExitCode(IntEnum):
    """Exit codes of every ``jetstream`` command."""

    OK = 0
    FAILURE = 1
    """It went wrong here: a disk error, an internal error."""
    USAGE = 2
    """The command line itself is wrong."""
    NOT_FOUND = 3
    """No such stream, group, backup, file or directory."""
    REFUSED = 4
    """Understood and refused, definitely not done: a wrong value, a conflict, missing rights, no room."""
    UNREACHABLE = 5
    """No NATS server, no node, or no answer in time: what was asked may or may not have happened."""
    DATA_DAMAGE = 6
    """Stored bytes fail their checksum or frame."""
    INTERRUPTED = 130
    """Stopped by SIGINT, as shells report it."""


EXPECTED_ERRORS: Final = (JetstreamError, nats.errors.Error, OSError)
"""What is reported in one line; anything else is a bug of ours and keeps its traceback."""

_CODES: Final[tuple[tuple[ExitCode, tuple[type[Exception], ...]], ...]] = (
    (ExitCode.NOT_FOUND, (UnknownStream, UnknownGroup, UnknownNode, UnknownBackup)),
    (ExitCode.NOT_FOUND, (FileNotFoundError, NotADirectoryError)),
    (ExitCode.DATA_DAMAGE, (CorruptDataError,)),
    # These four refusals of the moment are definite: nothing was done.
    (ExitCode.REFUSED, (RequestError, Fenced, Overloaded, DiskFull, StreamOffline, CreationsTooFast)),
    (ExitCode.REFUSED, (nats.errors.AuthorizationError, nats.errors.InvalidUserCredentialsError)),
    (ExitCode.UNREACHABLE, (UnavailableError, ConnectionError, TimeoutError)),
    (ExitCode.UNREACHABLE, (nats.errors.NoServersError, nats.errors.NoRespondersError)),
    (ExitCode.UNREACHABLE, (nats.errors.ConnectionClosedError, nats.errors.StaleConnectionError)),
)
"""The first row that has the error's class decides."""


def exit_code_of(error: BaseException) -> ExitCode:
    """Return the code for an error out of `EXPECTED_ERRORS`."""
    return next((code for code, classes in _CODES if isinstance(error, classes)), ExitCode.FAILURE)
