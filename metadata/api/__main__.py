"""Write docs/api: ``python -m metadata.api docs/api``.

Writes one JSON Schema per request and response into the directory, which exists, and the table of
errors into the Markdown page beside it, between its two markers.
"""

import json
import sys

from metadata.api.reference import error_table, schemas

TABLE_BEGIN = "<!-- errors: begin (generated) -->\n"
TABLE_END = "<!-- errors: end -->\n"


def main(directory: str) -> None:
    """Write everything that is generated."""
    for name, schema in schemas().items():
        with open(f"{directory}/{name}.json", "w", encoding="utf-8") as file:
            file.write(json.dumps(schema, indent=2, sort_keys=True) + "\n")
    page_path = f"{directory.rstrip('/')}.md"
    with open(page_path, encoding="utf-8") as file:
        before, _, rest = file.read().partition(TABLE_BEGIN)
    _, _, after = rest.partition(TABLE_END)
    with open(page_path, "w", encoding="utf-8") as file:
        file.write(f"{before}{TABLE_BEGIN}{error_table()}{TABLE_END}{after}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m metadata.api docs/api")
    main(sys.argv[1])
