"""The quick way to read small batches: many neighbours at once, by columns.

A batch of few records costs as much to decode as one of thousands, nearly all of it before the first record.
But the metadata of batches without headers differs only in numbers at fixed places (`plain_batch_encoder`).
So those of a run of neighbours are compared as the rows of one matrix, `batch_columns` reads their columns
together, and one pass checks all their CRCs. If all have one layout, only that of the first is computed.

The result equals the records of `decode`, put together. A batch that does not fit (headers, a compressed
body, a gap, another epoch, damage) ends the run before it; the reader of single batches judges it.
"""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numpy.lib.stride_tricks import sliding_window_view

from envelope.limits import KIB, MIB
from envelope.types import Buffer, LeaderEpoch, Offset, TimestampUs
from jetstream.log.format.batch import (
    CRC_AT,
    FORMAT_VERSION,
    SIGNED_MAX,
    ZEROS,
    BatchFlags,
    BatchHeader,
    FoundBatch,
    next_batch,
)
from jetstream.log.format.batch_columns import (
    BODY_BYTES_MAX,
    HEADERS_AT,
    WORD,
    Flags,
    FlatBatches,
    Numbers,
    layouts_of,
    words_at,
    words_of,
)
from jetstream.log.format.checksum import crc32c
from jetstream.log.format.message import ENTRY_DIGITS, PREFIX_BYTES
from jetstream.log.format.plain_batch_encoder import TEMPLATE, blank

_FRAMES_MIN: Final = 32
"""Fewer batches are quicker one by one."""
_RUN_BYTES_MAX: Final = 4 * MIB
_ROW_BYTES: Final = KIB
"""Bytes of a batch of one small record: a run is looked for in so many bytes per requested record."""
_rooms: Final[list[bytearray]] = []
"""Buffers for one run each, as many as threads read runs at once: an allocation costs as much as the rest."""

_CRC: Final = np.dtype("<u4")

_ENTRY: Final = np.dtype(
    [
        ("version", ">u2"),
        ("flags", ">u2"),
        ("base", ">u8"),
        ("next", ">u8"),
        ("epoch", ">u8"),
        ("timestamp", ">u8"),
        ("crc", ">u4"),
    ]
)
"""The header entry (`jetstream.log.format.batch`), in bytes."""

_MASK: Final = bytearray(b"\xff" * len(TEMPLATE.metadata))
blank(_MASK)
"""The bits of the metadata that are the same in every batch."""

_NO_VALUE: Final = 256
_VALUES: Final = np.full(1 << 16, _NO_VALUE, np.uint16)
_VALUES[np.frombuffer(bytes(range(256)).hex().encode(), np.uint16)] = np.arange(256)
"""The value of two digits."""

_PREFIX: Final = TEMPLATE.metadata[:PREFIX_BYTES]
_WALKED: Final = struct.Struct(
    f"<{PREFIX_BYTES}s{TEMPLATE.fields.body_length - PREFIX_BYTES}xq"
    f"{HEADERS_AT - TEMPLATE.fields.body_length - WORD}xqq"
)
"""Words of the prefix, the length of the body, the number of records, and that of records without headers."""

_METADATA_WORDS: Final = len(TEMPLATE.metadata) // WORD
_SAME_AT: Final = np.flatnonzero(words_of(_MASK))
_SAME_MASK: Final = words_of(_MASK)[_SAME_AT]
_SAME: Final = words_of(TEMPLATE.metadata)[_SAME_AT] & _SAME_MASK
_ENTRY_AT: Final = words_at(TEMPLATE.digits, TEMPLATE.digits + ENTRY_DIGITS)
_OWN_AT: Final = slice(-(-TEMPLATE.digits // WORD), (TEMPLATE.digits + ENTRY_DIGITS) // WORD)
"""Words of the metadata that hold digits of the header entry and nothing else."""


def merged_batches(
    data: Buffer, rows: int, max_bytes: int = _RUN_BYTES_MAX
) -> Iterator[tuple[BatchHeader, pa.RecordBatch]]:
    """Yield header and records of each message in ``data``, as `decode`, with small neighbours put together.

    The header of a run has the range of all, and the flags and CRC of the last batch. A run ends with the
    batch that brings it to ``rows`` records, or before the batch that would exceed ``max_bytes``, 4 MiB, or
    1 KiB for each of ``rows``. An incomplete last message is left out.

    Args:
        data: if it can be written, batches that have been yielded together are not whole in it afterwards.
        rows: 1 or more.
        max_bytes: of a run.

    Raises:
        CorruptDataError, Unsupported: as `decode`, after all batches before were yielded.
    """
    view, start = memoryview(data), 0
    while start < len(view):
        found = _read_run(view, start, rows, max_bytes) or next_batch(view, start)
        if found is None:
            return
        header, records, start = found
        yield header, records


def _read_run(data: memoryview, start: int, rows: int, max_bytes: int) -> FoundBatch | None:
    """Return the run of batches at ``start`` as one; None if there are too few, or the first does not fit."""
    data = data[start : start + min(max_bytes, _RUN_BYTES_MAX, rows * _ROW_BYTES)]
    if not _are_many(data, rows):
        return None
    places = _extents(data, rows)
    if len(places) <= _FRAMES_MIN:
        return None
    with _writable(data[: places[-1]]) as stored:
        found = _read_stored(stored, places)
    return None if found is None else (found[0], found[1], start + found[2])


@contextmanager
def _writable(data: memoryview) -> Iterator[memoryview]:
    if not data.readonly:
        yield data
        return
    try:
        room = _rooms.pop()
    except IndexError:
        room = bytearray(_RUN_BYTES_MAX)
    try:
        room[: len(data)] = data
        yield memoryview(room)[: len(data)]
    finally:
        _rooms.append(room)


def _read_stored(stored: memoryview, places: Numbers) -> FoundBatch | None:
    """Return the run in ``stored``, if any; afterwards only the batches behind it are whole there."""
    lengths = places[1:] - places[:-1]
    metadata = _metadata(stored, places[:-1], lengths)
    entries, fit = _entries(metadata)
    if _are_alike(metadata, lengths):
        metadata = metadata[:1]
    layouts = layouts_of(metadata)
    fit &= _are_ours(metadata) & layouts.are_flat(lengths - len(TEMPLATE.metadata))
    fit &= _fit_together(entries) & (entries["next"] - entries["base"] >= layouts.rows)
    checked = _leading(fit)
    crcs = entries["crc"][:checked].astype(_CRC)
    whole = _whole(stored, places[: checked + 1], crcs) if checked else 0
    run = FlatBatches(stored, places[:whole], layouts.of_first(whole))
    count = run.in_order()
    if count < checked:
        _put_back(stored, places[:checked], crcs, count)
    if not count:
        return None
    return _header(entries[:count]), run.leading(count).records(), int(places[count])


def _metadata(stored: memoryview, places: Numbers, lengths: Numbers) -> Numbers:
    words = words_of(stored)
    if (lengths == lengths[0]).all():
        return words[: lengths.sum() // WORD].reshape(len(lengths), -1)[:, :_METADATA_WORDS]
    return sliding_window_view(words, _METADATA_WORDS)[places // WORD]


def _are_many(data: memoryview, rows: int) -> bool:
    """Return whether so many ``rows`` may be more than `_FRAMES_MIN` batches: a run is looked for then."""
    start, end = 0, len(data) - len(TEMPLATE.metadata)
    for _ in range(_FRAMES_MIN):
        if start > end or rows <= 0:
            return False
        prefix, body_length, count, without_headers = _WALKED.unpack_from(data, start)
        if prefix != _PREFIX or not 0 <= body_length <= BODY_BYTES_MAX or count != without_headers:
            return False
        start += len(TEMPLATE.metadata) + body_length
        rows -= count
    return True


def _extents(data: memoryview, rows: int) -> Numbers:
    """Return the start of each batch that may belong to the run, and the end of the last one.

    They are found by their common prefix. If that also stands inside a batch, the run ends before it.
    """
    words = np.frombuffer(data[: len(data) // WORD * WORD], np.int64)
    starts = _found_starts(words)
    body_lengths = words[starts + TEMPLATE.fields.body_length // WORD]
    counts = words[starts + HEADERS_AT // WORD]
    fit = (body_lengths >= 0) & (body_lengths <= BODY_BYTES_MAX) & (body_lengths % WORD == 0)
    fit &= (counts >= 0) & (counts <= BODY_BYTES_MAX) & (words[starts + HEADERS_AT // WORD + 1] == counts)
    ends = starts + _METADATA_WORDS + body_lengths // WORD
    fit &= ends <= len(words)
    fit[1:] &= ends[:-1] == starts[1:]
    count = _leading(fit)
    count = min(count, int(counts[:count].cumsum().searchsorted(rows)) + 1)
    return np.append(starts[:count], ends[count - 1]) * WORD


def _found_starts(words: Numbers) -> Numbers:
    """Return the words at which batches seem to begin: as far apart as the first two, if most of them are."""
    length = _METADATA_WORDS + int(words[TEMPLATE.fields.body_length // WORD]) // WORD
    count = (len(words) - _METADATA_WORDS) // length + 1
    apart = _leading(words[: (count - 1) * length + 1 : length] == words_of(_PREFIX)[0])
    if 2 * apart >= count:
        return np.arange(apart) * length
    return np.flatnonzero(words[: len(words) - _METADATA_WORDS + 1] == words_of(_PREFIX)[0])


def _are_alike(metadata: Numbers, lengths: Numbers) -> bool:
    """Return whether all batches are laid out like the first: they differ in their header entries only."""
    return bool(
        (lengths == lengths[0]).all()
        and (metadata[:, : _OWN_AT.start] == metadata[0, : _OWN_AT.start]).all()
        and (metadata[:, _OWN_AT.stop :] == metadata[0, _OWN_AT.stop :]).all()
    )


def _are_ours(metadata: Numbers) -> Flags:
    """Return for each batch whether its metadata is that of a batch of ours, but for its header entry."""
    fit: Flags = (metadata[:, _SAME_AT] & _SAME_MASK == _SAME).all(axis=1)
    return fit


def _entries(metadata: Numbers) -> tuple[npt.NDArray[np.void], Flags]:
    first = TEMPLATE.digits % WORD
    digits = metadata[:, _ENTRY_AT].copy().view(np.uint8)[:, first : first + ENTRY_DIGITS]
    values = _VALUES.take(digits.view(np.uint16))
    fit = np.asarray((values < _NO_VALUE).all(axis=1))
    return values.astype(np.uint8).view(_ENTRY)[:, 0], fit


def _fit_together(entries: npt.NDArray[np.void]) -> Flags:
    """Return for each batch whether it is one of this version, and goes on where the one before it ended."""
    base, end, epoch = entries["base"], entries["next"], entries["epoch"]
    fit: Flags = (base < end) & (end <= SIGNED_MAX) & (entries["version"] == FORMAT_VERSION)
    fit &= (epoch == epoch[0]) & (epoch <= SIGNED_MAX) & (entries["timestamp"] <= SIGNED_MAX)
    fit[1:] &= base[1:] == end[:-1]
    return fit


def _whole(stored: memoryview, places: Numbers, crcs: "npt.NDArray[np.uint32]") -> int:
    """Return how many leading batches have the CRC of their header; `_put_back` undoes the changes.

    A CRC that reaches its own value, added to the bytes there, goes on behind them as if it began there. So
    one pass that finds each batch's CRC at the start of the next one ends with the CRC of the last batch, and
    with another value if a batch is damaged: the difference stays to the end. The damaged one is found by
    bisection. The differences of several batches cancel out as rarely as damage of one keeps its CRC: 2^-32.
    """
    digits = places[:-1, None] + np.arange(TEMPLATE.digits + CRC_AT, TEMPLATE.digits + CRC_AT + len(ZEROS))
    np.frombuffer(stored, np.uint8)[digits] = ZEROS[0]
    np.frombuffer(stored, _CRC)[places[1:-1] // _CRC.itemsize] ^= crcs[:-1]

    def are_whole(first: int, end: int) -> bool:
        before = int(crcs[first - 1]) if first else 0
        return crc32c(stored[places[first] : places[end]], before) == int(crcs[end - 1])

    whole, suspects_end = 0, len(crcs)
    if are_whole(whole, suspects_end):
        return suspects_end
    while suspects_end - whole > 1:
        middle = (whole + suspects_end) // 2
        if are_whole(whole, middle):
            whole = middle
        else:
            suspects_end = middle
    return whole


def _put_back(stored: memoryview, places: Numbers, crcs: "npt.NDArray[np.uint32]", first: int) -> None:
    """Restore the batches that `_whole` changed, from the one with the number ``first`` on."""
    for place, crc in zip((places[first:] + TEMPLATE.digits + CRC_AT).tolist(), crcs[first:], strict=True):
        stored[place : place + len(ZEROS)] = b"%08x" % crc
    begun = max(first, 1)
    np.frombuffer(stored, _CRC)[places[begun:] // _CRC.itemsize] ^= crcs[begun - 1 : -1]


def _header(entries: npt.NDArray[np.void]) -> BatchHeader:
    last = entries[-1]
    return BatchHeader(
        version=FORMAT_VERSION,
        flags=BatchFlags(int(last["flags"])),
        base=Offset(int(entries["base"][0])),
        next=Offset(int(last["next"])),
        leader_epoch=LeaderEpoch(int(last["epoch"])),
        max_timestamp=TimestampUs(int(entries["timestamp"].max())),
        crc=int(last["crc"]),
    )


def _leading(flags: Flags) -> int:
    return int(np.append(flags, np.False_).argmin())
