"""Which version of Jetstream runs."""

from importlib.metadata import PackageNotFoundError, version
from typing import Final


def _distribution_version() -> str:
    try:
        return version("jetstream-log")
    except PackageNotFoundError:
        return "0+unknown"


VERSION: Final = _distribution_version()
