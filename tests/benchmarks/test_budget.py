"""The budget's parts: what strace prints, what a counting node says, and how both become counts a group."""

import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import budget, call_counts, counted_node, group_costs, system_calls
from benchmarks.call_counts import ALLOCATIONS, CALLS, CallCounts, FunctionCount
from benchmarks.group_costs import GroupCase, GroupCost, cost_of_calls, cost_of_system
from benchmarks.group_publisher import GroupNotAcked, GroupPublisher
from benchmarks.loadgen import Address
from benchmarks.processes import ProcessError, node
from benchmarks.systems import OURS_ALWAYS, Ours
from tests.support.nats_server import NatsServer

SUMMARY = """\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 44.64    0.001095         136         8           epoll_pwait
 13.70    0.000336         168      1200         7 futex
  0.00    0.000000           0         1         1 access
------ ----------- ----------- --------- --------- ----------------
100.00    0.002453          56      1209         8 total
"""
ACK = b'{"stream":"BENCH-0","seq":1}'

needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")


def counts(python_calls: float = 0, **functions: float) -> CallCounts:
    named = {
        number: FunctionCount(f"jetstream/module.py:{name}", calls, 1024 * number)
        for number, (name, calls) in enumerate(functions.items(), 1)
    }
    return CallCounts(python_calls, 2 * python_calls, 3 * python_calls, named)


def message(body: bytes) -> bytes:
    return b"MSG _INBOX.groups 1 %d\r\n%s\r\n" % (len(body), body)


# --- strace ---------------------------------------------------------------------------------------------


def test_the_table_of_strace_is_calls_by_name_with_errors_and_without() -> None:
    assert system_calls.parsed(SUMMARY) == {"epoll_pwait": 8, "futex": 1200, "access": 1}


def test_a_process_that_made_no_system_call_has_no_table() -> None:
    assert system_calls.parsed("") == {}


@needs_strace
def test_the_system_calls_of_a_running_process_are_counted(tmp_path: Path) -> None:
    program = "import os, sys\nfor _ in sys.stdin: os.getpriority(0, 0); print('', flush=True)"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        with system_calls.traced({"node": process.pid}, tmp_path) as calls:
            for _ in range(3):
                process.stdin.write(b"\n")
                process.stdout.readline()
        process.stdin.close()

    assert calls["node"]["getpriority"] == 3


@needs_strace
def test_a_process_that_is_not_there_cannot_be_traced(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()

    with (
        pytest.raises(ProcessError, match=f"does not trace process {process.pid}"),
        system_calls.traced({"node": process.pid}, tmp_path),
    ):
        pytest.fail("nothing is traced")


# --- calls ------------------------------------------------------------------------------------------------


def test_what_timers_do_is_taken_from_what_groups_cost() -> None:
    before = counts(100, commit=10, tick=50)
    after = counts(300, commit=30, tick=90)
    end = counts(340, commit=30, tick=130)

    cost = after.since(before).without(end.since(after), 0.5)

    assert (cost.python_calls, cost.c_calls, cost.allocations) == (180, 360, 540)
    assert [function.calls for function in cost.functions.values()] == [20, 20]


def test_a_function_that_is_new_counts_from_nothing() -> None:
    assert counts(9, commit=2, other=7).since(counts(4, commit=1)).functions[2].calls == 7


def test_bytecode_is_that_of_functions_which_most_groups_run_each_of_them_once() -> None:
    cost = cost_of_calls(counts(1000, commit=10, often=95, rare=4), groups=10)

    assert cost.counts[group_costs.PYTHON_CALLS] == 100
    assert cost.counts[group_costs.C_CALLS] == 200
    assert cost.counts[group_costs.FUNCTIONS] == 2
    assert cost.counts[group_costs.BYTECODE] == 1 + 2
    assert cost.functions == {"jetstream/module.py:commit": 1, "jetstream/module.py:often": 9.5}


def test_frames_are_counted_where_sessions_send_and_receive_them() -> None:
    named = {
        1: FunctionCount("peers/peer_connection.py:PeerConnection.send", 20, 1),
        2: FunctionCount("peers/fetch_sessions.py:FetchRequester.received", 10, 1),
        3: FunctionCount("peers/fetch_sessions.py:FetchResponder.received", 30, 1),
        4: FunctionCount("other.py:OtherConnection.send", 500, 1),
    }

    cost = cost_of_calls(CallCounts(0, 0, 0, named), groups=10)

    assert cost.counts[group_costs.FRAMES_SENT] == 2
    assert cost.counts[group_costs.FRAMES_RECEIVED] == 4


def test_system_calls_are_summed_and_those_of_locks_and_of_the_loop_have_names_of_their_own() -> None:
    cost = cost_of_system(600, {"futex": 50, "epoll_wait": 10, "epoll_pwait": 20, "read": 10}, groups=10)

    assert cost.counts == {"allocations": 60, "system calls": 9, "futexes": 5, "loop iterations": 3}
    assert cost.system_calls == {"futex": 5, "epoll_wait": 1, "epoll_pwait": 2, "read": 1}


def test_the_runs_of_a_process_are_one_row() -> None:
    of_calls = [
        GroupCost({group_costs.PYTHON_CALLS: calls, group_costs.C_CALLS: 1.0}, {"commit": 1.0}, {})
        for calls in (300.0, 310.0, 400.0)
    ]
    of_system = GroupCost({group_costs.SYSTEM_CALLS: 6.0}, {}, {"read": 2.0, "futex": 4.0, "getpid": 0.01})

    row = budget.row_of("ours: node", budget.NAMED_AT, [*of_calls, of_system], ["lost", "lost"])

    assert (row.rate, row.rate_min, row.rate_max) == (310, 300, 400)
    assert row.details == {"C calls": 1.0, "system calls": 6.0, "read": 2.0}
    assert row.problems == ["lost"]
    assert [run["functions"] for run in row.runs] == [{"commit": 1.0}, {}, {}, {}]
    assert row.runs[3]["system_calls"]["getpid"] == 0.01


# --- a publisher of groups ------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def answered(listener: socket.socket, *pieces: bytes) -> list[int]:
    """Publish one group of three to a server that says ``pieces``; return what it has received, and acked."""
    host, port = listener.getsockname()
    received: list[int] = []

    def serve() -> None:
        peer, _ = listener.accept()
        with peer:
            data = b""
            while data.count(b"PUB bench ") < 3:
                data += peer.recv(65536)
            received.append(data.count(b"PUB bench "))
            for piece in pieces:
                peer.sendall(piece)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        with GroupPublisher(Address(host, port), "bench", 3, 16) as publisher:
            publisher.publish(1)
            return [*received, publisher.acked]
    finally:
        thread.join()


def test_a_group_is_over_when_each_message_is_acked_however_the_answers_are_cut(
    server: socket.socket,
) -> None:
    answers = b'INFO {"x":1}\r\n' + 2 * message(ACK)

    assert answered(server, answers[:20], answers[20:70], answers[70:], message(ACK)) == [3, 3]


@pytest.mark.parametrize(
    "said", [message(b'{"error":{"code":503}}'), b"-ERR 'Unknown Protocol Operation'\r\n", message(b""), b""]
)
def test_a_group_that_is_not_acked_is_an_error(server: socket.socket, said: bytes) -> None:
    with pytest.raises(GroupNotAcked):
        answered(server, said)


# --- a node that counts ------------------------------------------------------------------------------------


def measured(nats_server: NatsServer, directory: Path, counted: str) -> tuple[GroupCost, str | None]:
    call_counts.build()
    address = Address("127.0.0.1", nats_server.port)
    with node(directory / "node", address, (*counted_node.PROGRAM, counted)) as pid:
        data = directory / "node" / "data"
        ours = Ours(OURS_ALWAYS, address, {"node": pid, "nats-server": nats_server.pid}, {}, data)
        costs, problem = GroupCase(ours, directory, messages=4, groups=10, warmup_groups=2).measure(counted)
    assert list(costs) == ["node"]
    return costs["node"], problem


def test_a_node_counts_its_calls_and_names_its_functions(nats_server: NatsServer, tmp_path: Path) -> None:
    cost, problem = measured(nats_server, tmp_path, CALLS)

    assert problem is None
    assert cost.counts[group_costs.BATCHES] >= 1
    assert cost.counts[group_costs.PYTHON_CALLS] > cost.counts[group_costs.FUNCTIONS] > 0
    assert any(
        name.endswith("node/replicas/publish_path.py:PublishPath.committed") for name in cost.functions
    )


@needs_strace
def test_a_node_counts_its_allocations_and_its_system_calls_are_counted(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    cost, problem = measured(nats_server, tmp_path, ALLOCATIONS)

    assert problem is None
    assert cost.counts[group_costs.ALLOCATIONS] > 0
    assert cost.system_calls["fdatasync"] > 0
