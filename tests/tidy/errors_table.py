"""The table of docs/errors.md, made from the registry: ``python -m tests.tidy.errors_table`` writes it."""

from typing import Final

from envelope.errors import (
    CorruptDataError,
    Fenced,
    InternalError,
    JetstreamError,
    RemoteProtocolError,
    RequestError,
    StorageError,
    UnavailableError,
    registry,
)
from tests.tidy.source_tree import ROOT

PAGE: Final = ROOT / "docs" / "errors.md"
BEGIN: Final = "<!-- errors: begin, written by python -m tests.tidy.errors_table -->"
END: Final = "<!-- errors: end -->"

_FAMILIES: Final[tuple[tuple[type[JetstreamError], str], ...]] = (
    (RequestError, "the caller"),
    (UnavailableError, "the moment"),
    (Fenced, "a stale peer"),
    (RemoteProtocolError, "the peer"),
    (CorruptDataError, "the medium"),
    (StorageError, "the machine"),
    (InternalError, "us"),
)


def render() -> str:
    """Return the table, one line per ``err_code``, families together, in the order of the registry."""
    lines = [
        "| err_code | class | whose fault | status | ack code | retry | meaning |",
        "|---|---|---|---|---|---|---|",
    ]
    for family, _ in _FAMILIES:
        for err_code, error in documented().items():
            if family_of(error)[0] is family:
                lines.append(_line(err_code, error))
    return "\n".join(lines)


def documented() -> dict[str, type[JetstreamError]]:
    """Return the registry without what a test may have added to it."""
    return {code: error for code, error in registry().items() if error.__module__.startswith("envelope.")}


def family_of(error: type[JetstreamError]) -> tuple[type[JetstreamError], str]:
    """Return the family of ``error`` and whose fault it is."""
    return next(row for row in _FAMILIES if issubclass(error, row[0]))


def _line(err_code: str, error: type[JetstreamError]) -> str:
    meaning = (error.__doc__ or "").split("\n\n")[0].replace("\n", " ").replace("``", "`").strip()
    retry = "yes" if error.retriable else "no"
    return (
        f"| `{err_code}` | `{error.__name__}` | {family_of(error)[1]} | {error.status} | {error.ack_code} "
        f"| {retry} | {' '.join(meaning.split())} |"
    )


def with_table(page: str) -> str:
    """Return ``page`` with the table between its marks replaced."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{render()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
