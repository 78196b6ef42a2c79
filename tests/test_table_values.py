"""Whatever types the columns of a table have, its rows hold JSON values, and none of them is lost."""

from decimal import Decimal

import pytest

from gemma_trainer.data.reading.read import read_rows

arrow = pytest.importorskip("pyarrow")
VALUES = [
    (arrow.timestamp("ns"), 1_234_567_890_123_456_789, "2009-02-13 23:31:30.123456789"),
    (arrow.timestamp("s", "UTC"), 0, "1970-01-01 00:00:00Z"),
    (arrow.date32(), 1, "1970-01-02"),
    (arrow.date32(), 2**30, "<value out of range: 1073741824>"),  # Python has no such day
    (arrow.time64("ns"), 123, "00:00:00.000000123"),
    (arrow.duration("ns"), 1_500_000_001, 1.5),
    (arrow.decimal128(20, 2), Decimal("1.50"), 1.5),
    (arrow.decimal128(20, 2), Decimal("123456789012345678.91"), "123456789012345678.91"),
    (arrow.decimal128(38, 0), Decimal(10**30), 10**30),
    (arrow.float64(), float("nan"), None),
    (arrow.float32(), float("-inf"), "-inf"),
    (arrow.binary(), b"\xff", {"base64": "/w=="}),
    (arrow.struct({"bytes": arrow.binary()}), {"bytes": b"\xff"}, {"bytes": "/w=="}),
    (arrow.month_day_nano_interval(), (1, 2, 3), [1, 2, 3]),
    (arrow.map_(arrow.string(), arrow.float64()), [("a", float("nan"))], [["a", None]]),
    (arrow.string(), "a", "a"),
]
PLACES = {
    "cell": (lambda value: value, lambda kind: kind),
    "list": (lambda value: [value], arrow.list_),
    "pair": (lambda value: [value], lambda kind: arrow.list_(kind, 1)),
    "object": (lambda value: {"at": value}, lambda kind: arrow.struct({"at": kind})),
    "objects": (lambda value: [{"at": value}], lambda kind: arrow.large_list(arrow.struct({"at": kind}))),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("kind", "value", "expected"), VALUES, ids=str)
def test_values_of_tables_are_json_values(tmp_path, kind, value, expected, place):
    within, type_of = PLACES[place]
    column = arrow.array([within(value), within(None), None], type_of(kind))
    assert _written(tmp_path, column) == [within(expected), within(None), None]


def test_values_that_are_stored_once_are_read_alike(tmp_path):
    column = arrow.array([0, None, 0], arrow.timestamp("s")).dictionary_encode()
    assert _written(tmp_path, column) == ["1970-01-01 00:00:00", None, "1970-01-01 00:00:00"]


def _written(folder, column) -> list:
    table = arrow.table({"text": ["a", "b", "c"], "x": column})
    file = folder / "a.arrow"
    with arrow.ipc.new_stream(str(file), table.schema) as writer:
        writer.write_table(table)
    rows = [item.value for item in read_rows(file)]
    assert [row.pop("text") for row in rows] == ["a", "b", "c"]
    return [row["x"] for row in rows]
