"""Batches, the fast path and several processes: none of them may change what is said of a row."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma_trainer.data.options import Options
from gemma_trainer.data.reading import raw
from gemma_trainer.data.reading.raw import Lines
from gemma_trainer.data.report import Report
from gemma_trainer.data.running import plain, quotes, repeats
from gemma_trainer.data.running.engine import Run
from gemma_trainer.data.running.judge import Judge
from gemma_trainer.data.running.keys import Keys, Table
from gemma_trainer.data.running.part import Part
from gemma_trainer.families.catalogue import family_names, get_family
from preparing import GOOD, assistant, chat, codes, prep, user
from scripts import command

CASES = Path(__file__).parent / "cases"


def told(file: Path, options: Options, workers: int = 1, fast: bool = True) -> dict:
    """All that a run says of a file, lines and repeats included."""
    judge = Judge(options)
    assert judge.plain is not None or options.task != "sft"
    judge.plain = judge.plain if fast else None
    report = Report(limit=10**6)
    run = Run([file], judge, report, workers)
    for _ in run.parts():
        pass
    run.finish()
    problems = sorted(str(problem) for problem in (*report.errors, *report.warnings))
    return {"rows": report.rows, "valid": report.valid, "layouts": dict(report.layouts), "problems": problems,
            "repaired": dict(report.repaired)}  # fmt: skip


TEXTS = st.one_of(
    st.sampled_from(["Hi", "Yes", "nan", " None ", "", "  ", "\u3000", "a\x1fb", "a\0b", '"q"', "[INST] a [/INST]", "[1]", "a <b> c",
                     "<table><th>", "<start_of_turn>", "<|turn>user", "x <turn|>", "<think>a</think> b", "</s>", "1 < 2", "<unused7>",
                     "\u00e9\u4e16", "a\n\nb", "x" * 700, "\u4e16" * 700]),
    st.text(max_size=12),
)  # fmt: skip
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant", "model", "tool"]), "content": TEXTS}
    ),
    max_size=5,
)
PAIRS = st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=3).map(
    lambda pairs: [message for asked, said in pairs for message in (user(asked), assistant(said))]
)


@st.composite
def line(draw) -> bytes:
    """A line that is plain, nearly plain, or spoilt."""
    row = {"messages": draw(st.one_of(PAIRS, MESSAGES))}
    if draw(st.integers(0, 5)) == 0:
        row["id"] = 3
    style = draw(st.sampled_from([(", ", ": "), (",", ":"), (" ,  ", " :")]))
    text = json.dumps(row, ensure_ascii=draw(st.booleans()), separators=style)
    spoilt = draw(st.sampled_from(["", "", "", "", "key", "last key", "cut", "escape", "quote", "half", "two"]))
    if spoilt == "key":
        text = text.replace('"role"', '"role":"user","role"', 1)
    elif spoilt == "last key":
        text = text.removesuffix("}") + ', "messages": []}'
    elif spoilt == "cut":
        text = text[: len(text) // 2]
    elif spoilt == "escape":
        text = text.replace("<", "\\u003c").replace("a", "\\u0061")
    elif spoilt == "quote":
        text = text.replace('\\"', "\\u0022").replace('"role"', '"role": "x", "role"', 1)
    elif spoilt == "half":
        text = text.replace("Hi", "\\ud83d")
    elif spoilt == "two":
        text += " " + text
    return text.encode("utf-8", "surrogatepass") + b"\n"


@settings(max_examples=250, deadline=None)
@given(
    lines=st.lists(line(), min_size=1, max_size=6),
    family=st.sampled_from(family_names()),
    few=st.sampled_from([0, 1, 1 << 40]),  # whatever the share of quoted rows, one way of counting and the other
)
def test_fast_path_says_what_the_slow_one_says(tmp_path_factory, lines, family, few):
    file = tmp_path_factory.mktemp("fast") / "rows.jsonl"
    file.write_bytes(b"".join(lines))
    options = Options(family=get_family(family), max_length=600)
    with mock.patch.object(plain, "_FEW", few):
        assert told(file, options) == told(file, options, fast=False)


STORED = st.sampled_from([json.dumps, str])  # as JSON, or as Python prints it


@st.composite
def side(draw, role: str) -> object:
    """What a column of a pair may hold: text, messages, messages in text."""
    if draw(st.integers(0, 2)) == 0:
        return draw(TEXTS)
    answers = [assistant(text) for text in draw(st.lists(TEXTS, min_size=1, max_size=2))]
    messages = answers if role == "assistant" else draw(st.one_of(PAIRS.map(lambda pairs: pairs[:-1]), MESSAGES))
    if draw(st.integers(0, 4)) == 0:
        return draw(st.sampled_from(["", " ", "\n"])) + draw(STORED)(messages)
    return messages


@st.composite
def pair_line(draw) -> bytes:
    row = {"prompt": draw(side("user")), "chosen": draw(side("assistant")), "rejected": draw(side("assistant"))}
    if draw(st.integers(0, 5)) == 0:
        row["rejected"] = row["chosen"]
    return json.dumps(row, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass") + b"\n"


@settings(max_examples=250, deadline=None)
@given(lines=st.lists(pair_line(), min_size=1, max_size=6), family=st.sampled_from(family_names()))
def test_fast_path_says_of_pairs_what_the_slow_one_says(tmp_path_factory, lines, family):
    file = tmp_path_factory.mktemp("fast") / "pairs.jsonl"
    file.write_bytes(b"".join(lines))
    options = Options(task="dpo", family=get_family(family), max_length=600)
    assert told(file, options) == told(file, options, fast=False)


@pytest.mark.parametrize("task", ["dpo", "rm"])
@pytest.mark.parametrize("columns", [("chosen", "rejected"), ("prompt",), ("prompt", "chosen", "rejected")])
def test_messages_stored_as_text_are_seen_in_pairs(tmp_path, task, columns):
    """As JSON they are decoded and told, as Python prints them the row is refused, by every command alike."""
    row = {"prompt": [user("Name a bird.")], "chosen": [assistant("A heron.")], "rejected": [assistant("A brick.")]}
    file = tmp_path / "pairs.jsonl"
    for stored, expected in ((json.dumps, {"text-decoded"}), (str, {"python-literal"})):
        file.write_text(json.dumps({**row, **{name: f" {stored(row[name])}" for name in columns}}), "utf-8")
        for words in (["validate"], ["stats"], ["convert", "--out", tmp_path / "out.jsonl", "--overwrite"]):
            code, document = prep(words[0], file, "--task", task, "--family", "gemma3", *words[1:])
            assert code == (0 if stored is json.dumps else 3), words
            assert words[0] == "convert" or codes(document) == expected, words


def test_fast_path_takes_what_is_plain(tmp_path):
    rows = [
        GOOD,
        chat({"role": "system", "content": "Be brief."}, user('a <b>bold</b> "word"\n\nx'), assistant("[1] ok, 世界")),
    ]
    rows.append(chat(user("Is 1 < 2?"), assistant("Yes")))
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    judge, slow = Judge(Options()), []
    part = Part(Keys("sft"))
    judge.plain.judge(Lines(file.read_bytes()), 0, part, None, slow.append)
    assert part.valid == 3 and not slow


@pytest.mark.parametrize("style", [{}, {"separators": (",", ":")}, {"ensure_ascii": False}])
@pytest.mark.parametrize("with_numpy", [False, True])
@pytest.mark.parametrize("quoted", [False, True])
def test_a_repeated_key_is_seen_in_a_block_of_plain_lines(tmp_path, style, with_numpy, quoted, monkeypatch):
    monkeypatch.setattr(quotes, "NUMPY_FROM", 0 if with_numpy else 1 << 40)
    asked = 'Bread {}? "é"' if quoted else "Bread {}?"
    good = [json.dumps(chat(user(asked.format(n)), assistant("Rye.")), **style) for n in range(300)]
    bad = good[7].replace('"content"', '"content":"a","content"', 1)
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join([*good[:200], bad, *good[201:]]) + "\n", "utf-8")
    code, document = prep("validate", file)
    assert code == 3 and document["result"]["valid"] == 299
    assert [(p["code"], p["line"], p["row"]) for p in document["errors"]] == [("json-duplicate-key", 201, 201)]


@pytest.fixture
def mixed(tmp_path) -> Path:
    """Many batches of plain rows with blank lines, repeats, faults and other layouts between."""
    shuffled, out = random.Random(4), []
    for number in range(6000):
        kind = shuffled.randrange(40)
        if kind == 0:
            out.append("")
        elif kind == 1:
            out.append('{"messages": [')
        elif kind == 2:
            out.append(json.dumps(chat(user("same"), assistant("row"))))
        elif kind == 3:
            out.append(
                json.dumps({"conversations": [{"from": "human", "value": f"{number}"}, {"from": "gpt", "value": "y"}]})
            )
        elif kind == 4:
            two = json.dumps(chat(user(f"joined {number}"), assistant("row")))
            out.append(two + two.replace("joined", "second"))
        else:
            out.append(json.dumps(chat(user(f"Question {number}? " * 3), assistant("Answer. " * 5))))
    file = tmp_path / "mixed.jsonl"
    file.write_text("\n".join(out), "utf-8")
    return file


def test_batches_and_workers_say_what_one_pass_says(mixed, monkeypatch):
    options = Options(max_length=100)
    whole = told(mixed, options)
    assert whole["rows"] > 5000 and len(whole["problems"]) > 300
    assert told(mixed, options, fast=False) == whole
    assert told(mixed, options, workers=2) == whole
    for size in (300, 4096, 1 << 24):
        monkeypatch.setattr(raw, "BLOCK", size)
        assert told(mixed, options, workers=2 if size == 4096 else 1) == whole


@pytest.mark.parametrize("with_numpy", [True, False])
@pytest.mark.parametrize("held", [3, 64, 1 << 16])
def test_repeats_are_found_share_by_share(held, with_numpy, monkeypatch):
    for name in ("_SHARE", "_NUMPY_SHARE"):
        monkeypatch.setattr(repeats, name, held)
    if not with_numpy:
        monkeypatch.setattr(repeats, "import_numpy", lambda: None)
    chosen = random.Random(held)
    few = [chosen.getrandbits(64) for _ in range(150)]
    rows = [chosen.choice([0, (1 << 64) - 1, chosen.choice(few), chosen.getrandbits(64)]) for _ in range(400)]
    spool = repeats.Spool()
    for start in range(0, len(rows), 37):
        table = Table()
        table.keys.extend(rows[start : start + 37])
        spool.add(start, table)
    again = [at for at, key in enumerate(rows) if key and key in rows[:at]]
    assert spool.count() == len(again) > 100
    assert [(r.row, r.first) for r in spool.repeats()] == [(at, rows.index(rows[at])) for at in again]


def test_repeats_are_told_with_both_places(tmp_path):
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    first.write_text("\n\n" + json.dumps(GOOD) + "\n", "utf-8")
    second.write_text(
        json.dumps({"id": 4, **GOOD}) + "\n" + json.dumps(GOOD, indent=None, separators=(",", ":")) + "\n", "utf-8"
    )
    _, document = prep("validate", first, second)
    found = [(p["file"], p["line"], p["message"]) for p in document["warnings"] if p["code"] == "duplicate-row"]
    assert found == [(str(second), line, f"the same row as {first}:3") for line in (1, 2)]


def test_convert_names_the_line_where_blank_and_joined_lines_even_out(tmp_path):
    """As many rows as lines, and yet not one on each."""
    other = json.dumps(chat(user("Is rye dark?"), assistant("It is.")))
    file, rejects = tmp_path / "rows.jsonl", tmp_path / "bad.jsonl"
    file.write_text("\n".join([other + json.dumps(GOOD), "", json.dumps(GOOD)]) + "\n", "utf-8")
    prep("convert", file, "--out", tmp_path / "out.jsonl", "--rejects", rejects, "--repair", "drop-duplicates")
    (entry,) = map(json.loads, rejects.read_text("utf-8").splitlines())
    assert entry["line"] == 3 and entry["problems"][0]["message"] == "the same row as line 1"


@pytest.mark.parametrize("workers", [1, 2])
def test_convert_with_workers_writes_the_same_files(mixed, workers):
    out, rejects = mixed.with_name("out.jsonl"), mixed.with_name("bad.jsonl")
    code, document = prep(
        "convert", mixed, "--out", out, "--rejects", rejects, "--repair", "drop-duplicates", "--workers", workers
    )
    result = document["result"]
    assert code == 0 and result["rows"] == result["rows_out"] + result["rejected"]
    entries = [json.loads(text) for text in rejects.read_text("utf-8").splitlines()]
    text = mixed.read_text("utf-8").split("\n")
    for entry in entries:
        assert (entry.get("raw") or json.dumps(entry["input"]))[:12] in text[entry["line"] - 1]
    same = [entry for entry in entries if "duplicate-row" in entry["codes"]]
    assert len(same) == sum('"same"' in line for line in text) - 1
    assert prep("validate", out)[1]["result"]["warnings_by_code"] == {}
    seen = mixed.with_name("first.txt")
    assert not seen.exists() or seen.read_bytes() == out.read_bytes() + rejects.read_bytes()


@pytest.mark.slow
def test_workers_end_with_their_parent(mixed):
    """Nothing is left behind by a kill, and no half-written file stands under the name of the output."""
    big = mixed.with_name("big.jsonl")
    big.write_bytes((mixed.read_bytes() + b"\n") * 60)
    out = mixed.with_name("out.jsonl")
    words = command("dataset_prep.py", "convert", big, "--out", out, "--workers", 2, "--repair", "drop-duplicates")
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (children := _children(process.pid)) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)
    assert children and process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait()
    while any(Path(f"/proc/{child}").exists() for child in children) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(Path(f"/proc/{child}").exists() for child in children) and not out.exists()
    done = subprocess.run([*words, "--rejects", mixed.with_name("bad.jsonl")], capture_output=True)
    assert done.returncode == 0 and out.exists() and not list(mixed.parent.glob(".*.part"))


def _children(parent: int) -> list[int]:
    if not sys.platform.startswith("linux"):
        pytest.skip("looks for processes in /proc")
    tasks = Path(f"/proc/{parent}/task").iterdir()
    return [int(pid) for task in tasks for pid in (task / "children").read_text().split()]
