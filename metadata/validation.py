"""From pydantic's findings to one sentence that names the field and the reason."""

from dataclasses import dataclass

from pydantic import ValidationError


@dataclass(frozen=True, slots=True)
class InputProblem:
    """The first thing wrong with some input."""

    field: str
    """Dotted path, empty for the input as a whole."""
    reason: str
    is_structural: bool
    """Whether the shape is wrong (a key, a type), and not merely a value."""

    @property
    def description(self) -> str:
        """Return field and reason in one line."""
        return f"{self.field}: {self.reason}" if self.field else self.reason


_REASONS = {
    "extra_forbidden": "unknown key",
    "missing": "is required",
}
_STRUCTURAL = ("missing", "extra_forbidden", "json_invalid")


def first_problem(error: ValidationError) -> InputProblem:
    """Return the first finding of ``error``, in the order of the fields."""
    finding = error.errors(include_url=False, include_context=False, include_input=False)[0]
    kind = finding["type"]
    return InputProblem(
        field=".".join(str(part) for part in finding["loc"])[:256],
        reason=_REASONS.get(kind, finding["msg"]),
        is_structural=kind in _STRUCTURAL or kind.endswith("_type"),
    )
