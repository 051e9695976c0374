"""The questions of the request API that have a path below ``/v1``."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from envelope.errors import RequestError
from metadata.api.requests import (
    ClusterInfoRequest,
    GroupInfoRequest,
    ListCursorsRequest,
    ListGroupsRequest,
    ListNamespacesRequest,
    ListStreamsRequest,
    Request,
    StreamInfoRequest,
    StreamPublishersRequest,
)
from metadata.validation import first_problem


@dataclass(frozen=True, slots=True)
class Question:
    """A question of the request API at a path: ``/v1/`` and the words, with a name in between or behind."""

    name: str
    """Of the request, as ``stream.info``."""
    model: type[Request]
    words: tuple[str, ...]
    field: str | None = None
    """The field of the request that the name in the path is; None: there is none in it."""
    tail: tuple[str, ...] = ()
    """Words behind the name."""

    @property
    def path(self) -> str:
        """Return the path with the field in braces."""
        names = () if self.field is None else (f"{{{self.field}}}",)
        return "/v1/" + "/".join((*self.words, *names, *self.tail))

    def request(self, fields: dict[str, str]) -> Request:
        """Return the request with these fields, which are text.

        Raises:
            RequestError: one is not what it should be, or not there.
        """
        try:
            return self.model.model_validate_strings(fields)
        except ValidationError as error:
            found = first_problem(error)
            raise RequestError(f"{found.field}: {found.reason}", field=found.field) from None

    def matched(self, segments: Sequence[str]) -> dict[str, str] | None:
        """Return the field that the decoded segments of a path set; None: it is another path."""
        first, last = len(self.words), len(segments) - len(self.tail)
        if tuple(segments[:first]) != self.words or tuple(segments[last:]) != self.tail:
            return None
        names = segments[first:last]
        if self.field is None:
            return None if names else {}
        return {self.field: "/".join(names)} if names else None


QUESTIONS: Final = (
    Question("cluster.info", ClusterInfoRequest, ("cluster",)),
    Question("stream.list", ListStreamsRequest, ("streams",)),
    Question("stream.publishers", StreamPublishersRequest, ("streams",), "name", ("publishers",)),
    Question("stream.info", StreamInfoRequest, ("streams",), "name"),
    Question("group.list", ListGroupsRequest, ("groups",)),
    Question("group.info", GroupInfoRequest, ("groups",), "group"),
    Question("cursor.list", ListCursorsRequest, ("cursors",)),
    Question("namespace.list", ListNamespacesRequest, ("namespaces",)),
)
"""In the order in which they are compared with a path."""
