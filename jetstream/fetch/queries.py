"""What a fetch asks for, as the planner and the selection understand it."""

from envelope.errors import RequestError
from envelope.limits import SELECTED_BYTES_MAX
from envelope.subjects import validated_pattern
from envelope.types import Incarnation, LeaderEpoch, Offset
from jetstream.fetch.cursors import CursorPlace
from jetstream.fetch.planner import FetchQuery
from jetstream.fetch.selection import Selection
from jetstream.protocol.requests import Fetch, ListOffsets


def placed(request: Fetch, place: CursorPlace) -> Fetch:
    """Return a fetch of what comes ``next`` with the place where its cursor stands."""
    return request.model_copy(
        update={
            "offset": place.offset,
            "last_epoch": place.last_epoch,
            "incarnation": request.incarnation or place.incarnation,
        }
    )


def offset_of(request: Fetch) -> Offset:
    """Return where a fetch that has its place begins."""
    assert request.offset != "next", "a fetch that has its turn has an offset"
    return Offset(request.offset)


def query_of(request: Fetch) -> FetchQuery:
    """Return which range of a log ``request`` needs; of what it leaves out it needs all that is near."""
    return FetchQuery(
        offset=offset_of(request),
        max_bytes=_bytes_max(request),
        last_epoch=None if request.last_epoch is None else LeaderEpoch(request.last_epoch),
        incarnation=None if request.incarnation is None else Incarnation(request.incarnation),
        max_records=None if request.leaves_out else request.max_records,
        end=None if request.end is None else Offset(request.end),
    )


def boundary_query_of(request: ListOffsets) -> FetchQuery:
    """Return from where on a request ``at`` bytes counts how many."""
    assert request.offset is not None, "both go with that place"
    assert request.bytes is not None, "both go with that place"
    incarnation = None if request.incarnation is None else Incarnation(request.incarnation)
    return FetchQuery(Offset(request.offset), request.bytes, incarnation=incarnation)


def selection_of(request: Fetch) -> Selection | None:
    """Return what ``request`` selects of that range, None if it wants everything.

    Raises:
        RequestError: ``subject`` is not a NATS pattern.
    """
    if not request.leaves_out:
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
        bytes_max=_bytes_max(request),
    )


def _bytes_max(request: Fetch) -> int:
    """Return how many bytes of the log are looked at, and answered at most."""
    return min(request.max_bytes, SELECTED_BYTES_MAX) if request.leaves_out else request.max_bytes
