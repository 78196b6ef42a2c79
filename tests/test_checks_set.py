"""Rows of a set: against each other, where they come from, guessed lengths, types of columns."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from gemma_trainer.data.checking.column_types import ColumnTypes
from gemma_trainer.data.layouts.registry import canonical_row
from gemma_trainer.data.lengths import guessed_tokens
from gemma_trainer.data.notes import Notes
from gemma_trainer.data.pipeline import load_rows
from gemma_trainer.data.report import Report
from gemma_trainer.data.split import split_by_prompt
from gemma_trainer.families.catalogue import get_family
from gemma_trainer.rows.problems import Problem
from judging import ROUND, pair
from preparing import GOOD, TOOLS, assistant, call, chat, codes, prep, result, user


@pytest.mark.parametrize(
    ("letter", "count", "over"), [("海", 160, True), ("海", 140, False), ("a", 399, False), ("a", 410, True)]
)
def test_length_is_guessed_by_script(tmp_path, letter, count, over):
    stream, report = load_rows(
        _write(tmp_path, chat(user(letter * count), assistant("b"))), "sft", "gemma4", max_length=100
    )
    list(stream)
    assert ("over-length" in report.warnings_by_code) is over


LONG = "A long way. " * 2000
WITH_LONG = {
    "arguments": chat(*ROUND[:1], assistant("", tool_calls=[call(arguments={"station": LONG})]), *ROUND[2:], tools=TOOLS),
    "nested": chat(*ROUND[:1], assistant("", tool_calls=[call(arguments={"a": [{"b": LONG}]})]), *ROUND[2:], tools=TOOLS),
    "result": chat(*ROUND[:2], result({"height": LONG}, tool_call_id="c1"), ROUND[3], tools=TOOLS),
    "responses": chat(ROUND[0], {**ROUND[1], "tool_responses": [{"name": "get_tide", "response": {"a": LONG}}]}, ROUND[3], tools=TOOLS),
    "declaration": chat(*ROUND, tools=[{"type": "function", "function": {"name": "get_tide", "description": LONG}}]),
    "reasoning": chat(user("a"), assistant("b", reasoning_content=LONG)),
    "kept reasoning": chat(ROUND[0], {**ROUND[1], "reasoning_content": LONG}, *ROUND[2:], *ROUND, tools=TOOLS,
                           chat_template_kwargs={"preserve_thinking": True}),
    "lost reasoning": chat(user("a"), assistant("b", reasoning_content=LONG), user("c"), assistant("d")),
}  # fmt: skip


@pytest.mark.parametrize("family", ["gemma3", "gemma4", "functiongemma"])
@pytest.mark.parametrize("name", WITH_LONG)
@pytest.mark.parametrize("task", ["sft", "dpo"])
def test_length_is_guessed_from_all_that_is_rendered(tmp_path, family, name, task):
    """Calls, results, declarations and reasoning, where the family's template writes them; in warnings and facts alike."""
    row = WITH_LONG[name]
    if task == "dpo":
        head, last = row["messages"][:-1], row["messages"][-1]
        row = {**row, "prompt": head, "chosen": [last], "rejected": [assistant("x")]}
        del row["messages"]
    family = get_family(family)
    written = guessed_tokens(canonical_row(row, task, Notes()).row, family)
    shown = {"reasoning": family.thinking, "kept reasoning": family.thinking, "lost reasoning": False}.get(
        name, family.tools
    )
    if name == "result":
        shown = True  # refused where there are no tools
    assert (written > 5000) is shown and (shown or written < 1000)


@pytest.mark.parametrize("command", ["validate", "stats"])
def test_guessed_lengths_of_calls_are_told(tmp_path, command):
    file = _write(tmp_path, WITH_LONG["arguments"])
    _, document = prep(command, file, "--family", "gemma4", "--max-length", 1000)
    assert "over-length" in codes(document)
    assert command == "validate" or document["result"]["stats"]["tokens"]["max"] > 5000


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
    assert told(tmp_path, "dpo", pair(), pair(rejected="d")) == []
    assert told(tmp_path, "dpo", pair(), pair(chosen="c", rejected="b")) == [("pair-contradiction", 2)]
    assert told(tmp_path, "rm", pair(margin=1), pair(prompt="z")) == [("margin-missing", 2)]
    assert told(tmp_path, "prompts", {"prompt": "A b"}, {"prompt": " a  B "}) == [("duplicate-prompt", 2)]
    answer = {"prompt": "a", "response": "b", "finish_reason": "stop"}
    assert told(tmp_path, "responses", {**answer, "id": 1}, {**answer, "id": 1, "response": "c"}) == [
        ("duplicate-id", 2)
    ]
    leak = [{**GOOD, "split": "train"}, {**chat(user("Name a  BREAD."), assistant("Oat.")), "split": "test"}]
    assert told(tmp_path, "sft", *leak) == [("split-leak", 2)]
    assert told(tmp_path, "sft", GOOD, {"prompt": "a", "completion": "b"}) == [("mixed-layouts", 2)]


def test_ids_of_calls_and_the_order_of_arguments_make_no_other_row(tmp_path):
    def called(id: str, *arguments: tuple) -> list[dict]:
        return [
            assistant("", tool_calls=[call(arguments=dict(arguments), id=id)]),
            result("3", tool_call_id=id),
            assistant("3."),
        ]

    place, hour = ("station", "North"), ("hour", 6)
    first, same, other = called("c1", place, hour), called("c2", hour, place), called("c1", place, ("hour", 7))
    rows = [chat(user("Tide?"), *answer, tools=TOOLS) for answer in (first, other, same)]
    assert told(tmp_path, "sft", *rows) == [("duplicate-row", 3)]
    pairs = [
        pair(chosen=first, rejected="c"),
        pair(chosen=other, rejected="c"),
        pair(chosen=same, rejected="c"),
        pair(chosen="c", rejected=same),
    ]
    assert told(tmp_path, "dpo", *(dict(one, tools=TOOLS) for one in pairs)) == [
        ("duplicate-row", 3),
        ("pair-contradiction", 4),
    ]
    thought = [pair(chosen=[assistant("b", reasoning_content=text)]) for text in ("x", "y")]
    assert "duplicate-row" not in dict(told(tmp_path, "dpo", *thought))


@pytest.mark.parametrize("task", ["dpo", "rm"])
def test_the_first_valid_row_tells_whether_rows_have_margins(tmp_path, task):
    scored = {"prompt": "q", "responses": ["good", "bad"], "scores": [2, 1]}
    refused = [{"x": 1}, pair(rejected="", margin=1), {**scored, "scores": [1, 1]}]
    assert ("margin-missing", 5) in told(tmp_path, task, *refused, pair(), pair(prompt="z", margin=1))
    assert ("margin-missing", 5) in told(tmp_path, task, *refused, scored, pair())
    assert ("margin-missing", 5) not in told(tmp_path, task, *refused, pair(), pair(prompt="z", margin=None))
    wrapped = {"file": "a", "line": 1, "row": 1, "codes": [], "problems": [], "input": pair()}
    assert ("margin-missing", 2) in told(tmp_path, task, json.dumps(pair(prompt="s")), {**wrapped, "input": scored})
    assert "margin-missing" not in dict(told(tmp_path, "sft", chat(user("a"), assistant("b"), margin=1), GOOD))


@pytest.mark.parametrize("column", ["text", "prompt", "chosen", "completion", "input_ids", "labels"])
@pytest.mark.parametrize("value", [[0], 1.5, {"a": 1}, "x" * 400, [None]])
def test_length_is_guessed_from_what_makes_the_row(tmp_path, column, value):
    """Columns of other layouts beside it, whatever they hold, neither count nor break anything."""
    row = chat(user("a<end_of_turn>"), assistant("b"), **{column: value})
    stream, report = load_rows(_write(tmp_path, row), "sft", "gemma3", max_length=50)
    assert list(stream) == [] and set(report.errors_by_code) == {"control-token"}
    assert "over-length" not in report.warnings_by_code


@pytest.mark.parametrize("count", [50, 51])
def test_token_ids_are_counted(tmp_path, count):
    ids = list(range(5, 5 + count))
    stream, report = load_rows(_write(tmp_path, {"input_ids": ids, "labels": ids}), "sft", "gemma3", max_length=50)
    assert len(list(stream)) == 1 and ("over-length" in report.warnings_by_code) is (count > 50)


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


def test_types_of_columns_are_compared_over_rows_and_parts():
    rows = [
        {"id": 1, "messages": []},
        {"id": 2.5, "messages": "x", "meta": None},
        {"meta": {}},
        {"id": "3", "meta": {}},
    ]
    whole, first, second = ColumnTypes(), ColumnTypes(), ColumnTypes()
    for line, row in enumerate(rows, 1):
        whole.add(row, "a.jsonl", line)
        (first if line < 3 else second).add(row, "a.jsonl", line)
    assert first.problems() == second.problems() == []
    first.merge(second)
    assert first.problems() == whole.problems()
    (problem,) = whole.problems()
    assert (problem.code, problem.line, problem.path) == ("column-types-differ", 4, "id")
    assert problem.message == "the column `id` holds text here and a number in line 1"


def test_columns_of_any_number_take_no_memory():
    types = ColumnTypes()
    for at in range(1000):
        types.add({f"column {at}": at}, None, at)
    assert len(types.seen) == 256
