"""What a member asks its coordinator while connections come and go."""

import asyncio
from collections.abc import Callable
from typing import NoReturn, cast

from consumer_groups.coordinator.events import ConnectionId
from consumer_groups.coordinator.group_state import ClientId
from consumer_groups.member.member import Terms
from envelope.errors import JetstreamError
from jetstream.client.consume.coordinator_link import GroupLinks
from jetstream.client.consume.membership import GroupMembership, MemberServices, Reading
from jetstream.protocol.group_responses import LeftResponse
from jetstream.protocol.requests import Request
from jetstream.protocol.responses import Response
from tests.support.group_coordination import REBALANCE, SESSION
from tests.support.group_membership import subscribed

_QUESTION = cast("Request", object())


def _never(error: JetstreamError | None) -> None:
    raise AssertionError(f"the membership has ended: {error}")


class Over(Exception):
    """Ends the member's tasks."""


class Way:
    """A connection that is lost, if it is, in the very moment in which it was found."""

    def __init__(self, connection: str, *, is_lost: bool) -> None:
        self.connection = ConnectionId(connection)
        self._is_lost = is_lost

    def add(self, member: GroupMembership) -> None:
        if self._is_lost:
            asyncio.get_running_loop().call_soon(member.disconnected, self.connection)

    def discard(self, member: GroupMembership) -> None:
        pass

    def wake(self) -> None:
        pass

    async def ask(self, request_of: Callable[[int], Request]) -> Response:
        if request_of(1) is not _QUESTION:
            await asyncio.Event().wait()
        assert not self._is_lost
        return LeftResponse(id=1)


class Ways:
    """Finds one after the other."""

    def __init__(self) -> None:
        self._ways = iter((Way("lost", is_lost=True), Way("kept", is_lost=False)))

    async def find(self, group: str) -> Way:
        assert group == "g"
        return next(self._ways)


def _end() -> NoReturn:
    raise Over


async def answered() -> Response:
    """Ask before there is a connection; return the answer."""
    response: Response | None = None
    try:
        async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
            services = MemberServices(cast("GroupLinks", Ways()), tasks, cast("Reading", None), _never)
            member = GroupMembership("g", Terms(ClientId("client"), SESSION, REBALANCE), services)
            asking = tasks.create_task(member.ask(lambda _: _QUESTION))
            await asyncio.sleep(0)  # it waits
            member.give(subscribed())
            response = await asking
            member.close()
            _end()
    except* Over:
        pass
    assert response is not None, "it was answered before it was over"
    return response


def test_who_asks_waits_on_if_the_connection_is_lost_in_the_moment_in_which_it_was_found() -> None:
    assert asyncio.run(answered()) == LeftResponse(id=1)
