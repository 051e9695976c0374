"""The reference pages of the request API in docs/, generated from the models."""

import json
from typing import Any, Final

from envelope.errors import registry
from metadata.api.requests import REQUESTS
from metadata.api.responses import PARTITIONED_RESPONSES, RESPONSES, ErrorResponse
from metadata.stream_config import StreamConfig

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_LIMITS: Final = {
    "minimum": "from",
    "exclusiveMinimum": "above",
    "maximum": "to",
    "exclusiveMaximum": "below",
    "maxLength": "up to",
    "maxProperties": "up to",
}


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


def settings_table() -> str:
    """Return the settings of a stream as a Markdown table, as `StreamConfig` declares them."""
    schema = StreamConfig.model_json_schema()
    rows = ["| field | values | default | meaning |", "|---|---|---|---|"]
    for name, setting in schema["properties"].items():
        default = "" if name in schema["required"] else f"`{json.dumps(setting.get('default', {}))}`"
        values = _values(setting, schema["$defs"])
        rows.append(f"| `{name}` | {values} | {default} | {setting['description']} |")
    return "\n".join(rows) + "\n"


def _values(setting: dict[str, Any], types: dict[str, Any]) -> str:
    """Return the type and the limits of a setting, or its values; null is left out."""
    schema = setting.get("anyOf", [setting])[0]
    if "$ref" in schema:
        schema = types[schema["$ref"].rpartition("/")[2]]
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("format") == "duration":
        return "duration"
    limits = [f"{word} {schema[limit]:,}" for limit, word in _LIMITS.items() if limit in schema]
    return " ".join([schema["type"], *limits])
