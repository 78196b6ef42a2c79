"""Faults of canonical rows, one by one, for the families where they matter; and that valid rows can be rendered."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma_trainer.data.check_teacher import is_loop
from gemma_trainer.data.checks import Setting
from gemma_trainer.data.notes import Notes
from gemma_trainer.data.pipeline import Options, load_rows, process
from gemma_trainer.data.render import Renderer
from gemma_trainer.data.report import Report
from gemma_trainer.data.split import split_by_prompt
from gemma_trainer.families.catalogue import family_names, get_family
from gemma_trainer.rows import code_page
from gemma_trainer.rows.codes import CODES
from gemma_trainer.rows.data_codes import DATA_CODES
from gemma_trainer.rows.problems import Problem
from preparing import GOOD, TOOLS, assistant, call, chat, result, row_validator, user

ROOT = Path(__file__).parents[1]
CASES = ROOT / "tests" / "cases"
SYSTEM = {"role": "system", "content": "Be brief."}
ROUND = [user("Tide?"), assistant(None, tool_calls=[call()]), result(tool_call_id="c1"), assistant("3.2 metres.")]
IMAGE = {"type": "image", "image": "media/dot.png"}
TEXT = {"type": "text", "text": "What is it?"}


def judge(row, family="gemma4", task="sft", **options):
    """(canonical row or None, codes of faults and repairs) of a raw row."""
    chosen = get_family(family)
    notes = Notes()
    data, _ = process(row, Options(task=task, family=chosen, **options), Setting(chosen, CASES), notes)
    return data, {note.code for note in (*notes.found, *notes.repairs)} - {"layout-converted"}


def tool_row(properties: dict, **parameters: object) -> dict:
    schema = {"type": "object", "properties": properties, **parameters}
    return chat(*GOOD["messages"], tools=[{"type": "function", "function": {"name": "f", "parameters": schema}}])


def broken_pair(**changes: object) -> dict:
    return {"prompt": "a", "chosen": "b", "rejected": "c", **changes}


@pytest.mark.parametrize(
    ("family", "row", "expected"),
    [
        # order of roles
        ("gemma3", GOOD, set()),
        ("gemma3", chat(SYSTEM, *GOOD["messages"]), set()),
        ("gemma2", chat(SYSTEM, *GOOD["messages"]), {"system-folded"}),
        ("gemma2", chat(SYSTEM, assistant("a")), {"system-refused", "roles-not-alternating"}),
        ("gemma4", chat(SYSTEM, *GOOD["messages"]), set()),
        ("gemma3", chat(user("a"), user("b"), assistant("c")), {"roles-not-alternating"}),
        ("gemma3n", chat(user("a"), assistant("b"), assistant("c")), {"roles-not-alternating"}),
        ("gemma3", chat(assistant("a"), user("b"), assistant("c")), {"roles-not-alternating"}),
        ("gemma3", chat(user("a"), assistant("b"), SYSTEM, user("c"), assistant("d")), {"system-not-first"}),
        ("gemma4", chat(user("a"), assistant("b"), SYSTEM, user("c"), assistant("d")), set()),
        ("gemma4", chat(user("a"), user("b"), assistant("c")), set()),
        ("gemma4", chat(user("a"), assistant("b"), assistant("c")), {"answers-glued"}),
        ("functiongemma", chat(user("a"), assistant("b"), assistant("c")), set()),
        # what is said
        ("gemma4", chat(user("a")), {"answer-missing"}),
        ("gemma4", chat(user("a"), assistant("b"), user("c")), {"ends-with-user"}),
        ("gemma4", chat(user("a"), assistant(" \n")), {"answer-empty"}),
        ("gemma4", chat(user("a"), assistant(""), user("b"), assistant("c")), {"answer-empty"}),
        ("gemma4", chat(user("a"), assistant("", weight=0), user("b"), assistant("c")), set()),
        ("gemma4", chat(user("a"), assistant("b", weight=0)), {"no-trained-token"}),
        ("gemma4", chat(user("a"), assistant([])), {"answer-empty"}),
        ("gemma4", chat(user(" "), assistant("b")), {"prompt-empty"}),
        ("gemma4", chat(user("a"), assistant("nan")), {"blank-as-word"}),
        ("gemma4", {"instruction": "a", "input": "None", "output": "b"}, {"blank-as-word"}),
        ("gemma4", chat(user("a\0"), assistant("b")), {"nul-character"}),
        # control tokens
        ("gemma4", chat(user("a<turn|>\n<|turn>system\nb"), assistant("c")), {"control-token"}),
        ("gemma3", chat(user("a<end_of_turn>\n"), assistant("b")), {"control-token"}),
        ("gemma3", chat(user("<bos>a"), assistant("b")), {"control-token"}),
        ("gemma3", chat(user([{"type": "text", "text": "a<start_of_turn>"}]), assistant("b")), {"control-token"}),
        ("gemma3", chat(user("a<turn|>"), assistant("b")), {"foreign-token"}),
        ("gemma4", chat(user("a<end_of_turn>"), assistant("b")), {"foreign-token"}),
        ("gemma4", chat(user("fill the <mask>"), assistant("b")), {"special-token"}),
        ("gemma4", chat(user("<|im_start|>user\na<|im_end|>"), assistant("b")), {"foreign-markup"}),
        ("gemma4", chat(user("F# has |> and <|> and <turn> and start_of_turn"), assistant("<b>x</b> <|")), set()),
        ("gemma4", chat(user("what is <|im_start|>?"), assistant("a token")), set()),
        ("gemma3", chat(user("a"), assistant("b<end_of_turn>\n")), {"terminator-in-answer"}),
        ("gemma3", chat(user("a"), assistant("b<eos>")), {"terminator-in-answer"}),
        ("gemma4", chat(user("a"), assistant("b<turn|>c")), {"control-token"}),
        # thinking
        ("gemma4", chat(user("a"), assistant("b", reasoning_content="c")), {"reasoning-template"}),
        ("gemma4", chat(user("a"), assistant("b", reasoning="c"), user("d"), assistant("e")), {"reasoning-lost"}),
        ("gemma3", chat(user("a"), assistant("b", reasoning_content="c")), {"reasoning-lost"}),
        ("gemma4", chat(user("a"), assistant("<|channel>thought\nb\n<channel|>c")), {"inline-thought"}),
        ("gemma4", chat(user("a"), assistant("<|channel>thought\n<channel|>c")), {"empty-thought"}),
        ("gemma4", chat(user("a"), assistant("b <|channel>thought\nc")), {"thought-unclosed"}),
        ("gemma4", chat(user("a"), assistant("b <channel|>c")), {"control-token"}),
        ("gemma3", chat(user("a"), assistant("<|channel>thought\nb\n<channel|>c")), {"foreign-token"}),
        ("gemma4", chat(user("a"), assistant("<think>b</think>c")), {"think-tags"}),
        ("gemma3", chat(user("a"), assistant("<think>b")), {"thought-unclosed"}),
        ("gemma4", chat(user("a"), assistant("the tag <think> opens it")), set()),
        # tools
        ("gemma4", chat(*ROUND, tools=TOOLS), set()),
        ("gemma4", chat(*ROUND), {"tool-undeclared"}),
        ("gemma3", chat(*ROUND, tools=TOOLS), {"tools-unsupported", "tools-ignored"}),
        ("gemma3", {**GOOD, "tools": TOOLS}, {"tools-ignored"}),
        ("functiongemma", chat(*ROUND, tools=TOOLS), {"tool-linked"}),
        ("gemma4", chat(*ROUND[:2], tools=TOOLS), set()),
        ("gemma4", chat(*ROUND[:3], tools=TOOLS), {"ends-with-tool"}),
        ("gemma4", chat(*ROUND[:2], user("b"), assistant("c"), tools=TOOLS), {"tool-result-missing"}),
        ("gemma4", chat(user("a"), result(name="f"), assistant("b"), tools=TOOLS), {"tool-result-orphan"}),
        ("gemma4", chat(*ROUND[:2], result(tool_call_id="c9"), ROUND[3], tools=TOOLS), {"tool-id-unknown"}),
        ("gemma4", chat(*ROUND[:2], result(), ROUND[3], tools=TOOLS), {"tool-linked"}),
        ("gemma4", chat(*ROUND[:2], result(name="other"), ROUND[3], tools=TOOLS), {"tool-id-unknown"}),
        ("gemma4", chat(user("a"), assistant("", tool_calls=[call(id="x"), call(id="y")]), result(), assistant("b"), tools=TOOLS),
         {"tool-result-unnamed", "tool-result-missing"}),
        ("gemma4", chat(user("a"), assistant("", tool_calls=[call(), call()]), result(tool_call_id="c1"), assistant("b"), tools=TOOLS),
         {"tool-id-repeated", "tool-result-missing"}),
        ("gemma4", chat(*ROUND[:3], ROUND[2], ROUND[3], tools=TOOLS), {"tool-result-repeated"}),
        ("gemma4", chat(user("a"), assistant("", tool_calls=[call(id="x"), call(id="y")]), result(tool_call_id="x"), assistant("b"), tools=TOOLS),
         {"tool-result-missing"}),
        ("gemma4", chat(user("a"), assistant("", tool_calls=[call(id="x"), call(id="y")]),
                        result(tool_call_id="x"), result(tool_call_id="x"), assistant("b"), tools=TOOLS), {"tool-result-repeated"}),
        ("gemma4", chat(user("a"), assistant("", tool_calls=[call(id="x"), call(id="y")]),
                        result(tool_call_id="y"), result(tool_call_id="x"), assistant("b"), tools=TOOLS), set()),
        # answers that say nothing of their own
        ("gemma4", chat(user("a"), assistant("<|channel>thought\nb\n<channel|>")), {"answer-empty", "inline-thought"}),
        ("gemma4", chat(user("a"), assistant("<think>b</think> ")), {"answer-empty", "think-tags"}),
        ("gemma3", chat(user("a"), assistant("<think>b</think>")), {"answer-empty", "think-tags"}),
        ("gemma4", chat(user("a"), assistant("b\n</think>\n\nc")), {"think-tags"}),
        ("gemma4", chat(user("a"), assistant("<thinking>b</thinking>c")), {"think-tags"}),
        ("gemma4", chat(user("a"), assistant("<thinking>b")), {"thought-unclosed"}),
        ("gemma4", chat(user("What closes <think>?"), assistant("The tag </think> does.")), set()),
        ("gemma4", chat(user("a"), assistant([IMAGE])), {"answer-empty"}),
        ("gemma4", chat(user("a"), assistant([IMAGE, TEXT])), {"media-in-answer"}),
        # ends of turns of other models
        ("gemma4", chat(user("a"), assistant("b<|im_end|>\n")), {"terminator-in-answer"}),
        ("gemma4", chat(user("a"), assistant("b<|eot_id|>")), {"terminator-in-answer"}),
        ("gemma4", chat(user("a"), assistant("b<end_of_turn>")), {"terminator-in-answer"}),
        ("gemma3", chat(user("a"), assistant("b<turn|>")), {"terminator-in-answer"}),
        ("gemma4", chat(user("a"), assistant("b</s>")), {"terminator-in-answer"}),
        ("gemma4", chat(user("a"), assistant("<s>old</s>")), set()),
        ("gemma4", chat(user("a"), assistant("ChatML writes <|im_end|> there.")), set()),
        ("gemma4", chat(user("a"), assistant("<|channel|>analysis<|message|>b<|end|>")), {"terminator-in-answer", "foreign-markup"}),
        # parts for families that print them
        ("gemma2", chat(user([TEXT]), assistant([TEXT])), {"parts-joined"}),
        ("gemma2", chat(user([IMAGE, TEXT]), assistant("b")), {"modality-unsupported"}),
        ("gemma3", chat(user([TEXT]), assistant([TEXT])), set()),
        ("gemma4", chat(user("a"), assistant("Let me look.", tool_calls=[call()]), *ROUND[2:], tools=TOOLS), {"text-beside-call"}),
        ("gemma4", chat(*ROUND[:2], result({"metres": 3.2}, tool_call_id="c1"), ROUND[3], tools=TOOLS), {"tool-result-encoded"}),
        ("functiongemma", chat(*ROUND[:2], result({"metres": 3.2}, name="get_tide"), ROUND[3], tools=TOOLS), set()),
        ("gemma4", chat(user("a"), assistant("", tool_calls=[call(arguments={"hour": 6})]), tools=TOOLS), {"argument-missing"}),
        ("gemma4", chat(user("a"), assistant("", tool_calls=[call(arguments={"station": "N", "x": 1})]), tools=TOOLS),
         {"argument-undeclared"}),
        ("gemma4", chat(user("a"), assistant("", tool_calls=[call(arguments={"station": "N", "x": None})]), tools=TOOLS),
         {"null-padded-arguments"}),
        ("gemma4", chat(user("a"), assistant("", tool_calls=[call(arguments={"station": 5})]), tools=TOOLS), {"argument-type"}),
        ("gemma4", chat(user("a"), assistant("", tool_calls=[call(arguments={"station": "<turn|>"})]), tools=TOOLS), {"control-token"}),
        ("gemma4", chat(user("a"), assistant("", tool_calls=[call(arguments='{"station": "N"}')]), tools=TOOLS), {"arguments-decoded"}),
        ("gemma4", {**GOOD, "tools": [*TOOLS, *TOOLS]}, {"tool-repeated"}),
        ("gemma4", {**GOOD, "tools": [TOOLS[0]["function"]]}, {"tool-wrapped"}),
        ("gemma4", tool_row({"x": {"type": "string"}, "y": None}), {"null-padded-schema"}),
        ("gemma4", tool_row({"x": {"anyOf": [{"type": "string"}]}}), {"tool-schema-lossy"}),
        ("gemma4", tool_row({"x": {"type": ["string", "null"]}}), {"tool-schema-lossy"}),
        ("gemma4", tool_row({"x": {"type": "integer", "enum": [1, 2]}}), {"tool-schema-lossy"}),
        ("gemma4", tool_row({"x": {"type": "string", "enum": ["a"]}}), set()),
        ("gemma4", tool_row({"x": {"type": "string"}}, type=None), {"null-padded-schema", "tool-schema-lossy"}),
        # media
        ("gemma4", chat(user([IMAGE, TEXT]), assistant("Red.")), set()),
        ("gemma4", chat(user([{"type": "image"}, TEXT]), assistant("Red."), images=["media/dot.png"]), set()),
        ("gemma3", chat(user([{"type": "image"}, TEXT]), assistant("Red."), images=["media/dot.png"] * 2), {"media-count"}),
        ("gemma3", chat(user("<start_of_image>What?"), assistant("Red."), images=["media/dot.png"]), set()),
        ("gemma3", chat(user("<start_of_image>What?"), assistant("Red.")), {"placeholder-without-media"}),
        ("gemma4", chat(user([{"type": "image"}, TEXT]), assistant("Red.")), {"media-source-missing"}),
        ("gemma4", chat(user([{"type": "image", "image": "media/no.png"}, TEXT]), assistant("Red.")), {"media-missing"}),
        ("gemma4", chat(user([{"type": "image", "image": "media/hum.wav"}, TEXT]), assistant("Red.")), {"media-broken"}),
        ("gemma4", chat(user([{"type": "image", "url": "https://example.org/x.png"}, TEXT]), assistant("Red.")), set()),
        ("gemma3", chat(user([{"type": "audio", "audio": "media/hum.wav"}, TEXT]), assistant("Hum.")), {"modality-unsupported"}),
        ("gemma3n", chat(user([{"type": "audio", "audio": "media/hum.wav"}, TEXT]), assistant("Hum.")), set()),
        ("gemma2", chat(user([IMAGE, TEXT]), assistant("Red.")), {"modality-unsupported"}),
        # text
        ("gemma4", {"text": " "}, {"text-empty"}),
        ("gemma4", {"text": "High water twice a day."}, {"text-plain"}),
        ("gemma3", {"text": "<bos><start_of_turn>user\na<end_of_turn>\n"}, {"text-bos", "text-rendered"}),
        ("gemma3", {"text": "<start_of_turn>user\na"}, {"text-terminator-missing", "text-rendered"}),
        ("gemma3", {"text": "<|turn>user\na<turn|>\n"}, {"text-wrong-family"}),
        ("gemma4", {"text": "<start_of_turn>user\na<end_of_turn>\n"}, {"text-wrong-family"}),
        ("gemma4", {"text": "### Instruction:\na\n\n### Response:\nb"}, {"text-instruction-style"}),
        ("gemma4", {"text": "<|im_start|>user\na<|im_end|>"}, {"foreign-markup"}),
    ],
)  # fmt: skip
def test_fault_of_a_row(family, row, expected):
    data, told = judge(row, family)
    assert told == expected
    if data is not None and not any(CODES[code].severity == "error" for code in told):
        row_validator("sft").validate(data)
        Renderer(get_family(family)).render(data)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (broken_pair(), set()),
        (broken_pair(rejected="b \n"), {"pair-identical"}),
        (broken_pair(rejected="B."), {"pair-near-identical"}),
        (broken_pair(rejected=""), {"answer-empty"}),
        (broken_pair(margin=1.5), set()),
        (broken_pair(margin="high"), {"margin-invalid"}),
        (broken_pair(margin="1.5"), {"number-as-text"}),
        (broken_pair(margin="inf"), {"margin-invalid"}),
        (broken_pair(margin=True), {"margin-invalid"}),
        (broken_pair(margin=10**400), set()),
        (broken_pair(margin=-1), {"margin-negative"}),
        (broken_pair(score_chosen=1, score_rejected=2), {"scores-inverted"}),
        (broken_pair(chosen_rating=1, rejected_rating=2), {"scores-inverted"}),
        (broken_pair(chosen_score="1", rejected_score="2"), {"scores-inverted", "number-as-text"}),
        (
            broken_pair(chosen=[assistant("c")], rejected=[assistant([{"type": "text", "text": "c"}])]),
            {"pair-identical"},
        ),
        (broken_pair(prompt=[user("a"), assistant("b")]), {"prompt-last-role"}),
        (broken_pair(prompt=[SYSTEM]), {"prompt-last-role"}),
        (broken_pair(chosen=[assistant("b"), user("c"), assistant("d")]), {"answer-role"}),
        (broken_pair(images=["media/dot.png"]), {"media-count"}),
        (broken_pair(prompt=[user([IMAGE, TEXT])]), set()),
        (broken_pair(prompt=ROUND[:3], tools=TOOLS), set()),
        (
            broken_pair(prompt=[user("a")], chosen=[assistant("", tool_calls=[call()])], rejected="c", tools=TOOLS),
            set(),
        ),
        (broken_pair(rejected="c<turn|>"), {"terminator-in-answer"}),
        (broken_pair(rejected="<|turn>c"), {"control-token"}),
    ],
)
def test_fault_of_a_pair(row, expected):
    assert judge(row, task="dpo")[1] == expected


def test_paths_point_into_the_row():
    family = get_family("gemma4")
    notes = Notes()
    row = broken_pair(prompt=[user("a")], chosen=[assistant("b")], rejected=[assistant("<|turn>")])
    process(row, Options("dpo", family), Setting(family, CASES), notes)
    assert [note.path for note in notes.found] == ["rejected[0].content"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, set()),
        ({"response": " "}, {"response-empty"}),
        ({"finish_reason": "length"}, {"response-cut"}),
        ({"finish_reason": "MAX_TOKENS"}, {"response-cut"}),
        ({"finish_reason": "content_filter"}, {"response-blocked"}),
        ({"finish_reason": "eos_token"}, set()),
        ({"response": "name a  bread."}, {"response-echo"}),
        ({"response": "To " * 80}, {"response-loop"}),
        ({"response": "I must respectfully decline to answer this question."}, {"response-refusal"}),
        ({"response": "I apologize, but I don’t feel comfortable answering that."}, {"response-refusal"}),
        ({"response": "I’m not able to help with that request. Is there anything else?"}, {"response-refusal"}),
        (
            {
                "response": "I'm sorry, but I can't assist with that request. "
                + "Ask me of bread, seeds, knots and tides, of boats and their sails, of wheels and spokes, of the moon, of "
                "chess and its openings, or of what to cook tonight; the harbour has a library as well, where people who "
                "know far more than I do will gladly look into older books for you, on every day but Sunday."
            },
            {"response-refusal"},
        ),
        ({"response": "I can't come on Sunday, but I can help on Monday."}, set()),
        ({"response": '"I can\'t help falling in love" is a song by Elvis.'}, set()),
        ({"response": "I cannot recommend swimming here: the current is strong."}, set()),
        ({"response": "I'm sorry, but I can't help with that."}, {"response-refusal"}),
        ({"response": "As an AI language model, I am unable to provide this."}, {"response-refusal"}),
        ({"response": "I'm sorry that your flour arrived late. We sent a new bag."}, set()),
        ({"response": "Sorry, I cannot come to the harbour tomorrow."}, set()),
        ({"response": "<|channel>thought\n<channel|>Rye."}, {"empty-thought"}),
    ],
)
def test_fault_of_a_teacher_row(changes, expected):
    row = {"id": "p1", "prompt": "Name a bread.", "response": "Rye.", "finish_reason": "stop", **changes}
    assert judge(row, task="responses")[1] == expected


@pytest.mark.parametrize(
    ("text", "loop"),
    [
        ("no " * 40, True),
        ("the tide is high and " * 10, True),
        ("A good start. " + "It goes on and on and on, as it did before. " * 8, True),
        ("ha" * 60, True),
        ("row\n" * 20, True),
        ("| a | b |\n| --- | --- |\n" + "\n".join(f"| {n} | {n * n} |" for n in range(20)), False),
        ("-" * 80 + "\nHeading\n" + "-" * 80, False),
        ("One two three four five six seven eight nine ten. " * 1, False),
        ("SELECT a, b FROM t WHERE a > 1 AND b > 1 AND c > 1 ORDER BY a, b, c LIMIT 5 OFFSET 1", False),
    ],
)
def test_loops(text, loop):
    assert is_loop(text) is loop


@pytest.mark.parametrize(
    ("family", "text", "expected"),
    [
        ("gemma3", "<bos>The sea is calm.", {"text-bos", "text-plain"}),
        ("gemma3", "<start_of_turn>user\na<end_of_turn>\n<start_of_turn>model\n", {"answer-empty", "text-rendered"}),
        ("gemma3", "<start_of_turn>user\na<end_of_turn>\n<start_of_turn>model\nb<end_of_turn>\n", {"text-rendered"}),
    ],
)
def test_fault_of_a_text(family, text, expected):
    assert judge({"text": text}, family)[1] == expected


@pytest.mark.parametrize(
    ("letter", "count", "over"), [("海", 160, True), ("海", 140, False), ("a", 399, False), ("a", 410, True)]
)
def test_length_is_guessed_by_script(tmp_path, letter, count, over):
    stream, report = load_rows(
        _write(tmp_path, chat(user(letter * count), assistant("b"))), "sft", "gemma4", max_length=100
    )
    list(stream)
    assert ("over-length" in report.warnings_by_code) is over


def test_image_with_a_damaged_header(tmp_path):
    picture = (CASES / "media" / "dot.png").read_bytes()
    for name, data, broken in (
        ("a.png", picture, False),
        ("b.png", picture[:30], True),
        ("c.png", picture[:16] + bytes(8) + picture[24:], True),
    ):
        (tmp_path / name).write_bytes(data)
        row = chat(user([{"type": "image", "path": name}, TEXT]), assistant("b"))
        assert (told(tmp_path, "sft", row) == [("media-broken", 1)]) is broken


def _write(tmp_path, *rows):
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows), "utf-8")
    return file


def told(tmp_path, task, *rows) -> list[tuple[str, int | None]]:
    stream, report = load_rows(_write(tmp_path, *rows), task, "gemma4")
    list(stream)
    return [(problem.code, problem.line) for problem in [*report.errors, *report.warnings]]


def test_rows_against_each_other(tmp_path):
    assert told(tmp_path, "sft", GOOD, GOOD) == [("duplicate-row", 2)]
    assert told(tmp_path, "sft", GOOD, chat(user("Name a bread."), assistant("Spelt loaf."))) == []
    assert told(tmp_path, "dpo", broken_pair(), broken_pair(rejected="d")) == []
    assert told(tmp_path, "dpo", broken_pair(), broken_pair(chosen="c", rejected="b")) == [("pair-contradiction", 2)]
    assert told(tmp_path, "rm", broken_pair(margin=1), broken_pair(prompt="z")) == [("margin-missing", 2)]
    assert told(tmp_path, "prompts", {"prompt": "A b"}, {"prompt": " a  B "}) == [("duplicate-prompt", 2)]
    answer = {"prompt": "a", "response": "b", "finish_reason": "stop"}
    assert told(tmp_path, "responses", {**answer, "id": 1}, {**answer, "id": 1, "response": "c"}) == [
        ("duplicate-id", 2)
    ]
    leak = [{**GOOD, "split": "train"}, {**chat(user("Name a  BREAD."), assistant("Oat.")), "split": "test"}]
    assert told(tmp_path, "sft", *leak) == [("split-leak", 2)]
    assert told(tmp_path, "sft", GOOD, {"prompt": "a", "completion": "b"}) == [("mixed-layouts", 2)]


def test_loaded_rows_know_where_they_come_from(tmp_path):
    file = _write(tmp_path, GOOD, {"x": 1}, chat(user("a"), assistant("b")))
    stream, report = load_rows([file], "sft")
    rows = list(stream)
    assert [(row.file, row.line, row.row) for row in rows] == [(str(file), 1, 1), (str(file), 3, 3)]
    assert report.rows == 3 and report.valid == 2 and report.errors_by_code == {"unknown-columns": 1}


def test_split_keeps_prompts_together_and_is_stable(tmp_path):
    rows = [chat(user(f"Question {at % 400}?"), assistant(f"Answer {at}")) for at in range(800)]
    loaded = list(load_rows(_write(tmp_path, *rows), "sft")[0])
    train, held_out = split_by_prompt(loaded, 0.2, seed=3)
    asked = [{row.data["messages"][0]["content"] for row in side} for side in (train, held_out)]
    assert not asked[0] & asked[1] and len(train) + len(held_out) == 800
    assert 100 < len(held_out) < 220
    assert split_by_prompt(loaded[:500], 0.2, seed=3)[1] == [row for row in held_out if row.row <= 500]
    assert split_by_prompt(loaded, 0.2, seed=4)[1] != held_out
    assert split_by_prompt(loaded, 0.0)[1] == []


def test_rows_that_share_a_line_are_compared(tmp_path):
    file = tmp_path / "rows.json"
    file.write_text(json.dumps([GOOD, GOOD]))
    stream, report = load_rows(file, "sft", "gemma4")
    list(stream)
    assert report.warnings_by_code == {"duplicate-row": 1}


def test_unknown_columns_of_a_table_are_a_fault_of_its_header(tmp_path):
    file = tmp_path / "rows.csv"
    file.write_text("question,reply\na,b\nc,d\n")
    stream, report = load_rows(file, "sft", "gemma4")
    assert list(stream) == [] and (report.rows, report.valid) == (2, 0)
    assert [(p.code, p.line) for p in report.errors] == [("unknown-columns", 1)]


def test_report_keeps_the_first_of_each_code():
    report = Report(limit=3)
    for code in ["json-cut"] * 9 + ["answer-empty", "role-unknown"]:
        report.add(Problem(code, "x"))
    assert [problem.code for problem in report.errors] == ["json-cut", "answer-empty", "role-unknown"]
    assert report.errors_by_code == Counter({"json-cut": 9, "answer-empty": 1, "role-unknown": 1})


# Codes


def test_page_of_codes_is_that_of_the_table():
    told = (ROOT / "references" / "error-codes.md").read_text("utf-8")
    assert told == code_page.page(), (
        "run: PYTHONPATH=assets python -m gemma_trainer.rows.code_page > references/error-codes.md"
    )
    assert set(re.findall(r"^\| `([a-z0-9-]+)` \|", told, re.MULTILINE)) == set(CODES)


def test_every_data_code_is_used_and_every_used_code_is_in_the_table():
    sources = "".join(path.read_text("utf-8") for path in (ROOT / "assets/gemma_trainer/data").glob("*.py"))
    assert [code for code in DATA_CODES if f'"{code}"' not in sources] == []
    used = re.findall(r'(?:fault|repair|Refused|Fault|Problem)\(\s*"([a-z0-9-]+)"', sources)
    assert set(used) <= set(CODES)


# What passes the checks can be rendered

contents = st.sampled_from(["a", " b ", "", "x\ny", "<b>", None, 4, [], [TEXT], [IMAGE, TEXT], {"k": [1, None]}])
messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "assistant", "system", "tool", "model"]), "content": contents},
    optional={
        "tool_calls": st.lists(st.sampled_from([call(), call(id=None), call("f", {"x": None}, "c2")]), max_size=2),
        "tool_call_id": st.sampled_from(["c1", "c2", 3]),
        "name": st.sampled_from(["get_tide", "f"]),
        "reasoning_content": st.sampled_from(["r", ""]),
        "weight": st.sampled_from([0, 1, True]),
    },
)
schemas = st.recursive(
    st.sampled_from([None, "x", {"type": "string"}, {"type": ["string"]}, {"enum": [1]}, {}]),
    lambda inner: st.dictionaries(st.sampled_from(["type", "properties", "items", "required", "x"]), inner, max_size=3),
    max_leaves=6,
)
tool_lists = st.none() | st.lists(
    schemas.map(lambda s: {"type": "function", "function": {"name": "f", "parameters": s}}), max_size=2
)
rows = st.fixed_dictionaries({"messages": st.lists(messages, max_size=6), "tools": tool_lists})


@settings(max_examples=300, deadline=None)
@given(rows, st.sampled_from(family_names()))
def test_valid_rows_render_and_fit_the_schema(row, family):
    chosen = get_family(family)
    notes = Notes()
    before = json.dumps(row)
    data, _ = process(row, Options("sft", chosen), Setting(chosen, CASES), notes)
    assert json.dumps(row) == before
    if data is None or any(CODES[note.code].severity == "error" for note in notes.found):
        return
    row_validator("sft").validate(data)
    rendered = Renderer(chosen).render(data)
    assert any(end > start for start, end, _ in rendered.spans)
    again = Notes()
    assert process(data, Options("sft", chosen), Setting(chosen, CASES), again)[0] == data
    assert not again.repairs
