"""Made-up and broken inputs: dataset_prep.py says what is wrong with each, and two ways to the same answer agree.

FUZZ_COUNT=50000 makes the slow tests try more than they do; `python tests/fuzz_run.py` tries broken files alone.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from conversations import Maker
from fuzz_inputs import Fuzzer
from fuzz_run import try_seed
from gemma_trainer.families.family import RenderError
from official_templates import official
from preparing import assistant, chat, lines, prep, user
from test_families import check_random_conversations

COUNT = int(os.environ.get("FUZZ_COUNT", "0"))
MODELS = [("gemma3", "gemma3"), ("gemma4", "gemma4"), ("gemma4_large", "gemma4-large")]
TURN, TURN_END, HEADER = 105, 106, 3  # Gemma 3 and 4: ids of the turn marks, tokens of `<turn>model\n`


@pytest.mark.parametrize("start", range(0, 300, 50))
def test_broken_files(start):
    check_broken(range(start, start + 50))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_many_broken_files(part):
    count = (COUNT or 4_000) // 8
    check_broken(range(1_000 + part * count, 1_000 + (part + 1) * count))


def check_broken(seeds: range) -> None:
    found = {seed: fault for seed in seeds if (fault := try_seed(seed))}
    assert not found, "\n\n".join(f"seed {seed}: {fault}" for seed, fault in list(found.items())[:3])


# Lines take the fast path, rows of an array never do.


@pytest.mark.parametrize("start", range(0, 100, 25))
def test_lines_and_array_are_judged_alike(start, tmp_path):
    for seed in range(start, start + 25):
        check_alike(seed, tmp_path, "--family", Fuzzer(seed).one(["gemma4", "gemma3", "gemma2"]))


@pytest.mark.slow
def test_many_lines_and_arrays_are_judged_alike(tmp_path):
    for seed in range(1_000, 1_000 + (COUNT or 1_000)):
        check_alike(seed, tmp_path, "--family", Fuzzer(seed).one(["gemma4", "gemma3", "gemma2"]))


@pytest.mark.parametrize("family", ["gemma3", "gemma4"])
def test_lines_and_array_are_measured_alike(family, tmp_path, small_tokenizer):
    model = tmp_path / "model"
    model.mkdir()
    small_tokenizer(family).save(str(model / "tokenizer.json"))
    for seed in range(40):
        check_alike(seed, tmp_path, "--model", model, "--max-length", "40")


def check_alike(seed: int, folder: Path, *words: object) -> None:
    texts = Fuzzer(seed).plain_lines()
    files = folder / "rows.jsonl", folder / "rows.json"
    files[0].write_bytes("\n".join(texts).encode("utf-8", "surrogatepass"))
    files[1].write_bytes(("[" + ",\n".join(texts) + "]").encode("utf-8", "surrogatepass"))
    results = [judged(file, "--task", "sft", *words) for file in files]
    if whole(texts):
        assert results[0] == results[1], f"seed {seed}"


def judged(file: Path, *words: object) -> tuple:
    """Everything that a run says about the rows of a file, where it stands in the file left out."""
    report = file.with_name("report.jsonl")
    _, document = prep("validate", file, *words, "--report", report, "--overwrite")
    told = sorted((entry["row"], entry["code"], entry["path"] or "") for entry in lines(report) if entry["row"])
    result = document["result"]
    return told, *(result[key] for key in ("rows", "valid", "tokens", "repaired", "layouts"))


def whole(texts: list[str]) -> bool:
    """Whether every text is one JSON value, so that an array of them holds the same rows."""
    try:
        return all("\n" not in text and text.encode() and json.loads(text) is not None for text in texts)
    except ValueError:  # of which UnicodeEncodeError is one
        return False


@pytest.mark.parametrize("batches", [2, pytest.param(12, marks=pytest.mark.slow)])
def test_workers_say_and_write_the_same(batches, tmp_path):
    texts, seed = [], 0
    while sum(map(len, texts)) < batches << 20:
        texts += [text.replace("\n", " ") for text in Fuzzer(seed).plain_lines()]
        seed += 1
    file = tmp_path / "rows.jsonl"
    file.write_bytes("\n".join(texts).encode("utf-8", "surrogatepass"))
    found = []
    for workers in (1, 3):
        report, out, rejects = (tmp_path / f"{name}{workers}.jsonl" for name in ("report", "out", "rejects"))
        _, said = prep("validate", file, "--task", "sft", "--workers", workers, "--report", report)
        _, done = prep("convert", file, "--task", "sft", "--workers", workers, "--out", out, "--rejects", rejects)
        counts = {key: value for key, value in done["result"].items() if key not in ("out", "rejects")}
        found.append((said, counts, *(path.read_bytes() for path in (report, out, rejects))))
    assert found[0][0]["result"]["rows"] == len(texts)
    for one, several in zip(*found, strict=True):
        assert one == several


# Counts equal the official template and tokenizer.


@pytest.mark.parametrize(("folder", "family"), MODELS[:2])
def test_counts_equal_the_real_tokenizer(folder, family, real_tokenizers, tmp_path):
    check_counts(family, real_tokenizers / folder, tmp_path, odd_rows(folder, real_tokenizers, 400))


@pytest.mark.slow
@pytest.mark.parametrize(("folder", "family"), MODELS)
def test_many_counts_equal_the_real_tokenizer(folder, family, real_tokenizers, tmp_path):
    check_counts(family, real_tokenizers / folder, tmp_path, odd_rows(folder, real_tokenizers, COUNT or 3_000, seed=1))


@pytest.mark.slow
@pytest.mark.parametrize(("folder", "family"), MODELS)
def test_counts_of_rich_rows_equal_the_real_tokenizer(folder, family, real_tokenizers, tmp_path):
    rows = []
    for seed in range(400):
        maker = Maker(seed, plain=True)
        row = {"messages": maker.chat(), "tools": maker.tools(), "chat_template_kwargs": maker.options()}
        rows.append({key: value for key, value in row.items() if value})
    check_counts(family, real_tokenizers / folder, tmp_path, rows, least=20)


def check_counts(family: str, model: Path, folder: Path, rows: list[dict], least: int | None = None) -> None:
    """Convert the rows, then compare what is said about the good ones with the official tokenizer of their texts."""
    from tokenizers import Tokenizer

    raw, good, report = folder / "raw.jsonl", folder / "good.jsonl", folder / "report.jsonl"
    raw.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    prep("convert", raw, "--task", "sft", "--family", family, "--out", good, "--rejects", folder / "rejects.jsonl")
    kept = lines(good)
    assert len(kept) >= (least or len(rows) / 2)
    _, document = prep("validate", good, "--task", "sft", "--model", model, "--max-length", "1", "--report", report)
    said = {entry["row"]: int(entry["message"].split()[0]) for entry in lines(report) if entry["code"] == "over-length"}
    _, unlimited = prep("validate", good, "--task", "sft", "--model", model, "--max-length", "10000000")
    assert len(said) == document["result"]["valid"] == unlimited["result"]["valid"]

    tokenizer, template = Tokenizer.from_file(str(model / "tokenizer.json")), official(family)
    ids = {number: ids_of(tokenizer, template, row) for number, row in enumerate(kept, 1) if number in said}
    wrong = {number: (said[number], len(ids[number])) for number in ids if said[number] != len(ids[number])}
    assert not wrong, {number: (sizes, kept[number - 1]) for number, sizes in list(wrong.items())[:3]}
    for result in (document["result"], unlimited["result"]):
        assert result["tokens"]["total"] == sum(map(len, ids.values()))
    if least is None:
        assert unlimited["result"]["tokens"]["trained"] == sum(map(answer_tokens, ids.values()))


def ids_of(tokenizer, template, row: dict) -> list[int]:
    try:
        text = template.render(row["messages"], row.get("tools"), **row.get("chat_template_kwargs", {}))
    except RenderError as error:
        raise AssertionError(f"counted, though the template refuses it: {row}") from error
    return tokenizer.encode(text, add_special_tokens=False).ids


def answer_tokens(ids: list[int]) -> int:
    """Of a question and its answer: what stands behind the last header, to the end of the turn."""
    start = len(ids) - 1 - ids[::-1].index(TURN)
    return ids.index(TURN_END, start) + 1 - (start + HEADER)


def odd_rows(folder: str, real_tokenizers: Path, count: int, seed: int = 0) -> list[dict]:
    """Questions and answers of texts made to sit on the borders of tokens."""
    vocabulary = json.loads((real_tokenizers / folder / "tokenizer.json").read_text("utf-8"))["model"]["vocab"]
    words = [word.replace("\u2581", " ") for word in vocabulary if not word.startswith("<")]
    marks = [" ", "  ", "   ", "\n", "\n\n", "\n \n", "\t", "\t\t", " \t", "\r\n", "\r", "\n" * 31, "\n" * 33, " " * 31, " " * 40, "> </", "> ", "</", "<", ">",
             "<b>", "</b>", "<code>", "<td>", "\u2581", "\u2581\u2581", ">\u2581</", "\xa0", "\u3000", "\u2028", "\u0301", "\u200d", "🎉", "👩‍👩‍👧", "日本語", "é", "e\u0301",
             "ﬁ", "İ", "\ufeff", "\x7f", "0", "12345", "1.5e-3", "'s", "don't", "...", "—", "“a”", "{}", "\\n", "http://a.b/c?d=e", "user", "model\n", "\n```\n"]  # fmt: skip
    chosen = random.Random(seed)

    def text() -> str:
        pieces = chosen.choices([marks, words], weights=[chosen.random(), 0.5], k=chosen.choice([1, 2, 3, 8, 30]))
        return "".join(chosen.choice(kind) for kind in pieces)

    return [chat(user(text()), assistant(text())) for _ in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gemma3", "gemma4", "gemma4-large"])
def test_renderers_equal_jinja(family):
    check_random_conversations(family, COUNT or 20_000)
