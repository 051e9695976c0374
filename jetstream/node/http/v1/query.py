"""The question of a reader over HTTP: the parameters of its URL, and the format that it accepts."""

from enum import StrEnum
from typing import Annotated, Final, Literal, get_args
from urllib.parse import parse_qsl

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from envelope.errors import NotAcceptable, RequestError
from envelope.limits import SUBJECT_BYTES_MAX
from jetstream.protocol.request_base import INTEGER_MAX
from jetstream.protocol.requests import NAME_CHARS_MAX, Column
from metadata.validation import first_problem

FIELDS_MAX: Final = 16
"""Parameters of one URL."""

COLUMNS: Final[tuple[Column, ...]] = get_args(Column)


class BodyFormat(StrEnum):
    """The format of records in a body."""

    ARROW = "arrow"
    NDJSON = "ndjson"
    CSV = "csv"
    EVENTS = "events"

    @property
    def media_type(self) -> str:
        """Return its name in ``Content-Type`` and ``Accept``."""
        return _MEDIA_TYPES[self]


_MEDIA_TYPES: Final = {
    BodyFormat.ARROW: "application/vnd.apache.arrow.stream",
    BodyFormat.NDJSON: "application/x-ndjson",
    BodyFormat.CSV: "text/csv",
    BodyFormat.EVENTS: "text/event-stream",
}
_BY_MEDIA_TYPE: Final = {name: body_format for body_format, name in _MEDIA_TYPES.items()} | {
    "*/*": BodyFormat.NDJSON,
    "application/*": BodyFormat.NDJSON,
    "application/json": BodyFormat.NDJSON,
    "text/*": BodyFormat.CSV,
}


class RecordsQuery(BaseModel):
    """The parameters of ``/v1/streams/{name}/records``."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    start: str = Field(
        default="earliest",
        alias="from",
        max_length=64,
        description="earliest, latest, an offset, -10 (the last ten), an ISO 8601 time (UTC), -1h, txid:42",
    )
    end: str | None = Field(
        default=None,
        alias="to",
        max_length=64,
        description="exclusive: an offset, a time, -10, -1h; latest, which is the default: as of now",
    )
    subject: str | None = Field(
        default=None, max_length=SUBJECT_BYTES_MAX, description="only records on subjects that match this"
    )
    key: str | None = Field(
        default=None, max_length=NAME_CHARS_MAX, description="only records with this key, as UTF-8"
    )
    columns: str | None = Field(
        default=None,
        max_length=64,
        description="of key, headers, txid and value only these, like key,value; Arrow has null for others",
    )
    limit: Annotated[int, Field(ge=1, le=INTEGER_MAX)] | None = Field(
        default=None, description="at most so many records"
    )
    follow: bool = Field(default=False, description="go on with new records instead of ending")
    format: Literal["arrow", "ndjson", "csv", "events"] | None = Field(
        default=None, description="instead of the header Accept"
    )
    incarnation: str | None = Field(
        default=None, max_length=64, description="the life of the stream that offsets were read from"
    )

    @property
    def wanted_columns(self) -> list[Column] | None:
        """Return the columns to keep of those that can be left out; None: all.

        Raises:
            RequestError: there are no such columns.
        """
        if self.columns is None:
            return None
        names = [name.strip() for name in self.columns.split(",") if name.strip()]
        unknown = [name for name in names if name not in COLUMNS]
        if unknown:
            raise RequestError(f"columns: {', '.join(unknown)}: there are {', '.join(COLUMNS)}")
        return [column for column in COLUMNS if column in names]


def parameters(target_query: str) -> dict[str, str]:
    """Return the parameters of a URL.

    Raises:
        RequestError: there are too many, or one twice, or they are no text.
    """
    try:
        pairs = parse_qsl(
            target_query,
            keep_blank_values=True,
            strict_parsing=bool(target_query),
            errors="strict",
            max_num_fields=FIELDS_MAX,
        )
    except ValueError as error:
        raise RequestError(f"the query of the URL: {error}") from None
    found = dict(pairs)
    if len(found) < len(pairs):
        raise RequestError("the query of the URL names a parameter twice")
    return found


def records_query(target_query: str) -> RecordsQuery:
    """Return the question in the query of a URL.

    Raises:
        RequestError: it has an unknown parameter, or a value that cannot be.
    """
    try:
        return RecordsQuery.model_validate(parameters(target_query))
    except ValidationError as error:
        found = first_problem(error)
        raise RequestError(f"{found.field}: {found.reason}", field=found.field) from None


def body_format(query: RecordsQuery, accept: str | None) -> BodyFormat:
    """Return the format that a reader wants: its parameter, or the best that its header names.

    Without either it is NDJSON.

    Raises:
        NotAcceptable: none of what it accepts is there.
    """
    if query.format is not None:
        return BodyFormat(query.format)
    if accept is None:
        return BodyFormat.NDJSON
    wanted: list[tuple[float, int, BodyFormat]] = []
    for place, part in enumerate(accept.split(",")):
        name, _, parameters_text = part.partition(";")
        known = _BY_MEDIA_TYPE.get(name.strip().lower())
        quality = _quality(parameters_text)
        if known is not None and quality > 0:
            wanted.append((-quality, place, known))
    if not wanted:
        raise NotAcceptable(f"Accept: there are {', '.join(_MEDIA_TYPES.values())}")
    return min(wanted)[2]


def _quality(text: str) -> float:
    for parameter in text.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "q":
            try:
                return min(1.0, max(0.0, float(value)))
            except ValueError:
                return 0.0
    return 1.0
