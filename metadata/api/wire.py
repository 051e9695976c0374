"""Between models and the JSON on the wire, in both directions; everything wrong is a typed error."""

from typing import Final, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from envelope.errors import (
    InvalidConfig,
    JetstreamError,
    RemoteProtocolError,
    RequestError,
    Unsupported,
    error_from_wire,
)
from envelope.internal_streams import is_internal
from envelope.limits import API_REQUEST_BYTES_MAX
from metadata.api.requests import (
    REQUESTS,
    CreateStreamRequest,
    Request,
    StreamChange,
    UpdateStreamRequest,
)
from metadata.api.responses import ErrorBody, ErrorResponse, Response
from metadata.api.subjects import split_subject, with_name
from metadata.validation import InputProblem, first_problem

ResponseModel = TypeVar("ResponseModel", bound=BaseModel)

_DESCRIPTION_CHARS_MAX: Final = 1024


def parse_request(suffix: str, payload: bytes, *, names_in_subjects: bool = False) -> Request:
    """Return the request in ``payload``; an empty one is ``{}``.

    Args:
        suffix: the subject behind the prefix, e.g. ``stream.create`` or ``stream.create.orders``.
        payload: JSON, at most `API_REQUEST_BYTES_MAX` bytes.
        names_in_subjects: refuse a name that is in the payload alone.

    Raises:
        Unsupported: no such request, or a change of an internal stream.
        InvalidName, InvalidSubject: as in `envelope.subjects`.
        InvalidConfig: a value of a stream's configuration is out of its range.
        RequestError: too large, not a JSON object, an unknown or missing key, a wrong type; another name than
            in the subject.
    """
    operation, name = split_subject(suffix)
    model = REQUESTS[operation]
    body = with_name(operation, name, _json_object(payload), is_required=names_in_subjects)
    is_config = model in (CreateStreamRequest, UpdateStreamRequest)
    try:
        request = model.model_validate(body)
    except ValidationError as error:
        raise _request_error(first_problem(error), is_config=is_config) from None
    if isinstance(request, StreamChange) and is_internal(request.name):
        raise Unsupported(
            f"name: {request.name!r} begins with '__': internal streams are the system's to change",
            field="name",
        )
    return request


def request_too_large(size: int) -> RequestError:
    """Return the refusal of a request of ``size`` bytes."""
    limit = API_REQUEST_BYTES_MAX
    return RequestError(f"request of {size} bytes, the limit is {limit}", limit=limit)


def encode_request(request: Request) -> bytes:
    """Return ``request`` as JSON with only the fields that were set, so that null and absent differ."""
    return request.model_dump_json(exclude_unset=True).encode()


def encode_response(response: Response) -> bytes:
    """Return ``response`` as JSON, every field written out."""
    return response.model_dump_json().encode()


def encode_error(error: JetstreamError) -> bytes:
    """Return the answer that reports ``error``."""
    body = ErrorBody(
        code=error.status,
        err_code=error.err_code,
        description=error.description[:_DESCRIPTION_CHARS_MAX],
        retriable=error.retriable,
        detail=error.detail,
    )
    return ErrorResponse(error=body).model_dump_json().encode()


def decode_response(model: type[ResponseModel], payload: bytes) -> ResponseModel:
    """Return the response in ``payload``, as a client does.

    Raises:
        JetstreamError: the error that ``payload`` reports, as its own class where this version knows it.
        RemoteProtocolError: ``payload`` is neither that response nor an error.
    """
    try:
        refusal = _reported(payload)
        if refusal is None:
            return model.model_validate(from_json(payload))
    except (ValidationError, ValueError) as error:
        raise RemoteProtocolError(f"not a {model.__name__}: {_text(error)}") from error
    raise refusal


def reported_error(payload: bytes) -> JetstreamError | None:
    """Return the error that a response reports, None if it reports none.

    Raises:
        RemoteProtocolError: ``payload`` is no response.
    """
    try:
        return _reported(payload)
    except (ValidationError, ValueError) as error:
        raise RemoteProtocolError(f"not a response: {_text(error)}") from error


def _reported(payload: bytes) -> JetstreamError | None:
    body = from_json(payload)
    if not isinstance(body, dict) or "error" not in body:
        return None
    reported = ErrorResponse.model_validate(body).error
    return error_from_wire(reported.err_code, reported.description, reported.detail)


def _json_object(payload: bytes) -> dict[str, object]:
    if len(payload) > API_REQUEST_BYTES_MAX:
        raise request_too_large(len(payload))
    if not payload.strip():
        return {}
    try:
        body = from_json(payload, allow_inf_nan=False)
    except ValueError as error:
        raise RequestError(f"request is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise RequestError("request must be a JSON object")
    return body


def _request_error(problem: InputProblem, *, is_config: bool) -> RequestError:
    kind = InvalidConfig if is_config and not problem.is_structural else RequestError
    return kind(problem.description, field=problem.field)


def _text(error: ValueError) -> str:
    return first_problem(error).description if isinstance(error, ValidationError) else str(error)
