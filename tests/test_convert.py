"""convert: nothing is lost, what it writes is clean, and repairs that change what is said are only made when asked."""

from __future__ import annotations

import base64
import json
from datetime import date, datetime
from decimal import Decimal
from math import nan
from pathlib import Path

import pytest

from gemma_trainer.data.reading.reply import read_reply
from preparing import GOOD, TOOLS, assistant, call, chat, codes, lines, prep, result, user

CASES = Path(__file__).parent / "cases"
BAD = chat(user("a"), {"role": "narrator", "content": "b"})


@pytest.fixture
def write(tmp_path):
    def write(*rows: object, name: str = "rows.jsonl") -> Path:
        file = tmp_path / name
        file.write_bytes(b"\n".join(row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows))
        return file

    return write


def write_table(folder: Path, rows: list[dict]) -> Path:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    file = folder / "rows.parquet"
    parquet.write_table(arrow.Table.from_pylist(rows), file)
    return file


def convert(file: Path, *words: object) -> tuple[int, dict, list[dict], list[dict]]:
    """(exit code, document, rows out, rejects)."""
    out = file.with_name("out.jsonl")
    code, document = prep("convert", file, "--out", out, *words)
    rejects = Path(document["result"].get("rejects") or "none")
    return code, document, lines(out) if out.exists() else [], lines(rejects) if rejects.exists() else []


def test_refused_rows_are_kept_whole_with_their_reason(write):
    cut, latin = b'{"messages": [{"role": "us', b'{"text": "caf\xe9"}'
    file = write(GOOD, BAD, cut, latin, b"", GOOD["messages"][:1] * 2)
    code, document, rows, rejects = convert(file)
    assert code == 3 and document["result"]["rejects"].endswith("out.rejects.jsonl")
    assert rows == [GOOD]
    assert [(r["line"], r["row"]) for r in rejects] == [(2, 2), (3, 3), (4, 4), (6, 5)]
    assert rejects[0]["input"] == BAD and rejects[0]["codes"] == ["role-unknown"]
    assert rejects[0]["problems"][0]["path"] == "messages[1].role"
    assert rejects[1]["raw"].encode() == cut + b"\n"
    assert base64.b64decode(rejects[2]["raw_base64"]) == latin + b"\n"
    assert rejects[3]["input"] == GOOD["messages"][:1] * 2
    assert document["result"]["rows"] == 5 == len(rows) + len(rejects)


def test_naming_rejects_accepts_them(write, tmp_path):
    code, document, rows, _ = convert(write(GOOD, BAD), "--rejects", tmp_path / "bad.jsonl")
    assert code == 0 and rows == [GOOD] and codes(document) == {"rows-refused"}
    assert document["result"]["errors_by_code"] == {"role-unknown": 1}


def test_no_row_left_is_a_failure(write, tmp_path):
    code, _, rows, rejects = convert(write(BAD), "--rejects", tmp_path / "bad.jsonl")
    assert code == 3 and not rows and len(rejects) == 1


def test_damage_of_a_file_fails_even_with_rejects(write, tmp_path):
    file = write(b'{"train": [{"text": "a"}], "test": [{"text": "b"}]}', name="a.json")
    assert convert(file, "--rejects", tmp_path / "bad.jsonl")[0] == 3


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (json.dumps(GOOD).encode("utf-16"), "encoding-unsupported"),
        (json.dumps(GOOD).encode() + b" " + json.dumps(GOOD).encode(), "json-extra-data"),
        (json.dumps(GOOD).encode() + b"\r" + json.dumps(GOOD).encode(), "lone-carriage-returns"),
        (b"\xef\xbb\xbf" + json.dumps(GOOD).encode(), "byte-order-mark"),
    ],
)
def test_a_file_that_reads_on_is_mended(write, data, code):
    file = write(data)
    status, document, rows, rejects = convert(file)
    assert (status, document["result"]["repaired"], rejects) == (0, {code: 1}, [])
    assert rows == [GOOD] * (1 + data.count(b"Rye", 100))
    _, before = prep("validate", file)
    assert code in codes(before)
    assert "convert" in before["next"][0]


def test_blanks_in_a_header_are_told_and_mended(tmp_path):
    file = tmp_path / "rows.csv"
    file.write_text("prompt, completion\na,b\n", "utf-8")
    _, document = prep("validate", file)
    assert document["result"]["warnings_by_code"] == {"column-renamed": 1} and " convert " in document["next"][0]
    status, document, rows, _ = convert(file)
    assert (status, document["warnings"]) == (0, []) and rows == [chat(user("a"), assistant("b"))]


def test_a_reply_of_which_nothing_is_whole_is_no_data(tmp_path):
    file = tmp_path / "reply.txt"
    file.write_text('[{"messages": [{"role": "user", "content": "Na')
    assert prep("validate", file, "--from", "teacher-reply")[0] == 3


def test_existing_files_and_inputs_are_safe(write):
    file = write(GOOD)
    assert prep("convert", file, "--out", file)[0] == 2
    out = write(BAD, name="out.jsonl")
    code, document = prep("convert", file, "--out", out)
    assert code == 2 and codes(document) == {"output-exists"} and lines(out) == [BAD]
    assert prep("convert", file, "--out", out, "--overwrite")[0] == 0 and lines(out) == [GOOD]
    assert prep("convert", file, "--out", file.with_name("x"), "--rejects", file.with_name("x"))[0] == 2


def test_a_run_that_breaks_leaves_nothing_behind(write, monkeypatch):
    from gemma_trainer.data import convert as module

    file = write(GOOD, GOOD)
    monkeypatch.setattr(module.Writer, "take_line", lambda *_: 1 / 0)
    code, _ = prep("convert", file, "--out", file.with_name("out.jsonl"))
    assert code == 1 and [path.name for path in file.parent.iterdir()] == ["rows.jsonl"]


def test_converting_twice_changes_nothing(write):
    file = write(
        {"instruction": "a", "output": "b"},
        {"conversations": [{"from": "human", "value": "é"}, {"from": "gpt", "value": "d"}]},
    )
    code, document, rows, _ = convert(file)
    assert code == 0 and document["result"]["repaired"]["layout-converted"] == 2
    code, document, again, _ = convert(write(*rows, name="again.jsonl"), "--overwrite")
    assert again == rows and document["result"]["repaired"] == {} and not document["warnings"]


@pytest.mark.parametrize("suffix", ["csv", "parquet", "json"])
def test_containers(tmp_path, suffix):
    file = tmp_path / f"rows.{suffix}"
    rows = [{"prompt": 'say "x",\nplease', "completion": "x"}, {"prompt": "b", "completion": "d"}]
    if suffix == "csv":
        file.write_text('prompt,completion\n"say ""x"",\nplease",x\nb,d\n', "utf-8")
    elif suffix == "json":
        file.write_text(json.dumps({"data": rows}), "utf-8")
    else:
        write_table(tmp_path, rows)
    _, _, out, _ = convert(file)
    assert out == [chat(user(r["prompt"]), assistant(r["completion"])) for r in rows]


@pytest.mark.parametrize("command", ["validate", "convert", "split", "stats", "inspect"])
def test_columns_beside_fail_no_table(tmp_path, command):
    """Whatever types they have: all commands say the same, and no row is lost."""
    rows = [{**GOOD, "seen": datetime(2026, 1, 2), "cost": Decimal("1.50"), "loss": nan, "blob": b"\xff"}]
    rows.append({**chat(user("b"), assistant("c")), "loss": 1.0})
    file = write_table(tmp_path, rows)
    more = {"convert": ["--out", tmp_path / "out.jsonl"], "split": ["--out", tmp_path]}
    code, document = prep(command, file, *more.get(command, []))
    assert (code, document["errors"]) == (0, [])
    assert document["result"].get("rejected", 0) == 0


def test_columns_beside_are_written_without_loss(tmp_path):
    rows = [{**GOOD, "seen": datetime(2026, 1, 2), "cost": Decimal("1.50"), "loss": nan, "blob": b"\xff"}]
    _, _, (row,), _ = convert(write_table(tmp_path, rows))
    assert row.pop("seen").startswith("2026-01-02 00:00:00")
    assert row == {**GOOD, "cost": 1.5, "blob": {"base64": "/w=="}}  # as all that is null, NaN is left out


def test_rejects_of_a_table_are_json_that_converts_once_corrected(tmp_path):
    rows = [{**BAD, "loss": nan, "day": date(2026, 1, 2), "blob": b"\xff"}, {**GOOD, "loss": 1.0}]
    _, _, _, (reject,) = convert(write_table(tmp_path, rows))
    assert {key: reject["input"][key] for key in ("loss", "day", "blob")} == {
        "loss": None, "day": "2026-01-02", "blob": {"base64": "/w=="},
    }  # fmt: skip
    again = tmp_path / "again" / "rows.jsonl"
    again.parent.mkdir()
    again.write_text(json.dumps({**reject, "input": {**reject["input"], **GOOD}}))
    assert convert(again)[0] == 0


@pytest.mark.parametrize(
    "row", [{"prompt": b"a", "completion": b"b"}, {"text": b"a"}, {"question": b"a", "answer": b"b"}]
)
def test_bytes_never_pass_for_text(tmp_path, row):
    code, document, rows, rejects = convert(write_table(tmp_path, [row]))
    (problem,) = document["errors"]
    assert (code, rows, len(rejects)) == (3, [], 1)
    assert problem["code"] == "content-type" and "bytes" in problem["message"] and problem["path"] in row


def test_map_makes_unknown_columns_known(write):
    file = write({"question": "a", "answer": "b", "id": 1})
    code, _, rows, _ = convert(file, "--map", "prompt=question", "completion=answer")
    assert code == 0 and rows == [{**chat(user("a"), assistant("b")), "id": 1}]


def test_media_paths_hold_from_the_new_folder(tmp_path):
    out = tmp_path / "deep" / "out.jsonl"
    code, document = prep("convert", CASES / "098-image-ok.jsonl", "--out", out)
    assert code == 0 and document["result"]["repaired"] == {"media-path": 1}
    part = lines(out)[0]["messages"][0]["content"][0]
    assert (out.parent / part["image"]).resolve() == (CASES / "media" / "dot.png").resolve()
    assert prep("validate", out)[0] == 0


@pytest.mark.parametrize("blank", ["", " ", "\n"])
@pytest.mark.parametrize("family", ["gemma2", "gemma3", "gemma4"])
def test_a_blank_cell_of_a_media_column_is_no_media(tmp_path, blank, family):
    """As empty cells of a table are read: taken, left alone, and taken again."""
    file, out = tmp_path / "rows.jsonl", tmp_path / "deep" / "out.jsonl"
    file.write_text(json.dumps({**GOOD, "image": blank, "audios": []}) + "\n", "utf-8")
    assert prep("validate", file, "--family", family)[0] == 0
    code, document = prep("convert", file, "--family", family, "--out", out)
    assert code == 0 and "media-path" not in document["result"]["repaired"]
    assert prep("validate", out, "--family", family)[0] == 0 and lines(out)[0]["image"] == blank


@pytest.mark.parametrize("source", ["", " ", {"path": ""}, None])
@pytest.mark.parametrize("place", ["column", "part"])
def test_a_blank_source_names_no_file(tmp_path, source, place):
    file, out = tmp_path / "rows.jsonl", tmp_path / "deep" / "out.jsonl"
    part = {"type": "image"} if place == "column" else {"type": "image", "image": source}
    row = chat(user([part, {"type": "text", "text": "What is it?"}]), assistant("A dot."))
    file.write_text(json.dumps({**row, "images": [source]} if place == "column" else row) + "\n", "utf-8")
    code, document = prep("convert", file, "--family", "gemma3", "--out", out)
    assert code == 3 and codes(document) == {"media-source-missing", "rows-refused"}


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b""])
@pytest.mark.parametrize("row", [b'{"messages": \r[%s, \r\t%s]}', b'{"messages":[%s,%s]}\r', b'\r{"messages":[%s,%s]}'])
def test_no_carriage_return_is_written(tmp_path, row, end):
    """Between JSON values it is a blank, and to readers of text the end of a line."""
    file, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    one = row % tuple(json.dumps(message).encode() for message in GOOD["messages"])
    file.write_bytes(json.dumps(chat(user("a"), assistant("b"))).encode() + (end or b"\n") + one + end)
    assert convert(file, "--overwrite")[0] == 0
    assert b"\r" not in out.read_bytes() and out.read_bytes().count(b"\n") == 2
    code, document = prep("split", file, "--eval-fraction", "0.5")
    names = [document["result"][name] for name in ("train", "eval") if document["result"][name]]
    assert code == 0 and not any(b"\r" in Path(name).read_bytes() for name in names)


@pytest.mark.parametrize(
    ("text", "content", "thought"),
    [
        ("<|channel>thought\nadd\n<channel|>42", "42", "add"),
        ("<think>\nadd\n</think>\n\n42", "42", "add"),
        ("<|channel>thought\n<channel|>42", "42", None),
        ("42<turn|>\n<eos>", "42", None),
    ],
)
def test_thoughts_and_terminators_move_out_of_the_answer(write, text, content, thought):
    _, _, rows, _ = convert(write(chat(user("a"), assistant(text))))
    answer = rows[0]["messages"][1]
    assert answer["content"] == content and answer.get("reasoning_content") == thought


def test_thoughts_stay_where_the_family_has_no_place_for_them(write):
    row = chat(user("a"), assistant("<think>b</think>c"))
    assert convert(write(row), "--family", "gemma3")[2] == [row]


def test_system_text_is_folded_for_gemma_2(write):
    row = chat({"role": "system", "content": "Be brief."}, user("a"), assistant("b"))
    assert convert(write(row), "--family", "gemma2")[2] == [chat(user("Be brief.\n\na"), assistant("b"))]


@pytest.mark.parametrize(
    ("repair", "row", "repaired"),
    [
        ("merge-turns", chat(user("a"), user("b"), assistant("c")), chat(user("a\n\nb"), assistant("c"))),
        ("drop-dangling", chat(user("a"), assistant("b"), user("c")), chat(user("a"), assistant("b"))),
        ("strip-nul", chat(user("a\0b"), assistant("c\0")), chat(user("ab"), assistant("c"))),
        (
            "drop-null-arguments",
            chat(user("a"), assistant("", tool_calls=[call(arguments={"station": "N", "x": None})]), tools=TOOLS),
            chat(user("a"), assistant("", tool_calls=[call(arguments={"station": "N"})]), tools=TOOLS),
        ),
    ],
)
def test_repairs_that_must_be_asked_for(write, repair, row, repaired):
    family = ["--family", "gemma3"] if repair == "merge-turns" else []
    assert convert(write(row), *family)[2] != [repaired]
    code, document, rows, _ = convert(write(row), *family, "--repair", repair, "--overwrite")
    assert code == 0 and rows == [repaired] and document["result"]["repaired"]


def test_repeats_go_to_the_rejects(write, tmp_path):
    file = write({"prompt": "a"}, {"prompt": " A"}, {"prompt": "b"})
    code, document, rows, rejects = convert(
        file, "--task", "prompts", "--repair", "drop-duplicates", "--rejects", tmp_path / "r"
    )
    assert code == 0 and len(rows) == 2 and rejects[0]["codes"] == ["duplicate-prompt"]
    assert document["result"]["rows"] == 3


def test_tool_results_are_linked_to_their_calls(write):
    calls = [call(id=None), call(arguments={"station": "South"}, id=None)]
    row = chat(user("a"), assistant("", tool_calls=calls), result("3"), result("4"), assistant("b"), tools=TOOLS)
    _, _, rows, _ = convert(write(row))
    made = rows[0]["messages"]
    ids = [one["id"] for one in made[1]["tool_calls"]]
    assert len(set(ids)) == 2 and [made[2]["tool_call_id"], made[3]["tool_call_id"]] == ids


def test_a_name_that_the_id_tells_is_filled_in(write):
    row = chat(user("a"), assistant(None, tool_calls=[call()]), result(tool_call_id="c1"), assistant("b"), tools=TOOLS)
    _, _, rows, _ = convert(write(row), "--family", "functiongemma")
    assert rows[0]["messages"][2]["name"] == "get_tide"


# Teacher replies

SAMPLE = json.dumps(GOOD)


@pytest.mark.parametrize(
    ("text", "good", "bad"),
    [
        (f"[{SAMPLE}, {SAMPLE}]", 2, 0),
        (f"Here you are:\n```json\n[\n{SAMPLE},\n{SAMPLE}\n]\n```\nAnything else [or more]?", 2, 0),
        (f"{SAMPLE}\n{SAMPLE}\n", 2, 0),
        (f'{{"samples": [{SAMPLE}, {SAMPLE}]}}', 2, 0),
        (f"[{SAMPLE}, {SAMPLE[:50]}", 1, 1),
        (f'{{"samples": [{SAMPLE}, {SAMPLE[:50]}', 1, 1),
        (f"[{SAMPLE},\n{SAMPLE[:-2]},\n{SAMPLE}]", 2, 1),
        (f"[{json.dumps(GOOD['messages'])}, {json.dumps(GOOD['messages'])}]", 2, 0),
        ('[{"instruction": "a", "output": "b"}, {"instruction": "c", "outp', 1, 1),
        ("I cannot do that.", 0, 0),
        ('{"messages": NaN}', 0, 1),
    ],
)
def test_whole_samples_of_a_reply(tmp_path, text, good, bad):
    file = tmp_path / "reply.txt"
    file.write_text(text, "utf-8")
    rows = list(read_reply(file))
    assert [sum(not row.fault for row in rows), sum(bool(row.fault) for row in rows)] == [good, bad]
    assert all(row.source for row in rows if row.fault)


def test_a_reply_without_a_sample_is_an_error(tmp_path):
    file = tmp_path / "reply.txt"
    file.write_text("I cannot do that.", "utf-8")
    code, document, _, _ = convert(file, "--from", "teacher-reply")
    assert code == 3 and codes(document) == {"no-rows"}


def test_corrected_rejects_can_be_converted(write, tmp_path):
    rows = write(GOOD, chat(user("a"), user("b"), assistant("c")))
    _, document, _, rejects = convert(rows, "--family", "gemma3")
    assert len(rejects) == 1
    again = Path(document["result"]["rejects"])
    words = ("--family", "gemma3", "--repair", "merge-turns", "--out", tmp_path / "again.jsonl")
    code, document = prep("convert", again, *words)
    assert code == 0 and document["result"]["rows_out"] == 1


def test_a_mapped_column_that_no_row_has_is_refused(write):
    file = write({"question": "a", "reply": "b"}, {"question": "c", "reply": "d", "notes": "e"})
    code, document, _, _ = convert(file, "--map", "prompt=question", "completion=replly")
    assert code == 2 and "replly" in document["errors"][0]["message"]
    code, _, rows, _ = convert(file, "--map", "prompt=question", "completion=reply")
    assert code == 0 and len(rows) == 2


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: __import__("os").mkfifo(path)], ids=["folder", "pipe"])
def test_what_is_no_regular_file_is_never_replaced(make, write):
    file = write(GOOD)
    out = file.with_name("special")
    make(out)
    code, document = prep("convert", file, "--out", out, "--overwrite")
    assert code == 2 and codes(document) == {"output-unwritable"}
    assert out.exists() and not out.is_file()
