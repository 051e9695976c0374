"""How a client gets a ticket for all levels of subjects."""

import asyncio
from datetime import UTC, datetime
from typing import Final, TypeVar

import pytest
from pydantic import BaseModel

from envelope.errors import RequestError, Unauthorized
from jetstream.client.nodes.background import Background
from jetstream.client.nodes.tickets import HeldRight, ReadRight, TicketWallet
from tests.support.nodes import run

Model = TypeVar("Model", bound=BaseModel)

Asked = tuple[object, object]
"""A subject, and the ticket that was shown for it."""

ALL_LEVELS: Final = ReadRight("orders", "eu.>")


class Node:
    """Gives out the ticket of a subject; knows of the first level, or is older."""

    def __init__(self, *, is_older: bool = False, denied: tuple[str, ...] = ()) -> None:
        self.asked: list[Asked] = []
        self._is_older = is_older
        self._denied = denied

    async def ask(self, _name: str, fields: dict[str, object], *models: type[Model]) -> Model:
        subject, shown = fields.get("subject"), fields.get("first_level")
        self.asked.append((subject, shown))
        if subject in self._denied:
            raise Unauthorized(f"publish on {subject}")
        if (shown is not None) if self._is_older else (subject == "eu.>" and shown != "ticket for eu.*"):
            raise RequestError("first_level", field="first_level")
        ticket = {
            "ticket": f"ticket for {subject}",
            "expires": datetime.now(UTC),
            "valid_s": 300,
            "nodes": [],
        }
        return models[0].model_validate(ticket)


async def asked_of(node: Node) -> list[Asked]:
    """Return what is asked to get a ticket; raise what refuses it."""
    async with asyncio.TaskGroup() as tasks:
        background = Background(tasks)
        wallet = TicketWallet(node, background)
        [outcome] = await asyncio.gather(wallet.ticket(HeldRight(ALL_LEVELS)), return_exceptions=True)
        background.end()
    if isinstance(outcome, BaseException):
        raise outcome
    assert outcome.get_secret_value() == "ticket for eu.>"
    return node.asked


def test_the_ticket_for_the_first_level_is_shown_for_the_one_for_all() -> None:
    assert run(asked_of(Node())) == [("eu.*", None), ("eu.>", "ticket for eu.*")]


def test_an_older_node_is_asked_as_it_knows_it() -> None:
    asked = run(asked_of(Node(is_older=True)))
    assert asked == [("eu.*", None), ("eu.>", "ticket for eu.*"), ("eu.>", None)]


@pytest.mark.parametrize(
    ("denied", "missing"),
    [(("eu.*", "eu.>", None), "eu.>"), (("eu.*", None), r"eu.\*")],
    ids=["both", "first"],
)
def test_the_right_that_is_missing_is_named(denied: tuple[str, ...], missing: str) -> None:
    with pytest.raises(Unauthorized, match=f"publish on {missing}$"):
        run(asked_of(Node(denied=denied)))
