"""The number of examples that hypothesis draws: the profile's share of what a test asks for."""

from typing import Final

from hypothesis import settings

_WHOLE: Final = 100
"""As many does the profile draw (`tests/conftest.py`) in which each test has the number that it asks for."""
_FEW: Final = 5


def examples(count: int) -> int:
    """Return ``count`` by the profile that is loaded, but not less than a few; for ``max_examples``."""
    return max(count * settings().max_examples // _WHOLE, min(count, _FEW))
