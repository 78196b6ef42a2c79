"""The fix that a warning names can be run, and makes the warning go away; where none can, none is named."""

from __future__ import annotations

import json
import random

import pytest

from gemma_trainer.rows.codes import CODES
from judging import CASES, ROUND, noted
from preparing import GOOD, TOOLS, assistant, call, chat, codes, lines, prep, result, user

NUL = "a\0b"
THOUGHT = "<|channel>thought\nadd\n<channel|>"
FILTER = {"type": "object", "properties": {"kind": {"type": "string"}}}


def fixed(tmp_path, rows: list, code: str, *words: str) -> list[dict]:
    """The rows that `convert` with these words makes of rows with a fault, which is gone then; nothing is refused."""
    file, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    asked = words.index("--repair") if "--repair" in words else len(words)
    assert code in codes(prep("validate", file, *words[:asked])[1])
    status, document = prep("convert", file, *words, "--out", out)
    assert status == 0 and document["result"]["rows_out"] == len(rows)
    status, document = prep("validate", out, *words[:asked])
    assert status == 0 and code not in codes(document)
    assert not any(" convert " in command for command in document["next"])
    return lines(out)


def calling(arguments: dict, properties: dict | None = None, **more: object) -> dict:
    tool = {
        "type": "function",
        "function": {"name": "get_tide", "parameters": {"type": "object", "properties": properties or {}}},
    }
    return chat(user("a"), assistant("", tool_calls=[call(arguments=arguments)]), tools=[tool], **more)  # fmt: skip


# NUL characters


@pytest.mark.parametrize(
    ("task", "row"),
    [
        ("sft", {"text": NUL}),
        ("sft", {"prompt": NUL, "completion": "c"}),
        ("sft", {"instruction": "a", "output": NUL}),
        ("sft", {"conversations": [{"from": "human", "value": NUL}, {"from": "gpt", "value": "c"}]}),
        ("sft", chat(user([{"type": "text", "text": NUL}]), assistant("c"))),
        ("sft", chat(user("a"), assistant("c", reasoning_content=NUL))),
        ("sft", chat({"role": "system", "content": NUL}, user("a"), assistant("c"))),
        ("sft", chat(user("a"), assistant("c"), tools=[{**TOOLS[0], "function": {"name": "f", "description": NUL}}])),
        ("sft", calling({"station": NUL}, {"station": {"type": "string"}})),
        ("sft", calling({"list": [{"deep": NUL}]}, {"list": {"type": "array"}})),
        ("sft", calling({NUL: "x"}, {"ab": {"type": "string"}})),
        ("sft", chat(*ROUND[:2], result(NUL, tool_call_id="c1"), ROUND[3], tools=TOOLS)),
        ("sft", chat(*ROUND[:2], result([{"type": "text", "text": NUL}], tool_call_id="c1"), ROUND[3], tools=TOOLS)),
        (
            "sft",
            chat(
                user("a"),
                assistant("", tool_calls=[call()], tool_responses=[{"name": "get_tide", "response": {"m": NUL}}]),
                assistant("b"),
                tools=TOOLS,
            ),
        ),
        ("dpo", {"prompt": NUL, "chosen": "c", "rejected": "d"}),
        ("dpo", {"prompt": "a", "chosen": "c", "rejected": NUL}),
        ("rm", {"prompt": [user("a")], "chosen": [assistant(NUL)], "rejected": [assistant("d")]}),
        (
            "dpo",
            {
                "prompt": [user("a")],
                "chosen": [assistant(None, tool_calls=[call(arguments={"station": NUL})])],
                "rejected": [assistant("d")],
                "tools": TOOLS,
            },
        ),
        ("prompts", {"prompt": NUL}),
    ],
)
def test_nul_characters_are_seen_and_stripped_wherever_text_stands(tmp_path, task, row):
    rows = fixed(tmp_path, [row], "nul-character", "--task", task, "--repair", "strip-nul")
    assert "\\u0000" not in json.dumps(rows) and '"ab"' in json.dumps(rows)


def test_replaced_characters_are_seen_in_tools_and_calls():
    bad = "caf\ufffd"
    tools = [{"type": "function", "function": {"name": "get_tide", "description": bad}}]
    _, notes = noted(chat(user("a"), assistant("", tool_calls=[call(arguments={"x": [bad]})]), tools=tools))
    found = [note.path for note in notes.found if note.code == "replacement-character"]
    assert found == ["tools[0].function.description", "messages[1].tool_calls[0].function.arguments.x[0]"]


# Nulls that Arrow pads


@pytest.mark.parametrize(
    ("arguments", "properties", "kept"),
    [
        ({"filter": {"kind": "a", "other": None}}, {"filter": FILTER}, {"filter": {"kind": "a"}}),
        ({"filter": {"kind": None, "other": None}}, {"filter": FILTER}, {"filter": {"kind": None}}),
        ({"filter": {"other": None}}, {"filter": {"type": "object"}}, {"filter": {}}),
        ({"list": [{"kind": "a", "x": None}, {"kind": "b", "x": None}]}, {"list": {"type": "array", "items": FILTER}},
         {"list": [{"kind": "a"}, {"kind": "b"}]}),
        ({"a": {"filter": {"kind": "a", "x": None}}}, {"a": {"type": "object", "properties": {"filter": FILTER}}},
         {"a": {"filter": {"kind": "a"}}}),
        ({"x": None, "filter": {"kind": "a"}}, {"filter": FILTER}, {"filter": {"kind": "a"}}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("task", ["sft", "dpo"])
def test_padded_nulls_are_dropped_at_any_depth(tmp_path, task, arguments, properties, kept):
    row = calling(arguments, properties)
    if task == "dpo":
        [asked, answer] = row.pop("messages")
        row = {**row, "prompt": [asked], "chosen": [answer], "rejected": [assistant("c")]}
    [made] = fixed(tmp_path, [row], "null-padded-arguments", "--task", task, "--repair", "drop-null-arguments")
    answer = made["chosen"][0] if task == "dpo" else made["messages"][1]
    assert answer["tool_calls"][0]["function"]["arguments"] == kept


@pytest.mark.parametrize(
    ("arguments", "properties"),
    [
        ({"filter": {"kind": None}}, {"filter": FILTER}),
        ({"env": {"PATH": None}}, {"env": {"type": "object", "additionalProperties": {"type": "string"}}}),
        ({"filter": {"kind": None}}, {"filter": {"anyOf": [FILTER, {"type": "null"}]}}),
        ({"list": [None, 1]}, {"list": {"type": "array"}}),
    ],
)
def test_nulls_that_a_schema_may_take_are_no_padding(arguments, properties):
    row, notes = noted(calling(arguments, properties), asked=frozenset({"drop-null-arguments"}))
    assert "null-padded-arguments" not in {note.code for note in (*notes.found, *notes.repairs)}
    assert row["messages"][1]["tool_calls"][0]["function"]["arguments"] == arguments


# Thinking inside of answers


@pytest.mark.parametrize(
    ("content", "known", "answer", "reasoning"),
    [
        ("x is 4\n</think>\n42", None, "42", "x is 4"),
        ("<thinking>x</thinking>42", None, "42", "x"),
        ("<think>x</think>\n    return x", None, "    return x", "x"),
        ("<think>a</think>\n<think>b</think>42", None, "42", "a\n\nb"),
        (f"{THOUGHT}<think>b</think>42", None, "42", "add\n\nb"),
        (f"{THOUGHT}{THOUGHT}42", None, "42", "add\n\nadd"),
        ("<think>b</think>42", "a", "42", "a\n\nb"),
        ("<think>a</think>42", "a", "42", "a"),
        ("<think>\n</think>42", None, "42", None),
        ("<think>x</think>Close it with `</think>`.", None, "Close it with `</think>`.", "x"),
        ([{"type": "text", "text": "<think>x</think>42"}], None, [{"type": "text", "text": "42"}], "x"),
        ([{"type": "text", "text": f"{THOUGHT}42"}], None, [{"type": "text", "text": "42"}], "add"),
        ([{"type": "text", "text": "x\n</think>\n42"}], None, [{"type": "text", "text": "42"}], "x"),
        ([{"type": "text", "text": "<think>x</think>"}, {"type": "text", "text": "42"}], None,
         [{"type": "text", "text": "42"}], "x"),
    ],
)  # fmt: skip
def test_thinking_in_front_of_an_answer_moves(tmp_path, content, known, answer, reasoning):
    row = chat(user("a"), assistant(content, **({"reasoning_content": known} if known else {})))
    text = content if isinstance(content, str) else content[0]["text"]
    code = "inline-thought" if text.startswith(THOUGHT) else "think-tags"
    [made] = fixed(tmp_path, [row], code)
    assert made["messages"][1]["content"] == answer and made["messages"][1].get("reasoning_content") == reasoning


@pytest.mark.parametrize("side", ["chosen", "rejected"])
def test_thinking_in_front_of_an_answer_of_a_pair_moves(tmp_path, side):
    row = {"prompt": "a", "chosen": "c", "rejected": "d", side: "x\n</think>\n42"}
    [made] = fixed(tmp_path, [row], "think-tags", "--task", "dpo")
    assert made[side] == [assistant("42", reasoning_content="x")]


@pytest.mark.parametrize(
    ("family", "code", "content", "known"),
    [
        ("gemma4", "thought-misplaced", f"Sure. {THOUGHT}42", None),
        ("gemma4", "thought-misplaced", f"{THOUGHT}42{THOUGHT}", None),
        ("gemma4", "thought-misplaced", "<think>a\n</think>\nb\n</think>\n42", None),
        ("gemma4", "thought-misplaced", "<think>a <think>b</think> c</think>42", None),
        ("gemma4", "thought-misplaced", "<think><think>b</think>42", None),
        ("gemma4", "thought-misplaced", "<think>b</think>42", "<think>a</think>"),
        ("gemma4", "thought-misplaced", [{"type": "text", "text": "So:"}, {"type": "text", "text": f"{THOUGHT}42"}], None),
        ("gemma4", "thought-misplaced", [{"type": "text", "text": f"{THOUGHT}b"}, {"type": "text", "text": "<think>c</think>42"}], None),
        ("gemma3", "think-tags", "<think>x</think>42", None),
        ("functiongemma", "think-tags", "x\n</think>\n42", None),
        ("gemma2", "think-tags", "<think>x</think>42", None),
    ],
)  # fmt: skip
def test_thinking_that_cannot_move_is_told_another_fix(tmp_path, family, code, content, known):
    file, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    row = chat(user("a"), assistant(content, **({"reasoning_content": known} if known else {})))
    file.write_text(json.dumps(row) + "\n", "utf-8")
    _, document = prep("validate", file, "--family", family)
    fix = next(warning["fix"] for warning in document["warnings"] if warning["code"] == code)
    assert "`convert" not in fix and not any(" convert " in command for command in document["next"])
    assert prep("convert", file, "--family", family, "--out", out)[0] == 0 and lines(out) == [row]
    assert not {"think-tags", "inline-thought"} & (codes(document) - {code})


@pytest.mark.parametrize("content", ["```html\n</think>\n```", "Close it with `</think>`.", "Use <think> first."])
def test_answers_about_the_tags_are_left_alone(content):
    row = chat(user("a"), assistant(content))
    made, notes = noted(row, asked=frozenset({"move-thoughts"}))
    assert made == row and not notes.found and not notes.repairs


# Turns of the same role


PICTURE = {"type": "image", "image": str(CASES / "media" / "dot.png")}


@pytest.mark.parametrize(
    ("messages", "merged"),
    [
        ([user("a"), assistant("b"), assistant("c")], assistant("b\n\nc")),
        ([user("a"), assistant("b", reasoning_content="x"), assistant("c")], assistant("b\n\nc", reasoning_content="x")),
        ([user("a"), assistant("b", weight=0), assistant("c", weight=0), user("d"), assistant("e")],
         assistant("b\n\nc", weight=0)),
        ([user("a"), assistant([{"type": "text", "text": "b"}]), assistant("c")],
         assistant([{"type": "text", "text": "b\n\nc"}])),
        ([user("a"), assistant("b"), assistant([{"type": "text", "text": "c"}])],
         assistant([{"type": "text", "text": "b\n\nc"}])),
    ],
)  # fmt: skip
def test_glued_answers_are_joined(tmp_path, messages, merged):
    [made] = fixed(tmp_path, [chat(*messages)], "answers-glued", "--repair", "merge-turns")
    assert made["messages"][1] == merged


@pytest.mark.parametrize(
    ("turns", "merged"),
    [
        ([user("a"), user("b")], user("a\n\nb")),
        ([user(""), user("b")], user("\n\nb")),
        ([user([PICTURE]), user("b")], user([PICTURE, {"type": "text", "text": "b"}])),
        ([user([{"type": "text", "text": "a"}]), user([{"type": "text", "text": "b"}, PICTURE])],
         user([{"type": "text", "text": "a\n\nb"}, PICTURE])),
    ],
)  # fmt: skip
def test_turns_in_a_row_are_joined(tmp_path, turns, merged):
    row = chat(*turns, assistant("c"))
    [made] = fixed(tmp_path, [row], "roles-not-alternating", "--family", "gemma3", "--repair", "merge-turns")
    assert made["messages"] == [merged, assistant("c")]


# Several layouts in one file


def validated(file) -> tuple[list[str], bool, dict]:
    """(fixes of mixed-layouts, whether convert comes next, document)."""
    _, document = prep("validate", file)
    fixes = [warning["fix"] for warning in document["warnings"] if warning["code"] == "mixed-layouts"]
    return fixes, any(" convert " in command for command in document["next"]), document


def test_layouts_that_become_one_are_converted(tmp_path):
    file, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in (GOOD, {"prompt": "a", "completion": "b"})), "utf-8")
    fixes, converts, _ = validated(file)
    assert len(fixes) == 1 and "`convert`" in fixes[0] and converts
    assert prep("convert", file, "--out", out)[0] == 0
    assert validated(out)[:2] == ([], False)


@pytest.mark.parametrize("other", [{"text": "a"}, {"input_ids": [2, 5], "labels": [-100, 5]}])
@pytest.mark.parametrize("first", [True, False])
def test_layouts_that_stay_apart_are_told_to_be_parted(tmp_path, other, first):
    file, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    rows = [other, GOOD] if first else [GOOD, other]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    fixes, converts, _ = validated(file)
    assert len(fixes) == 1 and "file of their own" in fixes[0] and "`convert`" not in fixes[0] and not converts
    _, document = prep("convert", file, "--out", out)
    assert lines(out) == rows and "mixed-layouts" in codes(document)
    assert "mixed-layouts" not in document["result"]["repaired"]


MOVED = {"think-tags", "inline-thought"}
MARKS = [
    "<think>",
    "</think>",
    "<thinking>",
    "<|channel>thought\n",
    "<channel|>",
    "\n</think>\n",
    "\n",
    " ",
    "42",
    "```\n",
]


@pytest.mark.parametrize("seed", range(0, 2_000, 500))
def test_whatever_marks_an_answer_holds_what_is_told_to_move_moves(seed):
    for number in range(seed, seed + 500):
        dice = random.Random(number)
        texts = ["".join(dice.choices(MARKS, k=dice.randint(1, 6))) for _ in range(dice.randint(1, 3))]
        content = texts[0] if len(texts) == 1 else [{"type": "text", "text": text} for text in texts]
        row = chat(user("a"), assistant(content))
        before = told_of(row)
        made, notes = noted(row, asked=frozenset({"move-thoughts"}))
        if not before & {"thought-unclosed", "control-token", "answer-empty"}:
            assert not any(CODES[note.code].severity == "error" for note in notes.found), row
            assert bool(before & MOVED) == bool(MOVED & {note.code for note in notes.repairs}), row
            assert not told_of(made) & MOVED, row


def told_of(row: dict) -> set[str]:
    return {note.code for note in noted(row)[1].found}
