"""Whether Spark is installed here, and what to do if not.

The parts of this package that plan and decide need no Spark at all.
"""

import importlib.util
from typing import Final

from envelope.errors import UnavailableError

INSTALL_COMMAND: Final = "pip install 'jetstream-log[spark]'"


def require_spark() -> None:
    """Return if Spark is installed for this interpreter.

    Raises:
        UnavailableError: it is not, with the command that installs it.
    """
    if importlib.util.find_spec("pyspark") is None:
        raise UnavailableError(f"Spark is not installed: {INSTALL_COMMAND}")
