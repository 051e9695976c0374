"""Every request and every operation of the socket as every role of docs/permissions.md.

Each is answered, or refused by the right that is missing.
"""

import asyncio
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import Final

from pydantic import BaseModel, ConfigDict

from envelope.errors import DeadlinePassed, JetstreamError, NoResponders, Unauthorized
from envelope.subjects import covers
from jetstream import JetstreamClient
from metadata.api.requests import REQUESTS
from metadata.api.subjects import TICKETS, as_permission, naming_field, request_subject
from tests.support.role_sites import ROLES, RoleSite
from tests.support.socket_operations import (
    ALLOWED,
    FORBIDDEN,
    Operation,
    check_nothing_is_done,
    holder,
    operations,
    outcome,
    ticket,
)

TEAM: Final = "shop"
OTHERS: Final = "hr"
OWN_CONSUMER: Final = "reader"
STREAMS: Final = {
    "shop/orders": "shop.orders.>",
    "shop/returns": "shop.orders.returns",
    "hr/orders": "shop.orders.hr.>",
    "shop": "shop.orders.own.>",
}
"""The streams that there are, and their subjects; one is called like the team."""
NAMESPACES: Final = ("shop/*", "hr/*", "*")
GROUPS: Final = ("shop/billing", "shop/packers", "hr/billing")
EUROPEAN: Final = "shop.orders.eu.>"
"""What the reader may read of shop/orders."""
SUBJECTS: Final = (
    None,
    *("shop.orders.>", "shop.orders.*.*", "shop.orders.us.de"),
    *(EUROPEAN, "shop.orders.eu.*", "shop.orders.eu.*.>", "shop.orders.eu.de"),
)


class Anything(BaseModel):
    """Whatever a node answers."""

    model_config = ConfigDict(extra="allow")


@dataclass(frozen=True, slots=True)
class Case:
    """A request, and what it is about.

    Attributes:
        target: a namespace, or the stream or group of a ticket; ``""``: it names nothing.
        subject: of a ticket to read.
    """

    operation: str
    target: str
    subject: str | None = None

    def __str__(self) -> str:
        return f"{self.operation} of {self.target or 'all'} {self.subject or ''}"

    def fields(self, *, exists: bool) -> dict[str, object]:
        """Return the request; it is about something that is there, or about nothing that is."""
        field = naming_field(self.operation)
        if self.operation in TICKETS:
            return {field or "": self.target, **({"subject": self.subject} if self.subject else {})}
        what = "orders" if exists else "absent"
        named = {
            None: {},
            "prefix": {"prefix": f"{self.target}/"},
            "consumer": {"consumer": OWN_CONSUMER if self.target == TEAM else "billing"},
        }.get(field, {field or "": f"{self.target}/{what}"})
        return {**(named if self.target else {}), **_BESIDES.get(self.operation, {})}


_BESIDES: dict[str, dict[str, object]] = {
    "stream.create": {"subject": "shop.orders.of.nobody"},
    "stream.truncate": {"before": 1},
    "stream.set_txid": {"txid": 7},
    "stream.reassign": {"cancel": True},
    "stream.elect": {"node": "absent", "unclean": True},
    "stream.lookup": {"subject": "shop.orders.eu"},
    "cursor.get": {"stream": "shop/orders"},
    "group.reset": {"cursors": [{"stream": "shop/orders", "offset": 0}]},
    "namespace.limit": {"streams": 1000},
    "cluster.update": {"default_replicas": 1},
    "cluster.drain": {"node": "absent"},
    "cluster.rebalance": {"dry_run": True},
    "cluster.remove": {"node": "absent"},
}
"""What a request needs beside the name."""


def cases() -> Iterator[Case]:
    for operation, model in REQUESTS.items():
        field = naming_field(operation)
        if operation in TICKETS:
            continue
        if field is not None:
            yield Case(operation, TEAM)
            yield Case(operation, OTHERS)
        if field is None or not model.model_fields[field].is_required():
            yield Case(operation, "")
    asked = (*STREAMS, *NAMESPACES)
    yield from (Case("read", stream, subject) for stream in asked for subject in SUBJECTS)
    yield from (Case("group.join", group) for group in GROUPS)


def may_read(role: str, stream: str, subject: str | None) -> bool:
    """Return whether the page lets ``role`` have a ticket for it: the whole stream, or a part by subject."""
    if role == "reader":
        return stream == "shop/orders" and subject is not None and covers(EUROPEAN, subject)
    if role == "member":
        return stream == "shop/orders" and subject is None
    is_of_team = stream.startswith(f"{TEAM}/") or (stream == TEAM and subject is not None)
    return role == "operator" or (role == "admin" and is_of_team)


def may_join(role: str, group: str) -> bool:
    """Return whether the page lets ``role`` be a member of the group."""
    if role == "member":
        return group == "shop/billing"
    return role == "operator" or (role == "admin" and group.startswith(f"{TEAM}/"))


def has_right(role: str, case: Case) -> bool:
    """Return whether the page gives ``role`` the right."""
    if case.operation == "read":
        return may_read(role, case.target, case.subject)
    if case.operation == "group.join":
        return may_join(role, case.target)
    if role == "operator":
        return True
    if role == "reader":
        return case == Case("cursor.get", TEAM)
    is_of_team = case.target == TEAM and case.operation.startswith(("stream.", "group."))
    return role == "admin" and (is_of_team or case.operation == "cluster.info")


def may_do(role: str, operation: Operation) -> bool:
    """Return whether the page lets ``role`` do it at the socket, with all the tickets that it may have."""
    if operation.group is not None:
        return may_join(role, operation.group)
    assert operation.stream is not None
    if may_read(role, operation.stream, None):
        return True
    is_narrow = operation.subject is None or covers(EUROPEAN, operation.subject)
    return is_narrow and may_read(role, operation.stream, EUROPEAN)


async def _tickets(client: JetstreamClient, role: str) -> list[str]:
    """Return the widest tickets that ``role`` may have."""
    rights: list[dict[str, object]] = []
    for stream in STREAMS:
        if may_read(role, stream, None):
            rights.append({"stream": stream})
        elif may_read(role, stream, EUROPEAN):
            rights.append({"stream": stream, "subject": EUROPEAN})
    texts = [await ticket(client, "read", **fields) for fields in rights]
    return texts + [await ticket(client, "group.join", group=each) for each in GROUPS if may_join(role, each)]


async def _answer(client: JetstreamClient, case: Case, *, exists: bool) -> JetstreamError | None:
    """Make the request; return the refusal, or None for an answer of the node, which may be an error, too."""
    try:
        await client.requests.ask(case.operation, case.fields(exists=exists), Anything)
    except (Unauthorized, NoResponders, DeadlinePassed) as refusal:
        return refusal
    except JetstreamError:
        return None
    return None


async def _check_requests(there: RoleSite, role: str) -> None:
    """Make every request as ``role``, all at once: some answers of a node take seconds."""
    async with there.connect(role) as client:
        rights = {case: has_right(role, case) for case in cases()}
        refusals = await asyncio.gather(
            *(_answer(client, case, exists=not right) for case, right in rights.items())
        )
        for (case, right), refused in zip(rights.items(), refusals, strict=True):
            told = f"{role}: {case}: {refused!r}"
            if right:
                assert refused is None, told
            else:
                subject = as_permission(request_subject(case.operation, case.fields(exists=True)))
                assert isinstance(refused, Unauthorized), told
                assert f"publish on 'jetstream.api.{subject}'" in refused.description, told
        assert client.nats.stats["reconnects"] == 0


async def _check_socket(there: RoleSite, role: str, ports: list[int]) -> None:
    """Do everything at the socket of each node, with the role's tickets."""
    async with there.connect(role) as client:
        texts = await _tickets(client, role)
    for port in ports:
        if not texts:
            for operation in operations(STREAMS, SUBJECTS, GROUPS):
                assert not may_do(role, operation)
                await check_nothing_is_done(port, operation.request)
            continue
        async with holder(port, texts) as raw:
            for operation in operations(STREAMS, SUBJECTS, GROUPS):
                expected = ALLOWED if may_do(role, operation) else FORBIDDEN
                assert await outcome(raw, operation.request) == expected, f"{role}: {operation}"


async def check_matrix(there: RoleSite, nodes: AbstractAsyncContextManager[object]) -> None:
    """Do it all on nodes of the site, and look whether what must not be touched is as it was."""
    async with nodes, there.connect("operator") as operator:
        made = [await operator.streams.create(name, subject) for name, subject in STREAMS.items()]
        ports = [port for _, port in await operator.requests.addresses()]
        for check in (_check_requests, partial(_check_socket, ports=ports)):
            async with asyncio.TaskGroup() as tasks:
                for role in ROLES:
                    tasks.create_task(check(there, role))
        for stream in made:
            found = await operator.streams.info(stream.config.name)
            assert found.incarnation == stream.incarnation
            assert found.log_start_offset == 0
