"""Every request as every role of docs/permissions.md: answered, or refused by the right that is missing."""

import asyncio
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final

from pydantic import BaseModel, ConfigDict

from envelope.errors import DeadlinePassed, JetstreamError, NoResponders, Unauthorized
from jetstream import JetstreamClient
from metadata.api.requests import REQUESTS
from metadata.api.subjects import naming_field, request_subject
from tests.support.role_sites import ROLES, RoleSite

TEAM: Final = "shop"
OTHERS: Final = "hr"
OWN_CONSUMER: Final = "reader"


class Anything(BaseModel):
    """Whatever a node answers."""

    model_config = ConfigDict(extra="allow")


@dataclass(frozen=True, slots=True)
class Case:
    """A request, and whose namespace it is about: ``""`` if it names nothing."""

    operation: str
    namespace: str

    def __str__(self) -> str:
        return f"{self.operation} of {self.namespace or 'all'}"

    def fields(self, *, exists: bool) -> dict[str, object]:
        """Return the request; it is about something that is there, or about nothing that is."""
        field = naming_field(self.operation)
        what = "orders" if exists else "absent"
        named = {
            None: {},
            "prefix": {"prefix": f"{self.namespace}/"},
            "consumer": {"consumer": OWN_CONSUMER if self.namespace == TEAM else "billing"},
        }.get(field, {field or "": f"{self.namespace}/{what}"})
        return {**(named if self.namespace else {}), **_BESIDES.get(self.operation, {})}


_BESIDES: dict[str, dict[str, object]] = {
    "stream.create": {"subject": "shop.orders.of.nobody"},
    "stream.truncate": {"before": 1},
    "stream.set_txid": {"txid": 7},
    "stream.reassign": {"cancel": True},
    "stream.elect": {"node": "absent", "unclean": True},
    "stream.lookup": {"subject": "shop.orders.eu"},
    "cursor.get": {"stream": "shop/orders"},
    "group.reset": {"cursors": [{"stream": "shop/orders", "offset": 0}]},
    "cluster.drain": {"node": "absent"},
    "cluster.rebalance": {"dry_run": True},
    "cluster.remove": {"node": "absent"},
}
"""What a request needs beside the name."""


def cases() -> Iterator[Case]:
    for operation, model in REQUESTS.items():
        field = naming_field(operation)
        if field is not None:
            yield Case(operation, TEAM)
            yield Case(operation, OTHERS)
        if field is None or not model.model_fields[field].is_required():
            yield Case(operation, "")


def has_right(role: str, case: Case) -> bool:
    """Whether the page gives ``role`` the right."""
    if role == "operator":
        return True
    if case.operation == "cluster.info":
        return role != "publisher"
    if case.namespace != TEAM:
        return False
    if role == "reader":
        return case.operation == "cursor.get"
    return role == "admin" and case.operation.startswith(("stream.", "group."))


async def outcome(client: JetstreamClient, case: Case, *, exists: bool) -> JetstreamError | None:
    """Make the request; return the refusal, or None for an answer of the node, which may be an error, too."""
    try:
        await client.requests.ask(case.operation, case.fields(exists=exists), Anything)
    except (Unauthorized, NoResponders, DeadlinePassed) as refusal:
        return refusal
    except JetstreamError:
        return None
    return None


async def _check_role(there: RoleSite, role: str) -> None:
    """Make every request as ``role``, all at once: some answers of a node take seconds."""
    async with there.connect(role) as client:
        rights = {case: has_right(role, case) for case in cases()}
        refusals = await asyncio.gather(
            *(outcome(client, case, exists=not right) for case, right in rights.items())
        )
        for (case, right), refused in zip(rights.items(), refusals, strict=True):
            told = f"{role}: {case}: {refused!r}"
            if right:
                assert refused is None, told
            else:
                subject = request_subject(case.operation, case.fields(exists=True))
                assert isinstance(refused, Unauthorized), told
                assert f"publish on 'jetstream.api.{subject}'" in refused.description, told
        assert client.nats.stats["reconnects"] == 0


async def check_matrix(there: RoleSite, nodes: AbstractAsyncContextManager[object]) -> None:
    """Make them all on nodes of the site, and look whether what must not be touched is as it was."""
    async with nodes, there.connect("operator") as operator:
        made = [
            await operator.streams.create(f"{namespace}/orders", f"shop.orders.{namespace}.>")
            for namespace in (TEAM, OTHERS)
        ]
        async with asyncio.TaskGroup() as tasks:
            for role in ROLES:
                tasks.create_task(_check_role(there, role))
        for stream in made:
            found = await operator.streams.info(stream.config.name)
            assert found.incarnation == stream.incarnation
            assert found.log_start_offset == 0
