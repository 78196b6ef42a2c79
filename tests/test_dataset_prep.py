"""dataset_prep.py from outside: awkward files and their verdicts, JSON output, exit codes, help."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gemma_trainer.data import prepare
from preparing import GOOD, assistant, chat, codes, lines, prep, row_validator, user
from scripts import ASSETS, run

CASES = Path(__file__).parent / "cases"
FAMILIES = {"gemma-4": "gemma4", "gemma-3": "gemma3", "gemma-2": "gemma2", "functiongemma": "functiongemma"}
# Verdict and task of a case are in cases.json; the codes that must be told are ours.
CODES = {
    "001": {"byte-order-mark"}, "003": {"invalid-utf8"}, "009": {"content-missing"}, "011": {"not-json-lines"},
    "014": {"json-trailing-comma"}, "016": {"json-cut"}, "018": {"json-not-a-number"}, "020": {"json-duplicate-key"},
    "023": {"empty-file"}, "025": {"no-rows"}, "030": {"null-padded-arguments"}, "031": {"parquet-invalid"},
    "033": {"answer-empty"}, "036": {"csv-cells"}, "039": {"csv-separator"}, "042": {"roles-not-alternating"},
    "045": {"role-renamed"}, "047": {"role-renamed"}, "048": {"role-unknown"}, "049b": {"role-renamed"},
    "051": {"ends-with-user"}, "053": {"mixed-conventions"}, "055": {"layout-converted"}, "056": {"target-missing"},
    "058": {"answer-empty"}, "060": {"answer-empty"}, "064": {"layout-converted"}, "067": {"column-ignored"},
    "070": {"text-plain"}, "071": {"layout-converted"}, "074": {"messages-empty"}, "079": {"control-token"},
    "082": {"terminator-in-answer"}, "084": {"placeholder-without-media"}, "087b": {"tools-unsupported"},
    "090": {"arguments-invalid"}, "092": {"tool-id-unknown"}, "093": {"tool-undeclared"}, "101": {"media-count"},
    "103": {"null-part-keys"}, "105": {"modality-unsupported"}, "107": {"pair-identical"}, "111": {"prompts-differ"},
    "114": {"target-missing"}, "116": {"answer-empty"}, "118": {"prompt-last-role"}, "121": {"margin-invalid"},
    "124": {"pair-contradiction"}, "126": {"media-count"}, "127": {"text-bos"}, "128": {"text-terminator-missing"},
    "131": {"text-wrong-family"}, "133": {"text-instruction-style"}, "136": {"over-length"}, "137": {"inline-thought"},
    "139": {"reasoning-template"}, "140": {"thought-unclosed"}, "145": {"json-cut"}, "146": {"duplicate-prompt"},
    "152": {"response-empty"}, "153": {"response-loop"}, "156": {"json-cut"}, "158": {"split-leak"},
    "159": {"tool-linked"},
}  # fmt: skip


def _cases() -> list:
    entries = json.loads((CASES / "cases.json").read_text("utf-8"))
    return [pytest.param(entry, id=entry["id"]) for entry in entries if not entry["file"].endswith(".txt")]


def _task(case: dict) -> str:
    if case["task"] != "distill":
        return case["task"]
    return "prompts" if case["id"] in ("145", "146") else "responses"


@pytest.mark.parametrize("case", _cases())
def test_verdict_of_awkward_file(case, tmp_path):
    file, task = CASES / case["file"], _task(case)
    flags = ["--task", task, "--family", FAMILIES.get(case["model"], "gemma4")]
    before = file.read_bytes()
    code, document = prep("validate", file, *flags)
    assert file.read_bytes() == before

    told = [*document["errors"], *document["warnings"]]
    verdict = "reject" if code else "warn" if told else "accept"
    if case["expect"] == "fix":
        assert verdict in ("warn", "reject")
    else:
        assert verdict == case["expect"] or (verdict == "warn" and "fix" in case["also_ok"])
    assert CODES.get(case["id"], set()) <= codes(document)
    if case["line"] and told:
        assert case["line"] in {problem["line"] for problem in told}

    out, rejects = tmp_path / "out" / "rows.jsonl", tmp_path / "rejects.jsonl"
    _, converted = prep("convert", file, *flags, "--out", out, "--rejects", rejects)
    counts = converted["result"]
    assert counts["rows"] == document["result"]["rows"] == counts["rows_out"] + counts["rejected"]
    assert (len(lines(rejects)) if rejects.exists() else 0) == counts["rejected"]
    if case["expect"] == "fix":
        assert out.exists()
    if out.exists():
        again = "sft" if task == "responses" else task
        assert prep("validate", out, "--task", again, *flags[2:])[0] == 0
        for row in lines(out):
            row_validator(again).validate(row)


def test_teacher_reply_gives_its_whole_samples(tmp_path):
    out, rejects = tmp_path / "o.jsonl", tmp_path / "r.jsonl"
    file = CASES / "148-teacher-cut-array.txt"
    code, document = prep("convert", file, "--from", "teacher-reply", "--out", out, "--rejects", rejects)
    assert code == 0 and len(lines(out)) == 2
    assert "reply-cut" in codes(document)
    assert "Name a kn" in lines(rejects)[0]["raw"]


def test_human_output_names_file_line_code_and_fix():
    ran = run("dataset_prep.py", "validate", CASES / "014-trailing-comma.jsonl")
    assert ran.code == 3
    assert "014-trailing-comma.jsonl:2: json-trailing-comma: " in ran.stderr and "fix: " in ran.stderr
    assert "2 of 3 rows" in ran.stdout
    assert "Eight" not in ran.stdout + ran.stderr  # no sample text


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["validate", "no-such-file.jsonl"], "file-not-found"),
        (["validate", "no-*-match.jsonl"], "file-not-found"),
        (["validate"], "usage"),
        (["validate", "x.jsonl", "--max-length", "0"], "usage"),
        (["validate", "x.jsonl", "--family", "gemma9"], "usage"),
        (["convert", CASES / "008-crlf.jsonl"], "usage"),
        (["validate", CASES / "008-crlf.jsonl", "--map", "prompt"], "usage"),
        (["validate", CASES / "008-crlf.jsonl", "--model", "nowhere"], "model-not-found"),
    ],
)
def test_usage_errors(words, code):
    exit_code, document = prep(*words)
    assert exit_code == 2 and codes(document) == {code}


def test_strict_turns_warnings_into_failure():
    file = CASES / "045-role-model.jsonl"
    assert prep("validate", file)[0] == 0
    assert prep("validate", file, "--strict")[0] == 3


def test_output_is_bounded_and_the_report_takes_all(tmp_path):
    file, report = tmp_path / "rows.jsonl", tmp_path / "report.jsonl"
    rows = [json.dumps(GOOD)] + ["{"] * 50 + [json.dumps({"a": 1})]
    file.write_text("\n".join(rows), "utf-8")
    code, document = prep("validate", file, "--max-errors", "5", "--report", report)
    assert code == 3
    assert len(document["errors"]) == 5
    assert {"json-cut", "unknown-columns"} == codes(document)  # the late one of another kind is among them
    assert document["result"]["errors_by_code"] == {"json-cut": 50, "unknown-columns": 1}
    assert len(lines(report)) == 51


def test_report_never_replaces_a_file_unasked(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(GOOD), "utf-8")
    assert prep("validate", file, "--report", file, "--overwrite")[0] == 2
    (tmp_path / "report.jsonl").write_text("mine", "utf-8")
    assert codes(prep("validate", file, "--report", tmp_path / "report.jsonl")[1]) == {"output-exists"}
    assert lines(file) == [GOOD] and (tmp_path / "report.jsonl").read_text("utf-8") == "mine"


@pytest.mark.parametrize("first", ["null", "{}", '{"id": 1}', '{"prompt": "a", "chosen": null, "rejected": null}', "{"])
def test_the_task_is_told_by_the_first_row_that_tells_one(tmp_path, first):
    file = tmp_path / "rows.jsonl"
    pair = json.dumps({"prompt": "a", "chosen": "b", "rejected": "c"})
    file.write_text("\n".join([first, pair]), "utf-8")
    result = prep("validate", file)[1]["result"]
    assert (result["task"], result["rows"], result["valid"]) == ("dpo", 2, 1)


def test_family_that_was_assumed_is_told():
    _, document = prep("validate", CASES / "008-crlf.jsonl")
    assert document["result"]["family"] == "gemma4"
    assert any("--family" in note for note in document["result"]["notes"])


def test_several_inputs_and_folders(tmp_path):
    (tmp_path / "deep").mkdir()
    for name in ("a.jsonl", "deep/b.jsonl", "deep/notes.md"):
        (tmp_path / name).write_text(json.dumps({**GOOD, "id": name}), "utf-8")
    assert prep("validate", tmp_path)[1]["result"]["rows"] == 2
    assert prep("validate", tmp_path / "*.jsonl", tmp_path / "deep" / "b.jsonl")[1]["result"]["rows"] == 2


def test_stdin():
    data = (CASES / "008-crlf.jsonl").read_bytes()
    words = [sys.executable, str(ASSETS / "dataset_prep.py"), "validate", "-", "--json"]
    done = subprocess.run(words, input=data, capture_output=True, timeout=60)
    assert done.returncode == 0 and json.loads(done.stdout)["result"]["rows"] == 3


@pytest.mark.parametrize(
    ("cores", "long", "workers", "told"), [(8, -1, 1, True), (8, -1, 2, False), (1, -1, 1, False), (8, 60, 1, False)]
)
def test_idle_cores_are_told_after_a_long_run(monkeypatch, cores, long, workers, told):
    monkeypatch.setattr(prepare, "usable_cores", lambda: cores)
    monkeypatch.setattr(prepare, "LONG", long)
    notes = prep("validate", CASES / "008-crlf.jsonl", "--workers", workers)[1]["result"]["notes"]
    assert any("8 cores are there: --workers 8" in note for note in notes) is told


def test_next_commands_can_be_pasted(tmp_path):
    file = tmp_path / "talk.json"
    shutil.copy(CASES / "053-mixed-conventions-in-row.jsonl", file)
    _, document = prep("validate", file)
    convert = next(line for line in document["next"] if " convert " in line)
    done = subprocess.run(convert.split(), capture_output=True, timeout=60, executable=sys.executable)
    assert done.returncode == 0, done.stderr
    assert len(lines(tmp_path / "talk.clean.jsonl")) == 2


def paste(command: str, folder: Path) -> dict:
    """What a command told as the next one gives when it is run in `folder`."""
    _, *words = shlex.split(command)
    done = subprocess.run([sys.executable, *words, "--json"], cwd=folder, capture_output=True, text=True, timeout=60)
    return json.loads(done.stdout)


@pytest.mark.parametrize("given", [(), ("--delimiter", "\t"), ("--delimiter", "tab")], ids=["told", "raw", "word"])
@pytest.mark.parametrize("separator", ["\t", ";", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_the_next_command_knows_the_separator(encoding, separator, given, tmp_path):
    if given and separator != "\t":
        given = ("--delimiter", separator)
    rows = ["question,answer", "How?,So.", "Why?,Thus."]
    (tmp_path / "a.csv").write_text("".join(f"{row}\n" for row in rows).replace(",", separator), encoding)
    command, *_ = prep("validate", tmp_path / "a.csv", *given)[1]["next"]
    assert "\t" not in command and paste(command, Path.cwd())["result"]["rows_out"] == 2


def test_no_command_where_files_have_different_separators(tmp_path):
    (tmp_path / "a.csv").write_text("question;answer\nHow?;So.\n", "utf-8")
    (tmp_path / "b.csv").write_text("question,answer\nWhy?,Thus.\n", "utf-8")
    assert prep("validate", tmp_path)[1]["next"] == []


def test_names_that_begin_with_a_dash_stay_names(tmp_path):
    rows = [{"x": 1}, chat(user("a"), assistant("b")), chat(user("c"), assistant("d"))]
    (tmp_path / "-dash.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    words = run("dataset_prep.py", "validate", "./-dash.jsonl", "--json", cwd=tmp_path).json["next"]
    converted = paste(words[0], tmp_path)
    assert converted["ok"] and (tmp_path / "-dash.clean.jsonl").exists()
    assert "--data ./-dash.clean.jsonl" in words[1] and converted["next"] == words[1:]
    split = run("dataset_prep.py", "split", "./-dash.jsonl", "--eval-fraction", "0.5", "--json", cwd=tmp_path).json
    assert " --data ./-dash.train.jsonl" in split["next"][0]


@pytest.mark.parametrize("action", ["convert", "split"])
def test_corrected_rejects_are_converted_by_the_command_that_is_told(action, tmp_path):
    (tmp_path / "a.csv").write_text("q,a\nHow?,So.\nWhy?,\n", "utf-8")
    more = {"convert": ["--out", "rows.jsonl", "--repair", "strip-nul", "merge-turns", "--to", "alpaca"], "split": []}
    flags = ["--map", "prompt=q", "completion=a", "--family", "gemma3", *more[action]]
    told = run("dataset_prep.py", action, "a.csv", *flags, "--json", cwd=tmp_path).json
    rejects = tmp_path / told["result"]["rejects"]
    rejects.write_text(rejects.read_text("utf-8").replace('"a": ""', '"a": "Thus."'), "utf-8")
    (problem,) = [problem for problem in told["warnings"] if problem["code"] == "rows-refused"]
    again = paste(problem["fix"].partition("then: ")[2], tmp_path)
    assert again["ok"] and again["result"]["family"] == "gemma3" and again["result"]["rows_out"] == 1
    assert again["result"]["to"] == ("alpaca" if action == "convert" else "messages")


@pytest.mark.parametrize(
    "words",
    [
        ("convert", "--out", "o", "--report", "o"),
        ("convert", "--out", "o", "--report", "o", "--overwrite"),
        ("convert", "--out", "o", "--rejects", "p", "--report", "p"),
        ("inspect", "--html", "o", "--report", "o"),
        ("stats", "--html", "o", "--report", "o"),
        ("split", "--report", "rows.train.jsonl"),
    ],
)
def test_two_outputs_of_one_name_are_refused(words, tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps(GOOD), "utf-8")
    done = run("dataset_prep.py", words[0], "rows.jsonl", *words[1:], "--json", cwd=tmp_path)
    assert done.code == 2 and "named twice" in done.json["errors"][0]["message"]
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


@pytest.mark.parametrize("name", ["taken", "taken/deeper"])
def test_records_need_a_folder_that_can_be_made(name, tmp_path):
    (tmp_path / "taken").write_text("mine", "utf-8")
    code, document = prep("validate", CASES / "008-crlf.jsonl", "--records", tmp_path / name)
    assert code == 2 and codes(document) == {"output-unwritable"} and (tmp_path / "taken").read_text("utf-8") == "mine"


@pytest.mark.parametrize("text", ["5/3", "0/3", "0/0", "3", "a/b"])
def test_a_shard_that_is_none_says_what_one_is(text):
    code, document = prep("validate", CASES / "008-crlf.jsonl", "--records", "r", "--shard", text)
    assert code == 2 and "from 1 to N" in document["errors"][0]["message"]


def test_inspect_says_why_there_is_nothing_to_show(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"x": 1}\n{"y": 1}\n', "utf-8")
    notes = prep("inspect", tmp_path / "rows.jsonl")[1]["result"]["notes"]
    assert any("2 rows were read, and none can be shown" in note for note in notes)


def test_a_terminal_gets_no_controls_of_the_data(tmp_path):
    odd = "\x1b[31m \0 \x9b \r \u2028 \u202e \u2066"
    rows = [chat(user(f"a{odd}\tb"), assistant("c")), chat({"role": odd, "content": "x"})]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    done = run("dataset_prep.py", "inspect", tmp_path / "rows.jsonl")
    assert not set(odd.replace(" ", "").replace("[31m", "")) & set(done.stdout + done.stderr)
    assert r"a\x1b[31m \x00 \x9b \r \u2028 \u202e \u2066" + "\tb" in done.stdout and r"`\x1b" in done.stderr
    assert odd in prep("inspect", tmp_path / "rows.jsonl")[1]["result"]["rows"][0]["text"]


def test_inspect_shows_the_loss_mask():
    _, document = prep("inspect", CASES / "008-crlf.jsonl", "--family", "gemma3", "--rows", "2")
    first = document["result"]["rows"][0]
    assert first["text"].startswith("<bos><start_of_turn>user\n")
    assert [first["text"][a:b] for a, b in first["trained"]] == [
        "The second high tide comes about 12 hours and 25 minutes after the first one.<end_of_turn>"
    ]
    assert first["tokens"] is None and len(document["result"]["rows"]) == 2


def test_inspect_shows_both_sides_of_a_pair():
    _, document = prep("inspect", CASES / "125-prompt-ends-with-tool.jsonl", "--task", "dpo", "--rows", "1")
    chosen, rejected = document["result"]["rows"]
    assert [view["text"][slice(*view["trained"][0])] for view in (chosen, rejected)] == [
        "3.2 metres.<turn|>",
        "No idea.<turn|>",
    ]


@pytest.mark.parametrize("action", ["inspect", "stats"])
def test_the_page_shows_the_loss_mask_of_the_first_rows(action, tmp_path):
    file, page = tmp_path / "rows.jsonl", tmp_path / "rows.html"
    rows = [chat(user(f"Question {at}"), assistant(f"Answer {at}")) for at in range(5)]
    file.write_text("".join(json.dumps(row) + "\n" for row in [{"x": 1}, *rows]), "utf-8")
    code, document = prep(action, file, "--html", page)
    assert code == 3 and document["result"]["errors_by_code"] == {"unknown-columns": 1}, "each row is counted once"
    shown = page.read_text("utf-8")
    assert "Loss mask" in shown and all(f"Answer {at}" in shown for at in range(3)) and "Answer 3" not in shown
    assert ("Answer 0" in json.dumps(document["result"])) is (action == "inspect")


def test_rows_of_token_ids_are_said_to_have_no_text(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"input_ids": [2, 5, 6], "labels": [-100, 5, 6]}) + "\n", "utf-8")
    for words in ((), ("--html", tmp_path / "rows.html")):
        code, document = prep("inspect", file, *words)
        assert code == 0 and any("token ids" in note for note in document["result"]["notes"])
    code, document = prep("validate", file)
    assert code == 0 and document["next"] == [], "the trainers here start from text"


def test_inspect_is_plain_without_a_terminal():
    ran = run("dataset_prep.py", "inspect", CASES / "008-crlf.jsonl", "--rows", "1")
    assert ran.code == 0 and "\x1b" not in ran.stdout and "«" in ran.stdout


def test_exact_lengths_with_a_real_tokenizer(real_tokenizers):
    words = [CASES / "008-crlf.jsonl", "--model", real_tokenizers / "gemma4"]
    _, document = prep("validate", *words, "--max-length", "35")
    tokens = document["result"]["tokens"]
    _, shown = prep("inspect", *words)
    views = shown["result"]["rows"]
    assert tokens["total"] == sum(view["tokens"] for view in views)
    assert tokens["trained"] == sum(view["trained_tokens"] for view in views)
    assert tokens["over_length"] == sum(view["tokens"] > 35 for view in views) > 0
    assert document["result"]["rendering"] == "direct" and document["result"]["template_hash"]
    assert "over-length" in codes(document)


def test_reasoning_is_fine_where_the_template_renders_it(real_tokenizers):
    code, document = prep("validate", CASES / "139-reasoning-field.jsonl", "--model", real_tokenizers / "gemma4")
    assert code == 0 and not document["warnings"]


def test_config_file_gives_flags(tmp_path):
    config = tmp_path / "prep.yaml"
    config.write_text("family: gemma3\ntask: sft\nmax_errors: 3\n", "utf-8")
    assert prep("validate", CASES / "049-developer-role.jsonl", "--config", config)[1]["result"]["family"] == "gemma3"
