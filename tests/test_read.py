"""Containers -> raw rows: bytes, JSON, arrays, tables; and that no bytes make the reader fail otherwise than told."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import tarfile
import zipfile

import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gemma_trainer.data.pipeline import load_rows
from gemma_trainer.data.reading import parse
from gemma_trainer.data.reading.raw import RawRow
from gemma_trainer.data.reading.read import read_rows
from gemma_trainer.data.reading.sources import data_hash, expand
from gemma_trainer.rows.problems import Failure

ROW = '{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}'


@pytest.fixture(params=["orjson", "json"])
def decoder(request, monkeypatch):
    """Both decoders must give the same rows and the same faults."""
    if request.param == "json":
        monkeypatch.setattr(parse, "orjson", None)
    elif parse.orjson is None:
        pytest.skip("orjson is not installed")


def read(tmp_path, data: bytes | str, name: str = "rows.jsonl", **options):
    file = tmp_path / name
    file.write_bytes(data.encode("utf-8") if isinstance(data, str) else data)
    return list(read_rows(file, **options))


def faults(items) -> list[tuple[str, int | None]]:
    """(code, line) of every problem, those of rows and of files."""
    problems = [item.fault if isinstance(item, RawRow) else item for item in items]
    return [(problem.code, problem.line) for problem in problems if problem]


def values(items) -> list:
    return [item.value for item in items if isinstance(item, RawRow) and not item.fault]


@pytest.mark.usefixtures("decoder")
@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b'{"a": "caf\xe9"}', "invalid-utf8"),
        (b'{"a": "\xed\xa0\x80"}', "invalid-utf8"),
        (b'{"a": 1,}', "json-trailing-comma"),
        (b'{"a": [1,2,]}', "json-trailing-comma"),
        (b'{"a": 1,, "b": 2}', "json-invalid"),
        (b'{"a": "cut', "json-cut"),
        (b'{"a": "cut\\u12', "json-cut"),
        (b'{"a": tru', "json-cut"),
        (b'{"a": {"b": 1}', "json-cut"),
        (b'{"a": 1} x', "json-extra-data"),
        (b'{"a": 1}{"a": 2}{"a"', "json-extra-data"),
        (b'{"a": 1}{"b": 2, "b": 2}', "json-extra-data"),
        (b'{"a": 1} 2', "json-extra-data"),
        (b'{"a": NaN}', "json-not-a-number"),
        (b'{"a": -Infinity}', "json-not-a-number"),
        (b'{"a": "NaN", "b": NaN}', "json-not-a-number"),
        (b'{"a": 1e999}', "json-invalid"),
        (b'{"a": 1, "a": 2}', "json-duplicate-key"),
        (b'{"x": [{"a": 1, "a": 1}]}', "json-duplicate-key"),
        (b'{"a" : 1, "a" : 2}', "json-duplicate-key"),
        (b'{"\\ud83d": 1, "\\ud83d": 2}', "json-duplicate-key"),
        (b'{"a": "\\ud83d x"}', "json-lone-surrogate"),
        (b'{"a": "\\ude80"}', "json-lone-surrogate"),
        (b"{'a': 1}", "json-invalid"),
        (b'{"a": True}', "json-invalid"),
        (b'{"a": "x\ty"}', "json-invalid"),
        (b'{"a": "\\x41"}', "json-invalid"),
        (b"// note", "json-invalid"),
        (b"[" * 500 + b"]" * 500, "json-too-deep"),
        (b"[" * 100_000, "json-too-deep"),
    ],
)
def test_bad_line_is_told_and_hides_no_other(tmp_path, line, code):
    items = read(tmp_path, b'{"n": 1}\n' + line + b'\n\n{"n": 2}\n')
    assert faults(items) == [(code, 2)]
    assert values(items) == [{"n": 1}, {"n": 2}]
    assert [item.line for item in items] == [1, 2, 4] and [item.row for item in items] == [1, 2, 3]
    assert items[1].source == line + b"\n"


@pytest.mark.usefixtures("decoder")
@pytest.mark.parametrize(
    ("line", "value"),
    [
        ('{"a": "\\ud83d\\ude80"}', {"a": "\U0001f680"}),
        ('{"a": "\\\\ud83d"}', {"a": "\\ud83d"}),
        ('{"a": "x\u2028y\u0085z"}', {"a": "x\u2028y\u0085z"}),
        ('{"a": "say \\"b\\": 1, \\"b\\": 2"}', {"a": 'say "b": 1, "b": 2'}),
        ('{"a": 123456789012345678901234567890}', {"a": 123456789012345678901234567890}),
        ('{"a": {"a": {"a": []}}}', {"a": {"a": {"a": []}}}),
        ('  {"a": 1}\r', {"a": 1}),
    ],
)
def test_good_line_comes_through_unchanged(tmp_path, line, value):
    items = read(tmp_path, line + "\n" + line)
    assert values(items) == [value, value] and not faults(items)


def test_column_and_byte_are_named(tmp_path):
    items = read(tmp_path, b'{"a": 1}\n{"a": 1,}\n{"b": "\xff"}')
    assert "column 9" in items[1].fault.message
    assert "byte 8" in items[2].fault.message


def test_byte_order_marks_are_stripped_and_told(tmp_path):
    items = read(tmp_path, b'\xef\xbb\xbf{"a": 1}\n\xef\xbb\xbf{"a": 2}\n')
    assert faults(items) == [("byte-order-mark", 1), ("byte-order-mark", 2)]
    assert values(items) == [{"a": 1}, {"a": 2}]


@pytest.mark.usefixtures("decoder")
@pytest.mark.parametrize("line", ['{"n": 2}{"n": 3}', '{"n": 2} , {"n": 3}', '{"n": 2},{"n": 3},\r'])
def test_rows_that_share_a_line_are_told_and_read(tmp_path, line):
    items = read(tmp_path, f'{{"n": 1}}\n{line}\n{{"n": 4}}\n')
    assert faults(items) == [("json-extra-data", 2)]
    rows = [item for item in items if isinstance(item, RawRow)]
    assert [(item.value["n"], item.line, item.row) for item in rows] == [(1, 1, 1), (2, 2, 2), (3, 2, 3), (4, 3, 4)]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize("text", [ROW + "\n" + ROW, f"[\n{ROW},\n{ROW}]", "messages\n" + ROW + "\n" + ROW])
def test_wide_encodings_are_told_and_read(tmp_path, encoding, text):
    text = text.replace("q", "Größe 🚀 q")
    name = "a.csv" if text.startswith("m") else "a.json"
    items = read(tmp_path, text.encode(encoding), name, delimiter="|")
    assert faults(items) == [("encoding-unsupported", 1)]
    assert values(items) == values(read(tmp_path, text, name, delimiter="|")) and len(values(items)) == 2


def test_half_a_wide_character_costs_its_row_only(tmp_path):
    broken = ROW.replace("q", "\ud83d").encode("utf-16-le", "surrogatepass")
    data = b"\n\0".join([ROW.encode("utf-16-le"), broken, ROW.encode("utf-16-le")])
    assert faults(read(tmp_path, data)) == [("encoding-unsupported", 1), ("invalid-utf8", 2)]
    assert faults(read(tmp_path, data + b"\n")) == [
        ("encoding-unsupported", 1),
        ("invalid-utf8", 2),
        ("invalid-utf8", 3),
    ]


def test_lone_carriage_returns_end_lines(tmp_path):
    for name, text in (("a.jsonl", f"{ROW}\r{ROW}\r"), ("a.csv", "a,b\r1,2\r3,4\r")):
        items = read(tmp_path, text, name)
        assert faults(items) == [("lone-carriage-returns", 1)]
        assert [item.line for item in items if isinstance(item, RawRow)] in ([1, 2], [2, 3])


@pytest.mark.parametrize("data", [b"", b" \n\n\t\n"])
def test_empty_file(tmp_path, data):
    assert faults(read(tmp_path, data)) == [("empty-file", None)]


@pytest.mark.parametrize("indent", [None, 1, 2])
@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.txt"])
def test_array_whatever_its_suffix(tmp_path, indent, name):
    rows = [{"n": at, "t": "x\ny"} for at in range(5)]
    items = read(tmp_path, "\n" + json.dumps(rows, indent=indent), name)
    assert values(items) == rows
    height = {None: 0, 1: 4, 2: 4}[indent]
    assert [item.line for item in items if isinstance(item, RawRow)] == [
        2 + (indent is not None) + at * height for at in range(5)
    ]
    assert faults(items) == ([("not-json-lines", 1)] if name == "a.jsonl" else [])


@pytest.mark.parametrize("key", ["data", "train", "rows"])
@pytest.mark.parametrize("first", [True, False])
def test_object_that_holds_the_rows(tmp_path, key, first):
    rows = [{"n": 1}, {"n": 2}]
    whole = {key: rows, "version": [1, 2]} if first else {"version": "1", key: rows}
    items = read(tmp_path, json.dumps(whole, indent=1), "a.json")
    assert values(items) == rows and not faults(items)
    assert [item.line for item in items] == ([3, 6] if first else [4, 7])


def test_second_list_of_rows_is_an_error(tmp_path):
    items = read(tmp_path, '{"train": [{"n": 1}],\n "test": [{"n": 2}]}', "a.json")
    assert faults(items) == [("several-lists", 2)]


def test_rows_that_have_a_column_named_like_a_wrapper(tmp_path):
    line = '{"data": [{"role": "user", "content": "x"}], "id": 1}'
    assert len(values(read(tmp_path, f"{line}\n{line}\n"))) == 2


def test_one_conversation_as_the_whole_file(tmp_path):
    talk = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    assert values(read(tmp_path, json.dumps(talk, indent=2), "a.json")) == [talk]


def test_pretty_printed_rows_behind_each_other(tmp_path):
    items = read(tmp_path, '{\n "n": 1\n}\n{\n "n": 2\n}\n')
    assert values(items) == [{"n": 1}, {"n": 2}] and faults(items) == [("not-json-lines", 1)]


def test_broken_element_of_an_array_hides_no_other(tmp_path):
    items = read(tmp_path, '[\n {"n": 1},\n {"n": 2,},\n {"n": NaN},\n {"n": 4}\n]', "a.json")
    assert values(items) == [{"n": 1}, {"n": 4}]
    assert faults(items) == [("json-trailing-comma", 3), ("json-not-a-number", 4)]


@pytest.mark.parametrize(
    ("text", "fault", "count"),
    [
        ('[\n{"n": 1},\n{"n": 2},\n]', ("json-trailing-comma", 4), 2),
        ('[\n{"n": 1}\n{"n": 2}\n]', ("json-invalid", 3), 2),
        ('[\n{"n": 1},\n{"n": 2', ("json-cut", 3), 1),
        ('[\n{"n": 1}', ("json-cut", 2), 1),
        ('{"data": [\n{"n": 1},\n{"n": 2', ("json-cut", 3), 1),
    ],
)
def test_damaged_array(tmp_path, text, fault, count):
    items = read(tmp_path, text, "a.json")
    assert faults(items) == [fault] and len(values(items)) == count


def test_array_larger_than_a_block(tmp_path):
    rows = [{"n": at, "text": "é" * (at % 700)} for at in range(3000)]
    items = read(tmp_path, json.dumps(rows, ensure_ascii=False), "a.json")
    assert values(items) == rows and {item.line for item in items} == {1}
    huge = [{"text": "x" * 3_000_000}, {"n": 1}]
    assert values(read(tmp_path, json.dumps(huge), "b.json")) == huge


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl", "a"])
def test_gzip_is_told_by_content(tmp_path, name):
    assert len(values(read(tmp_path, gzip.compress((ROW + "\n").encode() * 3), name))) == 3


def packed_zstd(data: bytes) -> bytes:
    arrow = pytest.importorskip("pyarrow")
    return arrow.compress(data, codec="zstd", asbytes=True)


def test_zstd_is_told_by_content_and_may_hold_several_frames(tmp_path):
    frame = packed_zstd(ROW.encode() + b"\n")
    assert len(values(read(tmp_path, frame * 3, "a.jsonl"))) == 3
    table = packed_zstd(b"a,b\n1,2\n")
    assert values(read(tmp_path, table, "a.csv.zst")) == [{"a": "1", "b": "2"}]


@pytest.mark.parametrize("name", ["a.jsonl.zst", "a.parquet.zst"])
def test_damaged_zstd_is_told(tmp_path, name):
    whole = packed_zstd("\n".join(json.dumps({"n": n, "m": n * n}) for n in range(5000)).encode())
    for data in (whole[: len(whole) // 2], whole[:-1], whole[:20] + b"\xff" * 20 + whole[40:], whole[:4] + b"x" * 40):
        assert faults(read(tmp_path, data, name))[-1] == ("packed-cut", None)


def test_parquet_in_zstd(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    parquet.write_table(pyarrow.Table.from_pylist([{"a": 1}]), tmp_path / "a.parquet")
    assert values(read(tmp_path, packed_zstd((tmp_path / "a.parquet").read_bytes()), "b.parquet.zst")) == [{"a": 1}]


def test_cut_gzip_gives_what_is_there_and_says_so(tmp_path):
    data = gzip.compress("".join(json.dumps({"n": at, "x": hash(str(at))}) + "\n" for at in range(5000)).encode())
    items = read(tmp_path, data[: len(data) // 2], "a.jsonl.gz")
    assert faults(items)[-1][0] == "packed-cut" and len(values(items)) > 100


# Tables


def test_csv_lines_are_physical_and_cells_are_whole(tmp_path):
    items = read(tmp_path, 'a,b\r\n"x\r\ny","1,""2"""\r\n\r\nz,\r\n', "a.csv")
    assert values(items) == [{"a": "x\r\ny", "b": '1,"2"'}, {"a": "z", "b": ""}]
    assert [item.line for item in items] == [2, 5]


@pytest.mark.parametrize(
    ("data", "expected", "count"),
    [
        (b"a,b\n1,2,3\n4,5\n", ("csv-cells", 2), 1),
        (b"a,b\n1\n4,5\n", ("csv-cells", 2), 1),
        (b'a,b\n1,2\n"open,5\n6,7\n', ("csv-quote", 3), 1),
        (b'a,b\n"x"y,2\n4,5\n', ("csv-quote", 2), 1),
        (b"a,b\n1,\xe9\n4,5\n", ("invalid-utf8", 2), 1),
        (b"a;b\n1;2\n", ("csv-separator", 1), 0),
        (b"a\tb\n1\t2\n", ("csv-separator", 1), 0),
        (b"a|b\n1|2\n", ("csv-separator", 1), 0),
        (b"a,a\n1,2\n", ("csv-header", 1), 0),
        (b"a,,b\n1,2,3\n", ("csv-header", 1), 0),
    ],
)
def test_bad_csv(tmp_path, data, expected, count):
    items = read(tmp_path, data, "a.csv")
    assert faults(items) == [expected] and len(values(items)) == count


def test_tsv_and_delimiter(tmp_path):
    assert values(read(tmp_path, "a\tb\n1,5\t2\n", "a.tsv")) == [{"a": "1,5", "b": "2"}]
    assert values(read(tmp_path, "a;b\n1,5;2\n", "a.csv", delimiter=";")) == [{"a": "1,5", "b": "2"}]


def test_commas_in_a_file_that_says_tabs(tmp_path):
    assert faults(read(tmp_path, "a,b\n1,2\n", "a.tsv")) == [("csv-separator", 1)]


def test_blanks_around_the_name_of_a_column_are_told(tmp_path):
    items = read(tmp_path, "prompt, completion\na,b\n", "a.csv")
    assert faults(items) == [("column-renamed", 1)] and values(items) == [{"prompt": "a", "completion": "b"}]
    assert faults(read(tmp_path, "prompt,completion\na,b\n", "a.csv")) == []


def test_index_column_of_pandas_has_a_name(tmp_path):
    items = read(tmp_path, ",a\n0,x\n", "a.csv")
    assert values(items) == [{"Unnamed: 0": "0", "a": "x"}] and items[0].header == 1


def test_large_cell(tmp_path):
    assert values(read(tmp_path, "a,b\n" + "x" * 300_000 + ",2\n", "a.csv"))[0]["a"] == "x" * 300_000


@pytest.mark.parametrize("form", ["parquet", "file", "stream"])
def test_parquet_and_arrow(tmp_path, form):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = arrow.table({"prompt": ["a", "b"], "completion": ["c", None]})
    file = tmp_path / ("a.parquet" if form == "parquet" else "a.arrow")
    if form == "parquet":
        parquet.write_table(table, file)
    else:
        make = arrow.ipc.new_file if form == "file" else arrow.ipc.new_stream
        with make(str(file), table.schema) as writer:
            writer.write_table(table)
    items = list(read_rows(file))
    assert values(items) == [{"prompt": "a", "completion": "c"}, {"prompt": "b", "completion": None}]
    assert [(item.line, item.row) for item in items] == [(None, 1), (None, 2)]
    file.write_bytes(file.read_bytes()[:-20])
    if form != "stream":
        assert faults(list(read_rows(file)))[-1][0] == "parquet-invalid"


@pytest.mark.parametrize("form", ["parquet", "stream"])
def test_tables_with_values_that_python_has_no_object_for_are_told(tmp_path, form):
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.table({"prompt": ["a"], "completion": ["c"], "took": pyarrow.array([2**60], pyarrow.duration("s"))})
    file = tmp_path / ("a.parquet" if form == "parquet" else "a.arrow")
    if form == "parquet":
        parquet.write_table(table, file)
    else:
        with pyarrow.ipc.new_stream(str(file), table.schema) as writer:
            writer.write_table(table)
    (problem,) = read_rows(file)
    assert problem.code == "parquet-invalid" and "out of range" in problem.message and problem.fix


def test_an_arrow_stream_with_an_absurd_length_is_told(tmp_path):
    """Any eight bytes of it may be damaged: a length that no memory holds is no crash."""
    import pyarrow

    table = pyarrow.table({"prompt": ["a", "b"], "completion": ["c", "d"]})
    file = tmp_path / "a.arrow"
    with pyarrow.ipc.new_stream(str(file), table.schema) as writer:
        writer.write_table(table)
    whole = file.read_bytes()
    for at in range(0, len(whole), 8):
        file.write_bytes(whole[:at] + (2**60).to_bytes(8, "little") + whole[at + 8 :])
        assert all(item.value for item in read_rows(file) if isinstance(item, RawRow))


@pytest.mark.parametrize(
    "text", ['{"data": []}', '{"train": [], "test": []}', '{\n "train": [],\n "test": []\n}', "[]"]
)
@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
def test_lists_without_rows_hold_no_row(tmp_path, text, name):
    assert values(read(tmp_path, text, name)) == []


@pytest.mark.parametrize("indent", [None, 1])
def test_rows_stand_in_the_first_list_that_is_not_empty(tmp_path, indent):
    text = json.dumps({"test": [], "train": [json.loads(ROW)], "dev": []}, indent=indent)
    items = read(tmp_path, text, "a.json")
    assert values(items) == [json.loads(ROW)] and not faults(items)


def test_a_row_with_an_empty_column_named_like_a_wrapper_is_a_row(tmp_path):
    row = {"prompt": "a", "completion": "b", "items": []}
    assert values(read(tmp_path, json.dumps(row), "a.json")) == [row]


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.csv", "a.txt", "a", "a.jsonl"])
def test_the_content_decides_not_the_suffix(tmp_path, name):
    rows = [json.loads(ROW)] * 2
    assert values(read(tmp_path, f"{ROW}\n{ROW}\n", name)) == rows == values(read(tmp_path, json.dumps(rows), name))
    items = read(tmp_path, "prompt,completion\na,b\n", name)
    assert values(items) == [{"prompt": "a", "completion": "b"}]
    assert [code for code, _ in faults(items)] == ["not-json-lines"] * name.endswith("jsonl")


def test_a_first_line_of_words_does_not_make_json_lines_a_table(tmp_path):
    items = read(tmp_path, f"text, written today\n{ROW}\n")
    assert [code for code, _ in faults(items)] == ["json-invalid"] and values(items) == [json.loads(ROW)]


def test_an_arrow_stream_of_another_suffix(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table({"text": ["a"]})
    with arrow.ipc.new_stream(str(tmp_path / "a.bin"), table.schema) as writer:
        writer.write_table(table)
    assert values(list(read_rows(tmp_path / "a.bin"))) == [{"text": "a"}]


def zipped() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.jsonl", ROW)
    return file.getvalue()


NOT_DATA = {
    "zip": (zipped(), "unzip"),
    "tar": (tarfile.TarInfo("a.jsonl").tobuf(tarfile.USTAR_FORMAT) + bytes(1024), "tar"),
    "xz": (lzma.compress(ROW.encode()), "xz -dk"),
    "bz2": (bz2.compress(ROW.encode()), "bzip2 -dk"),
    "tar.gz": (gzip.compress(b"a" * 257 + b"ustar\0" + bytes(300)), "tar"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "git lfs pull"),
    "page": (b"\n<!DOCTYPE html>\n<html><title>404</title></html>", "/resolve/"),
}


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.parquet", "a"])
@pytest.mark.parametrize("kind", NOT_DATA)
def test_what_stands_in_the_place_of_data_is_named(tmp_path, kind, name):
    data, way = NOT_DATA[kind]
    (problem,) = read(tmp_path, data, name)
    assert problem.code == "file-not-data" and way in problem.fix


# Names and hashes


def test_names_that_stand_for_nothing(tmp_path):
    for name in (tmp_path / "x", tmp_path / "*.jsonl", tmp_path):
        with pytest.raises(Failure):
            expand([str(name)])


def test_data_hash_is_that_of_the_bytes(tmp_path):
    file = tmp_path / "a"
    file.write_bytes(b"abc")
    assert data_hash([file]) == xxhash.xxh3_128_hexdigest(b"abc")
    assert data_hash([file, file]) != data_hash([file])


# Whatever the bytes

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["messages", "role", "content", "from", "value", "prompt", "chosen", "rejected", "text", "tools"]
            )
            | st.text(max_size=3),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
broken_text = st.builds(
    lambda value, at, junk: (text := json.dumps(value).encode())[: at % (len(text) + 1)] + junk + text[at % 7 :],
    json_values,
    st.integers(0, 200),
    st.binary(max_size=6),
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.binary(max_size=40) | broken_text | json_values.map(lambda v: json.dumps(v).encode()), max_size=5),
    st.sampled_from(["a.jsonl", "a.json", "a.csv", "a.tsv", "a.parquet", "a.arrow", "a.gz", "a"]),
    st.sampled_from(["sft", "dpo", "rm", "prompts", "responses"]),
    st.sampled_from(["gemma2", "gemma3", "gemma4", "functiongemma"]),
)
def test_no_bytes_make_it_fail(tmp_path, chunks, name, task, family):
    file = tmp_path / name
    data = b"\n".join(chunks)
    file.write_bytes(data)
    rows, report = load_rows(file, task, family)
    valid = list(rows)
    assert file.read_bytes() == data
    assert len(valid) == report.valid <= report.rows
    assert report.rows == report.valid or report.errors_by_code
    assert report.rows or report.errors_by_code
    for problem in [*report.errors, *report.warnings]:
        json.dumps(problem.as_dict(), ensure_ascii=False).encode("utf-8")


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.txt", "rows.json"])
def test_rows_that_are_left_of_an_array_lose_nothing(tmp_path, name):
    """Every line ends in a comma, as when the brackets were taken off; the last one may not."""
    for last in (",", ""):
        rows = [json.dumps({"messages": [{"role": "user", "content": f"{n}?"}]}) for n in range(60)]
        items = read(tmp_path, (",\n".join(rows) + last + "\n").encode(), name)
        assert len(values(items)) == 60 and set(faults(items)) <= {("json-extra-data", n + 1) for n in range(60)}


@pytest.mark.parametrize("bad", ["{'a': 1}", '{"a": 1,}', '{"a": "\\d"}', '{"a": True}'])
def test_lines_that_are_all_bad_are_told_one_by_one(tmp_path, bad):
    items = read(tmp_path, (bad + "\n").encode() * 30, "rows.jsonl")
    assert [item.line for item in items] == list(range(1, 31)) and all(item.fault for item in items)


def test_hidden_files_and_empty_names_are_no_data(tmp_path):
    for name in ("a.jsonl", "._a.jsonl", ".ipynb_checkpoints/a.jsonl", "sub/.x/b.jsonl", "sub/b.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text("{}\n")
    assert [file.relative_to(tmp_path).as_posix() for file in expand([str(tmp_path)])] == ["a.jsonl", "sub/b.jsonl"]
    with pytest.raises(Failure):
        expand([""])


def test_pipes_are_refused_and_stdin_is_named(tmp_path):
    import os

    from gemma_trainer.data.reading.sources import expand
    from gemma_trainer.rows.problems import Failure

    os.mkfifo(tmp_path / "rows")
    with pytest.raises(Failure) as caught:
        expand([str(tmp_path / "rows")])
    assert caught.value.exit_code == 2 and "`-`" in caught.value.problem.fix
