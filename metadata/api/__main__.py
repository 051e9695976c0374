"""Write docs/api: ``python -m metadata.api docs/api``.

Writes one JSON Schema per request and response into the directory, which exists, and the tables of
errors and of a stream's settings into the Markdown page beside it, each between its two markers.
"""

import json
import sys
from typing import Final

from metadata.api.reference import error_table, schemas, settings_table

TABLES: Final = {"errors": error_table, "settings": settings_table}
"""By the word in their markers."""


def cut_at_table(page: str, word: str) -> tuple[str, str, str]:
    """Return the parts of ``page``: before a table, with its first marker, the table, and after it."""
    begin, end = f"<!-- {word}: begin (generated) -->\n", f"<!-- {word}: end -->\n"
    before, _, rest = page.partition(begin)
    table, _, after = rest.partition(end)
    return before + begin, table, end + after


def main(directory: str) -> None:
    """Write everything that is generated."""
    for name, schema in schemas().items():
        with open(f"{directory}/{name}.json", "w", encoding="utf-8") as file:
            file.write(json.dumps(schema, indent=2, sort_keys=True) + "\n")
    page_path = f"{directory.rstrip('/')}.md"
    with open(page_path, encoding="utf-8") as file:
        page = file.read()
    for word, table in TABLES.items():
        before, _, after = cut_at_table(page, word)
        page = before + table() + after
    with open(page_path, "w", encoding="utf-8") as file:
        file.write(page)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m metadata.api docs/api")
    main(sys.argv[1])
