"""What docs/ says about the request API, generated from the models it describes."""

from typing import Final

from envelope.errors import registry
from metadata.api.requests import REQUESTS
from metadata.api.responses import PARTITIONED_RESPONSES, RESPONSES, ErrorResponse

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def schemas() -> dict[str, dict[str, object]]:
    """Return the JSON Schema of every request, every response and the error, by name."""
    found: dict[str, dict[str, object]] = {}
    for name, request in REQUESTS.items():
        found[f"{name}.request"] = {"$schema": _DIALECT, **request.model_json_schema(mode="validation")}
    for name, response in RESPONSES.items():
        found[f"{name}.response"] = {"$schema": _DIALECT, **response.model_json_schema(mode="serialization")}
    for name, response in PARTITIONED_RESPONSES.items():
        schema = response.model_json_schema(mode="serialization")
        found[f"{name}.partitioned.response"] = {"$schema": _DIALECT, **schema}
    found["error"] = {"$schema": _DIALECT, **ErrorResponse.model_json_schema(mode="serialization")}
    return found


def error_table() -> str:
    """Return all registered errors as a Markdown table, ordered by status and word."""
    rows = ["| err_code | code | ack code | retriable | meaning |", "|---|---|---|---|---|"]
    for code, error in sorted(registry().items(), key=lambda item: (item[1].status, item[0])):
        meaning = (error.__doc__ or "").splitlines()[0]
        retriable = "yes" if error.retriable else "no"
        rows.append(f"| `{code}` | {error.status} | {error.ack_code} | {retriable} | {meaning} |")
    return "\n".join(rows) + "\n"
