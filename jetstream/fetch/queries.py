"""Queries of the planner and the selection, from requests of the protocol."""

from envelope.errors import RequestError
from envelope.limits import SELECTED_BYTES_MAX
from envelope.subjects import validated_pattern
from envelope.types import Incarnation, LeaderEpoch, Offset
from jetstream.fetch.cursors import CursorPlace
from jetstream.fetch.planner import FetchQuery
from jetstream.fetch.selection import Encoder, Selection
from jetstream.log.format.batch import encode_selected
from jetstream.protocol.requests import Fetch, ListOffsets


def placed(request: Fetch, place: CursorPlace) -> Fetch:
    """Return a fetch of ``next`` with the place of its cursor."""
    return request.model_copy(
        update={
            "offset": place.offset,
            "last_epoch": place.last_epoch,
            "incarnation": request.incarnation or place.incarnation,
        }
    )


def offset_of(request: Fetch) -> Offset:
    """Return the start of a fetch that has its place."""
    assert request.offset != "next", "a fetch that has its turn has an offset"
    return Offset(request.offset)


def query_of(
    request: Fetch, selected_max: int = SELECTED_BYTES_MAX, *, is_encoded: bool = False
) -> FetchQuery:
    """Return the range of a log that ``request`` needs, with the records that it leaves out.

    Args:
        request: a fetch.
        selected_max: bytes that are looked at if its answer is made of decoded records.
        is_encoded: it is, although it leaves none out.
    """
    leaves_out = request.leaves_out or is_encoded
    return FetchQuery(
        offset=offset_of(request),
        max_bytes=min(request.max_bytes, selected_max) if leaves_out else request.max_bytes,
        last_epoch=None if request.last_epoch is None else LeaderEpoch(request.last_epoch),
        incarnation=None if request.incarnation is None else Incarnation(request.incarnation),
        max_records=None if leaves_out else request.max_records,
        end=None if request.end is None else Offset(request.end),
    )


def boundary_query_of(request: ListOffsets) -> FetchQuery:
    """Return the start and the number of bytes of a request ``at`` bytes."""
    assert request.offset is not None, "both go with that place"
    assert request.bytes is not None, "both go with that place"
    incarnation = None if request.incarnation is None else Incarnation(request.incarnation)
    return FetchQuery(Offset(request.offset), request.bytes, incarnation=incarnation)


def selection_of(
    request: Fetch, selected_max: int = SELECTED_BYTES_MAX, encode: Encoder | None = None
) -> Selection | None:
    """Return the selection of ``request`` in that range, None if it wants everything.

    Args:
        request: a fetch.
        selected_max: bytes of the selected records.
        encode: makes another body than a batch, for which everything is selected; None: it is a batch.

    Raises:
        RequestError: ``subject`` is not a NATS pattern.
    """
    if not request.leaves_out and encode is None:
        return None
    try:
        subject = None if request.subject is None else validated_pattern(request.subject)
    except RequestError as error:
        raise RequestError(f"subject: {error.description}") from None
    return Selection(
        subject=subject,
        key=None if request.key is None else request.key.encode(),
        columns=None if request.columns is None else frozenset(request.columns),
        records_max=request.max_records,
        end=None if request.end is None else Offset(request.end),
        bytes_max=min(request.max_bytes, selected_max),
        encode=encode or encode_selected,
    )
