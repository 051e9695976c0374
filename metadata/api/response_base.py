"""The base of all responses of the request API."""

from collections.abc import Iterable
from typing import TypeVar

from pydantic import BaseModel, ConfigDict

from metadata.limits import LIST_PAGE_BYTES_MAX


class ApiResponse(BaseModel):
    """A response, or a part of one."""

    model_config = ConfigDict(frozen=True, extra="ignore")


_Listed = TypeVar("_Listed", bound=ApiResponse)


def fitting_page(models: Iterable[_Listed], limit: int) -> list[_Listed]:
    """Return the first of the models: ``limit`` at most, and as many as fit one NATS message.

    They are read only as far as needed.
    """
    page: list[_Listed] = []
    size = 0
    for model in models:
        size += len(model.model_dump_json().encode()) + 1
        if len(page) >= limit or (page and size > LIST_PAGE_BYTES_MAX):
            break
        page.append(model)
    return page
