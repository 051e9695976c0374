"""Requests, answers and cancels that cross each other between the two machines of a connection."""

from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from envelope.errors import JetstreamError, Overloaded, RequestCancelled, UnknownStream
from jetstream.fetch.cursors import ConnectionCursors
from jetstream.protocol.connection import (
    CancelReceived,
    ClientConnection,
    ConnectionBroken,
    RequestReceived,
    ResponseFailed,
    ResponseReceived,
    ServerConnection,
)
from jetstream.protocol.frames import encode_head
from jetstream.protocol.requests import Cancel, Fetch, Hello, encode_request
from jetstream.protocol.responses import FetchResponse, HelloResponse
from tests.support.example_counts import examples


class Crossing(RuleBasedStateMachine):
    """A client and a node with bytes on their way between them, in both directions, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.client, self.server = ClientConnection(), ServerConnection()
        self.to_server: deque[bytes] = deque()
        self.to_client: deque[bytes] = deque()
        self.parked: list[int] = []
        """At the node: answered as soon as they are cancelled."""
        self.worked_on: set[int] = set()
        """There too: answered once the work is done."""
        self.waiting: dict[int, bool] = {}
        """At the client: whether it has cancelled it."""
        self.sent = self.done = 0

    @initialize(older=st.booleans())
    def greet(self, older: bool) -> None:
        self.older = older
        self.server.receive_data(self.client.send(Hello(id=self.client.next_id(), protocol=1)))
        hello = HelloResponse(id=0, protocol=1, node="n", node_version="0", cancel=None if older else True)
        self.client.receive_data(self.server.respond(hello))

    @rule(count=st.sampled_from([1, 1, 1, 200]))
    def fetch(self, count: int) -> None:
        for _ in range(count):
            request = Fetch(id=self.client.next_id(), stream="s", offset=0)
            try:
                self.to_server.append(self.client.send(request))
            except Overloaded:
                assert self.client.in_flight == len(self.waiting) == 256
                return
            self.waiting[request.id] = False
            self.sent += 1

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.waiting)))
        cancel = self.client.cancel(request_id)
        assert bool(cancel) == (not self.older and not self.waiting[request_id])
        self.waiting[request_id] = True
        if cancel:
            self.to_server.append(cancel)

    @rule(request_id=st.integers(0, 10**6))
    def cancel_what_was_answered_or_never_was(self, request_id: int) -> None:
        if request_id not in self.waiting:
            assert self.client.cancel(request_id) == b""
            self.to_server.append(encode_head(encode_request(Cancel(id=request_id))))

    @precondition(lambda self: self.to_server)
    @rule(frames=st.integers(1, 300), is_parked=st.booleans())
    def arrive_at_the_node(self, frames: int, is_parked: bool) -> None:
        data = b"".join(self.to_server.popleft() for _ in range(min(frames, len(self.to_server))))
        for event in self.server.receive_data(data):
            match event:
                case RequestReceived(request):
                    if is_parked:
                        self.parked.append(request.id)
                    else:
                        self.worked_on.add(request.id)
                case CancelReceived(request_id):
                    if request_id in self.parked:
                        self.parked.remove(request_id)
                        self.to_client.append(self.server.fail(request_id, RequestCancelled("gone")))
                case _:
                    raise AssertionError(event)
        assert self.server.in_flight == len(self.parked) + len(self.worked_on)

    @precondition(lambda self: self.parked or self.worked_on)
    @rule(data=st.data(), fails=st.booleans(), body=st.binary(max_size=3))
    def answer(self, data: st.DataObject, fails: bool, body: bytes) -> None:
        request_id = data.draw(st.sampled_from([*self.parked, *sorted(self.worked_on)]))
        if request_id in self.worked_on:
            self.worked_on.remove(request_id)
        else:
            self.parked.remove(request_id)
        if fails:
            self.to_client.append(self.server.fail(request_id, UnknownStream("s")))
            return
        response = FetchResponse(
            id=request_id, epoch=1, schema_id=1, start_offset=0, next_offset=1, records=1, high_watermark=1,
            log_start_offset=0, incarnation="i",
        )  # fmt: skip
        self.to_client.append(self.server.respond(response, len(body)) + body)

    @precondition(lambda self: self.to_client)
    @rule(frames=st.integers(1, 300))
    def arrive_at_the_client(self, frames: int) -> None:
        data = b"".join(self.to_client.popleft() for _ in range(min(frames, len(self.to_client))))
        for event in self.client.receive_data(data):
            assert not isinstance(event, ConnectionBroken)
            if isinstance(event, ResponseReceived):
                self.finish(event.response.id, None)
            elif isinstance(event, ResponseFailed):
                self.finish(event.request_id, event.error)

    def finish(self, request_id: int, error: JetstreamError | None) -> None:
        is_cancelled = self.waiting.pop(request_id)
        assert is_cancelled or not isinstance(error, RequestCancelled), (
            "only what was taken back is answered so"
        )
        self.done += 1

    def teardown(self) -> None:
        while self.to_server or self.to_client or self.parked or self.worked_on:
            while self.to_server:
                self.arrive_at_the_node(300, True)
            for request_id in (*self.parked, *self.worked_on):
                self.to_client.append(self.server.fail(request_id, UnknownStream("s")))
            self.parked.clear()
            self.worked_on.clear()
            while self.to_client:
                self.arrive_at_the_client(300)
        assert self.done == self.sent
        assert self.client.in_flight == self.server.in_flight == 0
        assert self.waiting == {}
        assert not self.client._cancelled, "P11: nothing is kept of what was cancelled"


def test_requests_answers_and_cancels_in_any_order() -> None:
    run_state_machine_as_test(Crossing, settings=settings(max_examples=examples(50)))


@given(st.lists(st.tuples(st.sampled_from(["enter", "leave", "drop"]), st.integers(0, 2)), max_size=40))
def test_fetches_of_a_cursor_keep_their_order_around_one_that_is_dropped(
    steps: list[tuple[str, int]],
) -> None:
    cursors = ConnectionCursors[int]()
    queues: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for token, (step, cursor) in enumerate(steps):
        queue = queues[cursor]
        if step == "enter":
            queue.append(token)
            assert cursors.enter(cursor, token) == (queue == [token])
        elif step == "leave" and queue:
            del queue[0]
            assert cursors.leave(cursor, None) == (queue[0] if queue else None)
        elif step == "drop":
            dropped = queue[-1] if queue else token
            assert cursors.drop(cursor, dropped) == (len(queue) > 1)
            del queue[max(1, len(queue) - 1) :]
