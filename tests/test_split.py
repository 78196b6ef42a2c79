"""Train and held-out sides: no prompt on both, nothing lost, nothing moved when rows are added."""

import json
import random
from pathlib import Path

import pytest

from gemma_trainer.data.running.keys import prompt_text
from preparing import GOOD, assistant, call, chat, lines, prep, result, user

WORDS = ["rye", "oat", "barley", "wheat", "spelt", "corn", "rice", "millet"]


def rows(count: int, seed: int = 0) -> list[dict]:
    """Chats with repeated prompts in other case and blanks, a few with tools, a few with another layout."""
    pick = random.Random(seed)
    out = []
    for number in range(count):
        prompt = f"Is {pick.choice(WORDS)} number {pick.randrange(count // 2)} good?"
        prompt = pick.choice([prompt, prompt.upper(), prompt.replace(" ", "  ")])
        row = chat(user(prompt), assistant(f"Answer {number}."), id=number, source=f"book {number % 40}")
        if number % 7 == 0:
            row = chat(*row["messages"][:1], assistant(None, tool_calls=[call()]), result(tool_call_id="c1"), id=number)
        if number % 11 == 0:
            row = {"prompt": prompt, "completion": "Yes.", "id": number, "source": f"book {number % 40}"}
        out.append(row)
    return out


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "talk.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows(2000)), "utf-8")
    return path


def split(file: Path, *flags: object) -> tuple[dict, list[dict], list[dict]]:
    code, document = prep("split", file, *flags, "--overwrite")
    assert code == 0, document
    told = document["result"]
    return told, lines(Path(told["train"])), lines(Path(told["eval"]))


def test_no_prompt_is_on_both_sides_and_no_row_is_lost(file):
    told, train, held_out = split(file, "--eval-fraction", 0.2)
    assert told["train_rows"] == len(train) and told["eval_rows"] == len(held_out) and told["rejected"] == 0
    assert {prompt_text(row) for row in train} & {prompt_text(row) for row in held_out} == set()
    assert sorted(row["id"] for row in train + held_out) == list(range(2000))
    assert 0.12 < len(held_out) / 2000 < 0.28
    assert told["duplicates"]["prompts"] == 2000 - len({prompt_text(row) for row in train + held_out})


def test_sides_are_stable(file):
    """Under appends, under shuffling, under other workers; another seed holds out others."""
    _, _, before = split(file, "--eval-fraction", 0.1, "--seed", 3)
    old = {row["id"] for row in before}
    text = file.read_text("utf-8").splitlines()
    random.Random(1).shuffle(text)
    more = [json.dumps({**row, "id": row["id"] + 5000}) for row in rows(500, seed=9)]
    file.write_text("\n".join(more + text) + "\n", "utf-8")
    _, _, after = split(file, "--eval-fraction", 0.1, "--seed", 3, "--workers", 2)
    assert {row["id"] for row in after if row["id"] < 5000} == old
    _, _, larger = split(file, "--eval-fraction", 0.3, "--seed", 3)
    assert old < {row["id"] for row in larger}
    _, _, other = split(file, "--eval-fraction", 0.1, "--seed", 4)
    assert {row["id"] for row in other} != {row["id"] for row in after}


def test_a_group_stays_together_and_shared_prompts_are_told(file):
    code, document = prep("split", file, "--group", "source", "--eval-fraction", 0.3)
    train, held_out = (lines(Path(document["result"][side])) for side in ("train", "eval"))
    sources = [{row["source"] for row in side if "source" in row} for side in (train, held_out)]
    assert code == 0 and sources[0] and sources[1] and not sources[0] & sources[1]
    shared = {prompt_text(row) for row in train} & {prompt_text(row) for row in held_out}
    assert bool(shared) == (document["result"]["warnings_by_code"].get("split-leak", 0) > 0)
    assert shared


def test_plain_rows_keep_their_bytes_and_bad_ones_are_kept_apart(tmp_path):
    file = tmp_path / "talk.jsonl"
    plain = [json.dumps(chat(user(f"{n}?"), assistant("Yes, \u00e9.")), ensure_ascii=n % 2 == 0) for n in range(40)]
    file.write_text("\n".join([*plain, '{"messages": []}', "{"]), "utf-8")
    code, document = prep("split", file)
    told = document["result"]
    assert code == 3 and told["rejected"] == 2 and len(lines(Path(told["rejects"]))) == 2
    written = [text for side in ("train", "eval") for text in Path(told[side]).read_text("utf-8").splitlines()]
    assert sorted(written) == sorted(plain)


def test_outputs_are_not_replaced_unasked(file):
    assert prep("split", file)[0] == 0
    code, document = prep("split", file)
    assert code == 2 and document["errors"][0]["code"] == "output-exists"


def test_leaks_between_files_that_are_named_as_splits(tmp_path):
    shared = chat(user("  Name a BREAD. "), assistant("Oat."))
    (tmp_path / "my-train.jsonl").write_text(json.dumps(GOOD) + "\n", "utf-8")
    (tmp_path / "my-test.jsonl").write_text(json.dumps(shared) + "\n", "utf-8")
    code, document = prep("validate", tmp_path)
    (leak,) = (problem for problem in document["warnings"] if problem["code"] == "split-leak")
    assert code == 0 and "`test`" in leak["message"] and "`train`" in leak["message"]
    (tmp_path / "my-test.jsonl").rename(tmp_path / "other.jsonl")
    assert prep("validate", tmp_path)[1]["warnings"] == []


@pytest.mark.parametrize("told_by", ["file", "column"])
def test_statistics_tell_the_leaks_that_validate_tells(tmp_path, told_by):
    """Rows of no split that come first hide none."""
    train = chat(user("a"), assistant("b"))
    test = chat(user("a"), assistant("c"))
    if told_by == "file":
        (tmp_path / "train.jsonl").write_text(json.dumps(train) + "\n", "utf-8")
        (tmp_path / "eval.jsonl").write_text(json.dumps(test) + "\n", "utf-8")
    else:
        rows = [chat(user("a"), assistant("d")), {**train, "split": "train"}, {**test, "split": "test"}]
        (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    page = tmp_path / "page.html"
    valid, stats = (prep(*words, tmp_path)[1] for words in (["validate"], ["stats", "--html", page]))
    assert stats["warnings"] == valid["warnings"]
    assert stats["result"]["warnings_by_code"] == {"split-leak": 1} and "split-leak" in page.read_text("utf-8")
    assert stats["result"]["duplicates"]["prompts"] == (1 if told_by == "file" else 2)


def test_leaks_between_stored_splits(tmp_path):
    """A folder of DatasetDict.save_to_disk: one folder a split, files about the data beside the data."""
    datasets = pytest.importorskip("datasets")
    sides = {"train": [GOOD, chat(user("a"), assistant("b"))], "test": [GOOD]}
    stored = datasets.DatasetDict({side: datasets.Dataset.from_list(rows) for side, rows in sides.items()})
    stored.save_to_disk(tmp_path / "data")
    (tmp_path / "data" / "train" / "cache-1.arrow").write_bytes(b"of map")
    code, document = prep("validate", tmp_path / "data")
    told = document["result"]
    assert (code, told["rows"], told["valid"], told["errors_by_code"]) == (0, 3, 3, {})
    assert told["warnings_by_code"] == {"duplicate-row": 1, "split-leak": 1}


def test_a_file_that_only_has_the_name_of_one_about_data_is_data(tmp_path):
    for name in ("state.json", "dataset_info.json", "dataset_dict.json"):
        (tmp_path / name).write_text(json.dumps([GOOD, {**GOOD, "features": "x"}]))
    assert prep("validate", tmp_path)[1]["result"]["rows"] == 6


@pytest.mark.parametrize("fraction", ["1", "1.5", "x"])
def test_fractions_must_leave_both_sides(file, fraction):
    assert prep("split", file, "--eval-fraction", fraction)[0] == 2


def test_a_column_that_is_not_there_is_no_group(file):
    code, document = prep("split", file, "--group", "sorce")
    assert code == 2 and "sorce" in document["errors"][0]["message"]
    assert sorted(path.name for path in file.parent.iterdir()) == [file.name]


def test_an_empty_side_is_told(tmp_path):
    file = tmp_path / "few.jsonl"
    file.write_text(json.dumps(GOOD) + "\n", "utf-8")
    code, document = prep("split", file, "--eval-fraction", 0.01)
    assert code == 0 and document["result"]["eval"] is None
    assert [problem["code"] for problem in document["warnings"]] == ["split-side-empty"]


def test_names_of_held_out_files_mean_one_split(tmp_path):
    for name in ("my-val", "my-eval"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(GOOD) + "\n", "utf-8")
    assert "split-leak" not in prep("validate", tmp_path)[1]["result"]["warnings_by_code"]
