"""In which pieces an archive is published again."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envelope.errors import CorruptDataError, InvalidConfig
from jetstream.spark.pipelines.archives.archive_files import ArchivedStream, ArchiveManifest
from jetstream.spark.pipelines.archives.replay_plan import (
    PIECE_OFFSETS,
    Replay,
    ReplayRange,
    decode_replay,
    encode_replay,
)
from jetstream.spark.pipelines.replay import ReplaySettings

NEW = Replay("again", "{subject}", None)


def manifest(**ranges: tuple[int, int]) -> ArchiveManifest:
    return ArchiveManifest(
        version=1, streams={name: ArchivedStream("life", *range_) for name, range_ in ranges.items()}
    )


def pieces_of(replay: Replay) -> list[ReplayRange]:
    found = []
    while (piece := replay.next_piece()) is not None:
        found.append(piece)
        replay = replay.after(piece)
        assert decode_replay(encode_replay(replay)) == replay
    assert replay.left == 0
    return found


def test_each_stream_is_published_in_pieces_one_behind_the_other() -> None:
    end = 2 * PIECE_OFFSETS + 5
    replay = NEW.resumed(None, manifest(orders=(3, end), sales=(0, 4), empty=(7, 7)))
    found = pieces_of(replay)
    assert found == [
        ReplayRange("orders", 3, 3 + PIECE_OFFSETS),
        ReplayRange("orders", 3 + PIECE_OFFSETS, 3 + 2 * PIECE_OFFSETS),
        ReplayRange("orders", 3 + 2 * PIECE_OFFSETS, end),
        ReplayRange("sales", 0, 4),
    ]
    assert len({replay.session_of(piece, life) for piece in found for life in ("1a2b", "3c4d")}) == 8


@given(end=st.integers(0, 3 * PIECE_OFFSETS), grown=st.integers(0, 3 * PIECE_OFFSETS), done=st.integers(0, 4))
def test_what_was_begun_is_finished_with_the_same_pieces_before_more_comes(
    end: int, grown: int, done: int
) -> None:
    replay = NEW.resumed(None, manifest(orders=(0, end)))
    whole = pieces_of(replay)
    for piece in whole[:done]:
        replay = replay.after(piece)
    larger = manifest(orders=(0, end + grown), sales=(5, 9))
    resumed = NEW.resumed(replay, larger)
    left = pieces_of(resumed)
    if done < len(whole):
        assert left == whole[done:]
        for piece in left:
            resumed = resumed.after(piece)
        left = pieces_of(NEW.resumed(resumed, larger))
    assert sum(piece.end - piece.start for piece in left) == grown + 4
    assert all(piece.start >= end for piece in left if piece.stream == "orders")


def test_a_replay_of_something_else_needs_another_session() -> None:
    stored = NEW.resumed(None, manifest(orders=(0, 9)))
    for other in (replace(NEW, subject="other"), replace(NEW, stream="orders")):
        with pytest.raises(InvalidConfig, match="another session"):
            other.resumed(stored, manifest(orders=(0, 9)))


def test_sessions_have_files_whatever_their_names_are() -> None:
    assert NEW.path == "_archive/replays/again.json"
    assert replace(NEW, session="../a b").path == "_archive/replays/..%2Fa%20b.json"


@pytest.mark.parametrize(
    "content", [{}, {"session": "a", "subject": "b", "stream": None, "ends": {"orders": 3}}]
)
def test_a_state_that_contradicts_itself_is_not_read(content: dict[str, None]) -> None:
    with pytest.raises(CorruptDataError):
        decode_replay(dict(content))


@pytest.mark.parametrize(("session", "subject"), [("", "a"), ("a", ""), ("a", "{subject}.{subject}")])
def test_a_replay_has_a_session_and_a_subject(session: str, subject: str) -> None:
    with pytest.raises(InvalidConfig):
        ReplaySettings(root=Path(), session=session, subject=subject, sink={}).replay()
