"""The table of docs/metrics.md, made from `METRICS`: ``python -m tests.tidy.metrics_table`` writes it."""

from typing import Final

from jetstream.node.http.metrics import METRICS
from tests.tidy.source_tree import ROOT

PAGE: Final = ROOT / "docs" / "metrics.md"
BEGIN: Final = "<!-- metrics: begin, written by python -m tests.tidy.metrics_table -->"
END: Final = "<!-- metrics: end -->"


def render() -> str:
    """Return the table, one line per metric, in the order of the definitions."""
    lines = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    for metric in METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels) or "none"
        lines.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |")
    return "\n".join(lines)


def with_table(page: str) -> str:
    """Return ``page`` with the table between its marks replaced."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{render()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
