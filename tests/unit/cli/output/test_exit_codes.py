import json

import nats.errors
import pytest
import typer

from envelope import errors
from jetstream.cli.output.console import describe, report, reported_errors, run_async
from jetstream.cli.output.exit_codes import ExitCode, exit_code_of


async def failing(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.UnknownStream("no stream 'a'"), ExitCode.NOT_FOUND),
        (FileNotFoundError(2, "No such file", "x"), ExitCode.NOT_FOUND),
        (errors.StreamExists("taken"), ExitCode.REFUSED),
        (errors.Unauthorized("who?"), ExitCode.REFUSED),
        (errors.WrongLastSequence("5"), ExitCode.REFUSED),
        (errors.DiskFull("no room"), ExitCode.REFUSED),
        (errors.Overloaded("too much"), ExitCode.REFUSED),
        (nats.errors.AuthorizationError(), ExitCode.REFUSED),
        (errors.UnavailableError("no server"), ExitCode.UNREACHABLE),
        (errors.ConnectionLost("gone"), ExitCode.UNREACHABLE),
        (errors.DeadlinePassed("late"), ExitCode.UNREACHABLE),
        (nats.errors.NoServersError(), ExitCode.UNREACHABLE),
        (nats.errors.NoRespondersError(), ExitCode.UNREACHABLE),
        (nats.errors.TimeoutError(), ExitCode.UNREACHABLE),
        (ConnectionRefusedError(111, "refused"), ExitCode.UNREACHABLE),
        (errors.CorruptDataError("bad"), ExitCode.DATA_DAMAGE),
        (errors.FsyncFailed("bad disk"), ExitCode.FAILURE),
        (errors.InternalError("ours"), ExitCode.FAILURE),
        (PermissionError(13, "denied"), ExitCode.FAILURE),
        (nats.errors.BadSubjectError(), ExitCode.FAILURE),
    ],
)
def test_every_kind_of_error_has_its_exit_code(error: BaseException, code: ExitCode) -> None:
    assert exit_code_of(error) is code


def test_every_registered_error_has_an_exit_code_that_is_not_success() -> None:
    for error_class in errors.registry().values():
        assert exit_code_of(error_class("x")) not in (ExitCode.OK, ExitCode.USAGE)


def test_an_expected_error_is_one_line_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended, reported_errors():
        raise errors.UnknownStream("no stream 'orders'")
    assert ended.value.exit_code == ExitCode.NOT_FOUND
    assert capsys.readouterr() == ("", "error: no stream 'orders'\n")


def test_an_error_for_machines_has_the_shape_of_the_request_api(capsys: pytest.CaptureFixture[str]) -> None:
    report(errors.OffsetOutOfRange("9 is beyond 5", offset=9, log_end_offset=5), as_json=True)
    assert json.loads(capsys.readouterr().err) == {
        "error": {
            "err_code": "offset_out_of_range",
            "description": "9 is beyond 5",
            "retriable": False,
            "exit_code": 4,
            "detail": {"offset": 9, "log_end_offset": 5},
        }
    }


def test_errors_gathered_by_a_task_group_are_reported_as_their_first_cause() -> None:
    with pytest.raises(typer.Exit) as ended, reported_errors():
        run_async(
            failing(BaseExceptionGroup("tasks", [ExceptionGroup("inner", [errors.UnknownStream("a")])]))
        )
    assert ended.value.exit_code == ExitCode.NOT_FOUND


def test_a_bug_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError), reported_errors():
        run_async(failing(ZeroDivisionError()))
    with pytest.raises(ExceptionGroup) as bugs, reported_errors():
        run_async(failing(ExceptionGroup("tasks", [errors.UnknownStream("a"), ZeroDivisionError()])))
    assert bugs.group_contains(ZeroDivisionError)


def test_what_ends_a_command_on_purpose_passes_through() -> None:
    with pytest.raises(typer.Exit), reported_errors():
        run_async(failing(typer.Exit(3)))


def test_an_interrupt_ends_with_the_code_shells_expect() -> None:
    with pytest.raises(typer.Exit) as ended, reported_errors():
        raise KeyboardInterrupt
    assert ended.value.exit_code == ExitCode.INTERRUPTED


def test_a_nats_error_without_text_is_named() -> None:
    assert describe(nats.errors.NoRespondersError()) == "NATS: no responders available for request"
    assert describe(nats.errors.Error()) == "NATS: Error"


def test_control_characters_of_an_error_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    report(errors.InvalidName("bad \x1b[2J name"), as_json=False)
    assert capsys.readouterr().err == "error: bad \\x1b[2J name\n"
