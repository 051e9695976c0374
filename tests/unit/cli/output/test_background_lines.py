"""Lines of a process that waits for nobody, and what a log makes of words from outside."""

import fcntl
import logging
import os

from jetstream.cli.output.background_lines import BackgroundLines, LogHandler

_PIPE_BYTES = 4096


def written(lines: BackgroundLines, writer: int, reader: int) -> list[str]:
    """Return all lines, once they are written."""
    lines.flush()
    os.close(writer)
    with open(reader) as text:
        return text.read().splitlines()


def test_whoever_says_something_never_waits_and_what_found_no_room_is_counted() -> None:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    lines = BackgroundLines(writer, lines_max=10)
    for number in range(1000):
        lines.say(f"{number} {'x' * 90}")  # nobody reads yet
    said, dropped, rest = list[int](), 0, b""
    while len(said) + dropped < 1000:
        *whole, rest = (rest + os.read(reader, _PIPE_BYTES)).split(b"\n")
        for line in whole:
            if line.endswith(b"nobody read"):
                dropped += int(line.split()[0])
            else:
                said.append(int(line.split()[0]))
    assert dropped == lines.dropped > 0
    assert said == sorted(set(said))
    lines.say("later")
    assert written(lines, writer, reader) == ["later"]


def test_a_reader_that_leaves_ends_nothing() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    lines = BackgroundLines(writer)
    lines.say("to nobody")
    lines.flush()
    assert lines.dropped == 1
    os.close(writer)


def test_words_from_outside_make_no_line_of_their_own_and_steer_no_terminal() -> None:
    reader, writer = os.pipe()
    lines = BackgroundLines(writer)
    log = LogHandler(lines)
    forged = "a\n2026-01-01T00:00:00.000Z ERROR   node all is lost\x1b[31m\u2028"
    log.handle(logging.LogRecord("node", logging.WARNING, "", 0, "refused name=%s", (forged,), None))
    error = ValueError(forged)
    raised = (ValueError, error, None)
    log.handle(logging.LogRecord("node", logging.ERROR, "", 0, "failed", (), raised))
    refused, failed, *trace = written(lines, writer, reader)
    assert refused.endswith(r"name=a\n2026-01-01T00:00:00.000Z ERROR   node all is lost\x1b[31m\u2028")
    assert failed.endswith("failed")
    assert trace[-1].startswith("    2026-01-01")
    assert all(line.startswith("    ") and line.isprintable() for line in trace)


def test_an_event_whose_arguments_do_not_fit_is_written_all_the_same() -> None:
    reader, writer = os.pipe()
    lines = BackgroundLines(writer)
    LogHandler(lines).handle(logging.LogRecord("node", logging.ERROR, "", 0, "at offset=%d", ("none",), None))
    [line] = written(lines, writer, reader)
    assert line.endswith("at offset=%d with other arguments: ('none',)")


def test_events_that_peers_cause_in_masses_are_counted_and_few_of_them_written() -> None:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 1 << 20)
    now = 0.0
    lines = BackgroundLines(writer)
    log = LogHandler(lines, lambda: now)

    def event(level: int, text: str, *arguments: object) -> None:
        log.handle(logging.LogRecord("node", level, "", 0, text, arguments, None))

    for number in range(1500):
        event(logging.WARNING, "refused name=%s", number)
    event(logging.WARNING, "another")
    now += 0.5
    for _ in range(7):
        event(logging.WARNING, "refused name=%s", "later")
    for _ in range(1500):
        event(logging.DEBUG, "detail")
    found = written(lines, writer, reader)
    assert sum("refused" in line for line in found) == 1005
    assert [line.partition("later")[2] for line in found if "later" in line] == [
        " (and 500 like it)",
        *[""] * 4,
    ]
    assert sum("another" in line for line in found) == 1
    assert sum("detail" in line for line in found) == 1500


def test_events_of_which_none_may_be_left_out_are_all_written() -> None:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 1 << 20)
    lines = BackgroundLines(writer)
    log = LogHandler(lines, lambda: 0.0)
    for number in range(3000):
        record = logging.LogRecord("audit", logging.INFO, "", 0, "%s", (number,), None)
        record.is_limited = number % 2 == 1
        log.handle(record)
    numbers = [int(line.split()[3]) for line in written(lines, writer, reader)]
    assert [number for number in numbers if number % 2 == 0] == [*range(0, 3000, 2)]
    assert sum(number % 2 for number in numbers) == 1000
