"""The last record of each key, against a dictionary."""

from hypothesis import given
from hypothesis import strategies as st

from jetstream.client.read.stream_table import LatestRecords
from tests.support.logs import Record, records_batch

RECORDS = st.builds(
    Record,
    value=st.one_of(st.none(), st.binary(max_size=3)),
    key=st.one_of(st.none(), st.sampled_from((b"", b"a", b"b", b"c"))),
)


@given(batches=st.lists(st.lists(RECORDS, max_size=6), max_size=6), reduces=st.booleans())
def test_what_is_left_is_what_a_dictionary_keeps(batches: list[list[Record]], *, reduces: bool) -> None:
    latest = LatestRecords()
    expected: dict[bytes, tuple[int, bytes]] = {}
    base = 0
    for batch in batches:
        latest.add(records_batch(batch, base))
        for row, record in enumerate(batch):
            if record.key is not None:
                expected.pop(record.key, None)
                if record.value is not None:
                    expected[record.key] = (base + row, record.value)
        base += len(batch)
        if reduces:
            latest.table()
    table = latest.table()
    columns = (table[name].to_pylist() for name in ("key", "offset", "value"))
    found = [(key, (offset, value)) for key, offset, value in zip(*columns, strict=True)]
    assert found == list(expected.items())


def test_what_is_replaced_is_dropped_on_the_way() -> None:
    latest = LatestRecords()
    rows = [Record(key=b"k%d" % (row % 10)) for row in range(1000)]
    for turn in range(200):
        latest.add(records_batch(rows, 1000 * turn))
        assert latest._kept.num_rows <= 10
        assert latest._new_rows < 70_000
    assert latest.table()["offset"].to_pylist() == list(range(199_990, 200_000))
