"""Answers the socket protocol's requests from the node's streams: finds, plans, verifies, responds.

`jetstream.fetch` decides which records a reader may see; the dispatcher finds the stream, the thread, and the
requests that are answered later.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Any, Protocol, assert_never

from envelope.errors import (
    CorruptDataError,
    InternalError,
    JetstreamError,
    RequestCancelled,
    UnavailableError,
)
from envelope.types import Incarnation, LeaderEpoch, MonotonicNs, Offset, StreamName, TimestampUs
from jetstream.fetch.cursors import CursorPlace
from jetstream.fetch.planner import (
    Nothing,
    Plan,
    RefuseRead,
    ServeRange,
    StreamView,
    Wait,
    boundary,
    check_incarnation,
    plan_fetch,
)
from jetstream.fetch.queries import boundary_query_of, offset_of, placed, query_of, selection_of
from jetstream.fetch.selection import Selected
from jetstream.fetch.selection_budget import SelectionBudget
from jetstream.log.reader import FileRange, IndexUnloaded
from jetstream.log.segments.index import StoredBatches
from jetstream.log.segments.segment import PlanAgain
from jetstream.node.disk.leased_range import Body
from jetstream.node.readers.long_polls import LongPolls
from jetstream.node.readers.output import stored_range
from jetstream.node.readers.ports import ReadableStream, StreamDirectory, whole_of
from jetstream.node.readers.reader_connection import CANCELLED, Pending, ReaderConnection, SocketCounters
from jetstream.node.readers.responses import (
    ServerIdentity,
    boundary_response,
    empty_response,
    fetch_response,
    find_stream,
    metadata_page,
    offset_response,
)
from jetstream.node.readers.selections import Selections, WaitListener, selected
from jetstream.node.readers.tier_waits import TierWaits
from jetstream.node.runtime.clock import Clock
from jetstream.node.runtime.paced_thread import PacedThread
from jetstream.node.tiers.tiered_stream import first_with_txid, stored_within
from jetstream.protocol.group_requests import FindCoordinator, GroupRequest
from jetstream.protocol.requests import Fetch, GetMetadata, Hello, ListOffsets, ShowTicket
from jetstream.protocol.responses import (
    FetchResponse,
    StoredRangeResponse,
    TicketShownResponse,
)
from jetstream.tier.tiered_log import SegmentAway

_log = logging.getLogger(__name__)


class GroupRequests(Protocol):
    """Answers what members of consumer groups ask."""

    def answer(self, pending: Pending, request: FindCoordinator | GroupRequest) -> None:
        """Answer, now or later; may raise the typed refusal instead."""

    def forget(self, connection: ReaderConnection) -> None:
        """Drop what waits for a connection that is gone."""


class RequestDispatcher:
    """The `RequestServer` of a node.

    Invariant:
        N7: a lease is taken before a range leaves the loop's thread, and given back or passed on after.
            Held by test_a_segment_deleted_while_its_body_is_in_flight_still_arrives_whole.
    """

    def __init__(
        self,
        directory: StreamDirectory,
        identity: ServerIdentity,
        executor: Executor,
        clock: Clock,
        groups: GroupRequests,
        selection_bytes: int,
    ) -> None:
        self._directory = directory
        self._whole_of = partial(whole_of, directory.catalog)
        self._identity = identity
        self._executor = executor
        self._clock = clock
        self.counters = SocketCounters()
        self._groups = groups
        self._loop = asyncio.get_running_loop()
        self._tier_waits = TierWaits(self._look_again, _not_in_time, self.serve)
        self._long_polls = LongPolls(clock, self._look_again)
        self.selections = Selections(
            SelectionBudget(selection_bytes),
            PacedThread("jetstream-selection", directory.catch_up_queue.rest_s),
            clock,
            WaitListener(self._look_again, partial(_not_its_turn, directory), self.serve),
        )

    @property
    def parked(self) -> int:
        """How many requests wait: for records, or for the object store."""
        return len(self._long_polls) + len(self._tier_waits)

    def serve(self, connection: ReaderConnection) -> None:
        """Answer what waits in ``connection.requests`` while there is room for answers."""
        while connection.requests and connection.has_room:
            self._answer(connection.requests.popleft())

    def forget(self, connection: ReaderConnection) -> None:
        """Drop whatever is parked for a connection that is gone."""
        self._long_polls.forget(connection)
        self.selections.forget(connection)
        self._groups.forget(connection)

    def stream_gone(self, name: StreamName) -> None:
        """Answer the fetches parked on a stream that was deleted or went offline."""
        self._long_polls.stream_gone(name)

    def stop(self) -> None:
        """Answer every parked fetch as if its time were over."""
        self._long_polls.stop()

    # --- one request -------------------------------------------------------------------------------

    def _answer(self, pending: Pending) -> None:
        if pending.is_cancelled:  # while it was worked on
            _fail(pending, RequestCancelled(CANCELLED))
            return
        rights = pending.connection.rights
        try:
            request = pending.request = rights.permitted(pending.request, self._whole_of)
            match request:
                case Hello():
                    pending.connection.respond(self._identity.hello(request))
                case ShowTicket(ticket=ticket):
                    _ = rights.show(ticket)
                    pending.connection.respond(TicketShownResponse(id=request.id))
                case GetMetadata():
                    pending.connection.respond(metadata_page(request, self._directory, rights))
                case ListOffsets():
                    self._list_offsets(pending, request)
                case Fetch():
                    self._fetch(pending, request)
                case _:
                    self._groups.answer(pending, request)
        except JetstreamError as error:
            _fail(pending, error)

    # --- offsets -----------------------------------------------------------------------------------

    def _list_offsets(self, pending: Pending, request: ListOffsets) -> None:
        stream = find_stream(self._directory, request.stream)
        view = stream.view()
        check_incarnation(None if request.incarnation is None else Incarnation(request.incarnation), view)
        match request:
            case ListOffsets(at="earliest"):
                _answer_offset(pending, stream, view.index.log_start_offset)
            case ListOffsets(timestamp=int(timestamp)):
                moment = TimestampUs(timestamp)
                self._look_up(pending, stream, lambda: stream.readable.offset_for_timestamp(moment))
            case ListOffsets(txid=int(txid)):
                start = stream.tiered.search_start(txid, stream.log.reader)
                self._look_up(pending, stream, lambda: first_with_txid(stream.readable, txid, start))
            case ListOffsets(at="bytes"):
                query, within = boundary_query_of(request), partial(stored_within, stream.readable)
                self._look_up(pending, stream, lambda: boundary(query, view, within))
            case _ if stream.leads:
                # One that was cut off may not know yet that another leads, and acks.
                self._when_done(
                    pending, stream.confirm_leadership(), lambda _: self._answer_end(pending, stream)
                )
            case _:
                self._answer_end(pending, stream)

    def _answer_end(self, pending: Pending, stream: ReadableStream) -> None:
        _answer_offset(pending, stream, stream.log.log_end_offset)

    def _look_up(
        self, pending: Pending, stream: ReadableStream, find: Callable[[], Offset | StoredBatches]
    ) -> None:
        """Find an offset on a thread, then answer with it."""

        def look_up() -> Offset | StoredBatches | SegmentAway:
            try:
                return find()
            except SegmentAway as away:
                return away

        def answer(result: Offset | StoredBatches | SegmentAway) -> None:
            if isinstance(result, SegmentAway):
                self._tier_waits.begin(pending, stream, result)
            elif isinstance(result, StoredBatches):
                pending.connection.respond(boundary_response(pending, stream, result))
            else:
                _answer_offset(pending, stream, result)

        self._on_thread(pending, look_up, answer)

    # --- fetches -----------------------------------------------------------------------------------

    def _fetch(self, pending: Pending, request: Fetch) -> None:
        turn = pending.connection.turn
        if turn.behind_in == request.stream:
            if not turn.comes():
                pending.connection.requests.appendleft(pending)
                return
            turn.behind_in = None
        if request.offset == "next":
            assert request.cursor is not None, "next goes with a cursor"
            place = pending.connection.cursors.place(request.cursor, request.stream)
            request = pending.request = placed(request, place)
        stream = find_stream(self._directory, request.stream)
        is_encoded = pending.encode is not None
        query = query_of(request, pending.connection.selected_max, is_encoded=is_encoded)
        view = stream.view()
        plan = plan_fetch(query, view, load=False)
        if isinstance(plan, RefuseRead) and isinstance(plan.error, IndexUnloaded):
            self._on_thread(
                pending,
                lambda: plan_fetch(query, view, load=True),
                lambda plan: self._carry_out(plan, pending, request, stream, view),
            )
        else:
            self._carry_out(plan, pending, request, stream, view)

    def _carry_out(
        self,
        plan: Plan[FileRange],
        pending: Pending,
        request: Fetch,
        stream: ReadableStream,
        view: StreamView[FileRange],
    ) -> None:
        """Do what was planned for ``view`` of the stream."""
        match plan:
            case ServeRange(file_range):
                self._deliver(pending, request, stream, view, file_range)
            case Wait() if stream.high_watermark > view.high_watermark:
                self._answer(pending)  # it moved while a thread made the plan
            case Wait(offset):
                self._wait(pending, request, stream, view, offset)
            case Nothing():
                _respond(pending, empty_response(request, view))
            case RefuseRead(PlanAgain()):
                self._answer(pending)
            case RefuseRead(SegmentAway() as away):
                self._tier_waits.begin(pending, stream, away)
            case RefuseRead(error):
                _fail(pending, error)
            case _:
                assert_never(plan)

    def _deliver(
        self,
        pending: Pending,
        request: Fetch,
        stream: ReadableStream,
        view: StreamView[FileRange],
        file_range: FileRange,
    ) -> None:
        selection = selection_of(request, pending.connection.selected_max, pending.encode)
        try:
            body = Body.leased(file_range, catches_up=file_range.next < view.high_watermark)
        except PlanAgain:  # the disk thread has put a compacted segment there since
            self._answer(pending)
            return
        except UnavailableError:
            if stream.log.log_start_offset < file_range.next:
                raise
            self._answer(pending)  # it was dropped since: it is gone for good, or in the object store
            return
        if selection is not None:
            if not self.selections.begin(pending, selection.bytes_max):
                body.release()
                return
            # Who reads at the end of the stream keeps up with it, as with a body that is sent as it is.
            pace = self.selections.pace if body.catches_up else _go_on
            work = partial(selected, stream.log.reader, file_range, offset_of(request), selection, pace)
            self._when_done(
                pending,
                self.selections.make(pending, work),
                lambda answer: _respond_selected(pending, view, body, answer),
                body,
            )
            return
        is_asked = request.short_circuit is not None and self._identity.machine is not None
        where = stored_range(body) if is_asked else None
        if where is not None:  # a reader checks it there, as any reader does
            body.release()
            self._answer_place(pending, request, view, body, where)
            return
        if file_range.is_verified:
            _respond(pending, fetch_response(pending, view, file_range), body.taken() or body)
            return
        self.counters.ranges_verified += 1

        def verified(_: None) -> None:
            body.warm_end = body.end  # the thread has just read all of it
            _respond(pending, fetch_response(pending, view, body.file_range), body)

        self._on_thread(pending, lambda: stream.log.reader.verify_range(file_range), verified, body)

    def _answer_place(
        self,
        pending: Pending,
        request: Fetch,
        view: StreamView[FileRange],
        body: Body,
        where: StoredRangeResponse,
    ) -> None:
        """Answer with where ``body``, which was released, lies; in the reader's turn if it catches up."""
        turn, begun = pending.connection.turn, self._clock.monotonic()
        if body.catches_up:
            turn.behind_in = request.stream
            if not turn.comes():
                pending.connection.requests.appendleft(pending)
                return
        self.counters.short_circuit_bytes += where.length
        response = fetch_response(pending, view, body.file_range)
        _respond(pending, response.model_copy(update={"file": where}))
        if body.catches_up:
            turn.took(begun, where.length)

    def _on_thread(
        self,
        pending: Pending,
        work: Callable[[], object],
        then: Callable[..., None],
        body: Body | None = None,
    ) -> None:
        """Run ``work`` on the executor, then answer."""
        self._when_done(pending, self._loop.run_in_executor(self._executor, work), then, body)

    def _when_done(
        self,
        pending: Pending,
        future: asyncio.Future[Any],
        then: Callable[..., None],
        body: Body | None = None,
    ) -> None:
        """Answer with what becomes of ``future``; the connection's next requests wait for it."""
        connection = pending.connection
        connection.preparing = True

        def done(result: asyncio.Future[Any]) -> None:
            connection.preparing = False
            if result.cancelled():  # the node stops
                return
            error = result.exception()
            if body is not None and (error is not None or connection.closed or pending.is_cancelled):
                body.release()
            if connection.closed:
                return
            if pending.is_cancelled:
                self._answer(pending)
            elif error is None:
                try:
                    then(result.result())
                except JetstreamError as problem:
                    _fail(pending, problem)
            else:
                self._failed(pending, error)
            self.serve(connection)

        future.add_done_callback(done)

    def _failed(self, pending: Pending, error: BaseException) -> None:
        if isinstance(error, CorruptDataError | PlanAgain) and isinstance(pending.request, Fetch):
            # The log knows better now: plan again, the good batches before a corrupt one are still served.
            self._answer(pending)
        elif isinstance(error, JetstreamError):
            _fail(pending, error)
        else:
            _log.error("request failed request=%r error=%r", pending.request, error)
            _fail(pending, InternalError("a fault of the server; see its log"))

    # --- waiting -----------------------------------------------------------------------------------

    def _wait(
        self,
        pending: Pending,
        request: Fetch,
        stream: ReadableStream,
        view: StreamView[FileRange],
        offset: Offset,
    ) -> None:
        now = self._clock.monotonic()
        if pending.deadline is None:
            pending.deadline = MonotonicNs(now + request.max_wait_ms * 1_000_000)
        if pending.deadline <= now:
            _respond(pending, empty_response(request, view))
            return
        self.counters.fetches_parked += 1
        self._long_polls.park(pending, stream, offset)

    def _look_again(self, pending: Pending) -> None:
        pending.connection.requests.append(pending)
        self.serve(pending.connection)


def _answer_offset(pending: Pending, stream: ReadableStream, offset: Offset) -> None:
    """Answer with ``offset``; raises as `offset_response`."""
    pending.connection.respond(offset_response(pending, stream, offset))


def _respond(pending: Pending, response: FetchResponse, body: Body | bytes | memoryview = b"") -> None:
    """Answer a fetch; its cursor stands where the answer ends."""
    request = pending.request
    assert isinstance(request, Fetch), "a fetch response answers a fetch"
    pending.connection.respond(response, body)
    is_empty = response.next_offset == request.offset
    epoch = request.last_epoch if is_empty else response.epoch
    pending.connection.end_turn(
        pending,
        CursorPlace(
            StreamName(request.stream),
            Incarnation(response.incarnation),
            Offset(response.next_offset),
            None if epoch is None else LeaderEpoch(epoch),
        ),
    )


def _not_in_time(pending: Pending, stream: ReadableStream, away: SegmentAway) -> None:
    """Answer a request that has waited long for the object store.

    A fetch is answered with nothing while bytes come, and asked again: a large segment on a slow line is no
    error. A store that does not answer is one.
    """
    if isinstance(pending.request, Fetch) and stream.tiered.is_moving(away):
        _respond(pending, empty_response(pending.request, stream.view()))
    else:
        _fail(pending, away.not_in_time())


def _not_its_turn(directory: StreamDirectory, pending: Pending) -> None:
    """Answer a fetch that has waited long for the budget of selected answers: with nothing, to ask again."""
    request = pending.request
    assert isinstance(request, Fetch), "only fetches select"
    try:
        _respond(pending, empty_response(request, find_stream(directory, request.stream).view()))
    except JetstreamError as error:
        _fail(pending, error)


def _fail(pending: Pending, error: JetstreamError) -> None:
    """Answer with ``error``; the cursor of a fetch stands nowhere after it."""
    pending.connection.fail(pending.request.id, error)
    pending.connection.end_turn(pending, None)


def _go_on(_: int) -> None:
    """Let a thread rest not at all."""


def _respond_selected(pending: Pending, view: StreamView[FileRange], lease: Body, selected: Selected) -> None:
    lease.release()
    whole = fetch_response(pending, view, lease.file_range)
    response = whole.model_copy(
        update={
            "next_offset": selected.next,
            "records": selected.records,
            "max_timestamp": selected.max_timestamp,
        }
    )
    _respond(pending, response, selected.body)
