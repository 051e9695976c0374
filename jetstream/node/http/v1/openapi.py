"""The description of everything below ``/v1``, made of the models that answer it.

Source: OpenAPI 3.1.0.
"""

from functools import cache
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from envelope.errors import registry
from jetstream.node.http.page import JSON, PROBLEM
from jetstream.node.http.v1.query import BodyFormat, RecordsQuery
from jetstream.node.http.v1.questions import QUESTIONS, Question
from jetstream.node.runtime.version import VERSION
from metadata.api.responses import PARTITIONED_RESPONSES, RESPONSES

_REF: Final = "#/components/schemas/{model}"
_PROBLEM: Final = {
    "description": "a typed error (RFC 9457)",
    "content": {PROBLEM: {"schema": {"$ref": _REF.format(model="Problem")}}},
}
_STREAM: Final = {
    "name": "name",
    "in": "path",
    "required": True,
    "description": "a stream, or a partition as orders/2; a slash may stand as it is, or as %2F",
    "schema": {"type": "string"},
}


@cache
def openapi() -> dict[str, Any]:
    """Return the document."""
    responses = {
        model
        for question in QUESTIONS
        for model in (RESPONSES[question.name], PARTITIONED_RESPONSES.get(question.name))
        if model is not None
    }
    ordered: list[type[BaseModel]] = sorted(responses, key=lambda model: model.__name__)
    _, schemas = models_json_schema([(model, "serialization") for model in ordered], ref_template=_REF)
    paths = {question.path: {"get": _question(question)} for question in QUESTIONS}
    paths["/v1/streams/{name}/records"] = {"get": _records()}
    paths["/v1/streams/{name}/records/{offset}/value"] = {"get": _value()}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Jetstream", "version": VERSION, "description": "Publishing is NATS's."},
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": {**schemas["$defs"], "Problem": _problem_schema()},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"bearer": []}],
    }


def _question(question: Question) -> dict[str, Any]:
    answers = [RESPONSES[question.name], PARTITIONED_RESPONSES.get(question.name)]
    refs = [{"$ref": _REF.format(model=model.__name__)} for model in answers if model is not None]
    schema = question.model.model_json_schema()
    parameters = [
        {
            "name": name,
            "in": "path" if name == question.field else "query",
            "required": name in schema.get("required", ()),
            "description": field.pop("description", ""),
            "schema": field,
        }
        for name, field in schema.get("properties", {}).items()
    ]
    answer = refs[0] if len(refs) == 1 else {"oneOf": refs}
    return {
        "operationId": question.name,
        "summary": (question.model.__doc__ or "").splitlines()[0],
        "parameters": parameters,
        "responses": {
            "200": {"description": "the answer", "content": {JSON: {"schema": answer}}},
            "default": _PROBLEM,
        },
    }


def _records() -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "query", "description": field.pop("description"), "schema": field}
        for name, field in RecordsQuery.model_json_schema()["properties"].items()
    ]
    headers = {
        "jetstream-incarnation": "the life of the stream",
        "jetstream-start-offset": "where the range begins",
        "jetstream-end-offset": "where it ends, exclusive; not with follow",
        "jetstream-high-watermark": "where what is committed ends",
        "jetstream-next-offset": "where to go on; a trailer where that is not known before the body",
        "link": 'rel="next": the rest of a range that the limit has cut',
        "etag": "of a range that stays as it is",
    }
    return {
        "operationId": "records.read",
        "summary": "Read a range of records, or follow them.",
        "parameters": [_STREAM, *parameters],
        "responses": {
            "200": {
                "description": "the records",
                "headers": {
                    name: {"description": text, "schema": {"type": "string"}}
                    for name, text in headers.items()
                },
                "content": {body_format.media_type: {} for body_format in BodyFormat},
            },
            "304": {"description": "the range is still what If-None-Match names"},
            "307": {"description": "another node leads the stream: Location"},
            "default": _PROBLEM,
        },
    }


def _value() -> dict[str, Any]:
    offset = {"name": "offset", "in": "path", "required": True, "schema": {"type": "integer", "minimum": 0}}
    return {
        "operationId": "records.value",
        "summary": "Read the value of one record as it is.",
        "parameters": [_STREAM, offset],
        "responses": {
            "200": {
                "description": "the value, under the content type of its header Content-Type if it has one",
                "content": {"*/*": {}},
            },
            "307": {"description": "another node leads the stream: Location"},
            "default": _PROBLEM,
        },
    }


def _problem_schema() -> dict[str, Any]:
    return {
        "type": "object",
        "description": "an error; its details are members, too",
        "required": ["type", "title", "status", "detail", "err_code", "retriable"],
        "properties": {
            "type": {"type": "string", "description": "urn:jetstream:error: and the err_code"},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "detail": {"type": "string"},
            "err_code": {"type": "string", "enum": sorted(registry())},
            "retriable": {"type": "boolean"},
        },
    }
