"""Raw rows of every layout -> canonical rows."""

from __future__ import annotations

import json

import pytest

from gemma_trainer.data.layouts.registry import canonical_row, detect_task
from gemma_trainer.data.notes import Notes, Refused
from gemma_trainer.families.catalogue import get_family
from gemma_trainer.rows.roles import ROLES, canonical_role
from preparing import GOOD, TOOLS, assistant, call, chat, result, user

SYSTEM = {"role": "system", "content": "Be brief."}
PAIR = {"prompt": [user("a")], "chosen": [assistant("b")], "rejected": [assistant("c")]}


def canonical(row, task="sft", **options):
    notes = Notes()
    made = canonical_row(row, task, notes, family=get_family("gemma4"), **options)
    return made.row, made.layout, [note.code for note in notes.repairs]


def refused(row, task="sft", **options) -> str:
    with pytest.raises(Refused) as caught:
        canonical(row, task, **options)
    return caught.value.note.code


@pytest.mark.parametrize(
    ("row", "messages", "layout", "repairs"),
    [
        (GOOD, GOOD["messages"], "messages", []),
        ({**GOOD, "prompt": None}, GOOD["messages"], "messages", []),
        (GOOD["messages"], GOOD["messages"], "bare-list", ["layout-converted"]),
        ({"messages": json.dumps(GOOD["messages"])}, GOOD["messages"], "messages", ["text-decoded"]),
        (
            {"conversations": [{"from": "human", "value": "Name a bread."}, {"from": "gpt", "value": "Rye."}]},
            GOOD["messages"], "sharegpt", ["layout-converted"],
        ),
        (
            {"conversations": [{"from": "Human ", "value": "Name a bread."}, {"from": "gpt", "value": "Rye."}]},
            GOOD["messages"], "sharegpt", ["role-renamed", "layout-converted"],
        ),
        (
            {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}], "system": "Be brief."},
            [SYSTEM, user("a"), assistant("b")], "sharegpt", ["layout-converted"],
        ),
        ({**GOOD, "system": "Be brief."}, [SYSTEM, *GOOD["messages"]], "messages", ["system-column"]),
        (
            {"instruction": "Give the plural.", "input": "ox", "output": "oxen"},
            [user("Give the plural.\nox"), assistant("oxen")], "alpaca", ["layout-converted"],
        ),
        (
            {"instruction": "a", "input": None, "response": "b", "history": [["c", "d"]], "system": "Be brief."},
            [SYSTEM, user("c"), assistant("d"), user("a"), assistant("b")], "alpaca", ["layout-converted"],
        ),
        ({"prompt": "a", "completion": "b"}, [user("a"), assistant("b")], "prompt-completion", []),
        ({"prompt": "a", "response": "b"}, [user("a"), assistant("b")], "prompt-completion", []),
        (
            {"prompt": [user("a"), assistant("b"), user("c")], "completion": [assistant("d")]},
            [user("a"), {"weight": 0, **assistant("b")}, user("c"), assistant("d")], "prompt-completion", [],
        ),
        (
            chat({"from": "human", "value": "a"}, assistant("b")),
            [user("a"), assistant("b")], "messages", ["role-renamed", "mixed-conventions"],
        ),
        (chat(user("a"), {"role": "MODEL", "content": "b"}), [user("a"), assistant("b")], "messages", ["role-renamed"]),
        (chat({"role": "developer", "content": "Be brief."}, user("a"), assistant("b")),
         [SYSTEM, user("a"), assistant("b")], "messages", []),
        (
            chat(user("a"), assistant(None, function_call={"name": "f", "arguments": '{"x": 1}'})),
            [user("a"), assistant(None, tool_calls=[{"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}])],
            "messages", ["function-call-legacy", "tool-wrapped", "arguments-decoded"],
        ),
        (
            chat(user("a"), assistant("b", reasoning="c", tool_calls=None)),
            [user("a"), assistant("b", reasoning_content="c")], "messages", [],
        ),
        (
            chat(user([{"type": "image_url", "image_url": {"url": "x.png"}}, {"type": "text", "text": "a", "x": None}]), assistant("b")),
            [user([{"type": "image", "url": "x.png"}, {"type": "text", "text": "a"}]), assistant("b")],
            "messages", ["image-url-part", "null-part-keys"],
        ),
    ],
)  # fmt: skip
def test_messages(row, messages, layout, repairs):
    before = json.dumps(row)
    made, name, done = canonical(row)
    assert (made["messages"], name, done) == (messages, layout, repairs)
    assert json.dumps(row) == before  # a refused row must go to the rejects as it came


def test_sharegpt_tool_turns():
    turns = [
        {"from": "human", "value": "Tide?"},
        {"from": "function_call", "value": '{"name": "get_tide", "arguments": {"station": "North"}}'},
        {"from": "observation", "value": "3.2"},
        {"from": "gpt", "value": "3.2 metres."},
    ]
    row, _, repairs = canonical({"conversations": turns, "tools": json.dumps(TOOLS)})
    assert [message["role"] for message in row["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert row["messages"][1]["tool_calls"] == [call(id=None)]
    assert row["tools"] == TOOLS and repairs == ["layout-converted"]


def test_other_columns_are_kept_and_rivals_dropped():
    row, _, repairs = canonical({**GOOD, "id": 7, "meta": {"n": None}, "prompt": "x"})
    assert row == {**GOOD, "id": 7, "meta": {"n": None}} and repairs == ["column-ignored"]


@pytest.mark.parametrize(
    ("row", "task", "key"),
    [
        (GOOD, "sft", "messages"),
        ({"prompt": "a", "completion": "b"}, "sft", "messages"),
        ({"prompt": [user("a")], "response": "b", "label": True}, "sft", "messages"),
        ({"prompt": "a"}, "prompts", "prompt"),
        (PAIR, "dpo", "prompt"),
        ({"chosen": [user("a"), assistant("b")], "rejected": [user("a"), assistant("c")]}, "rm", "prompt"),
    ],
)
def test_a_system_column_is_told_where_trainers_pass_it_over(row, task, key):
    made, _, repairs = canonical({**row, "system": "Be brief."}, task)
    assert made[key][0] == SYSTEM and "system" not in made and repairs == ["system-column"]
    assert canonical({**row, "system": " "}, task)[2] == [] == canonical({**row, "system": None}, task)[2]


@pytest.mark.parametrize(
    ("row", "task"),
    [
        (chat(SYSTEM, *GOOD["messages"]), "sft"),
        ({"prompt": [SYSTEM, user("a")], "completion": "b"}, "sft"),
        ({"prompt": [SYSTEM, user("a")]}, "prompts"),
        ({"prompt": [SYSTEM, user("a")], "chosen": "b", "rejected": "c"}, "dpo"),
        ({"conversations": [{"from": "system", "value": "Be brief."}, *GOOD["messages"]]}, "sft"),
    ],
)
def test_a_system_column_beside_a_system_message_is_left_out(row, task):
    other, same = (canonical({**row, "system": text}, task) for text in ("Be long.", "Be brief. "))
    assert other[2].count("column-ignored") == 1 and "system-column" not in other[2]
    assert same == canonical(row, task) and same[0] == other[0]


def test_of_several_possible_answers_none_is_taken_silently():
    for row, layout in (
        ({"prompt": "a", "completion": "b", "response": "c"}, "prompt-completion"),
        ({"instruction": "a", "output": "b", "answer": "c"}, "alpaca"),
        ({"instruction": "a", "response": "b", "completion": "c"}, "alpaca"),
        ({"question": "a", "answer": "b", "solution": "c"}, "qa"),
    ):
        first, second = list(row)[-2:]
        assert refused(row) == "columns-ambiguous"
        for alone in ({**row, second: row[first]}, {**row, second: None}, {**row, second: ""}, {**row, second: 3}):
            made, found, _ = canonical(alone)
            assert (made["messages"][-1], found) == (assistant("b"), layout)
        assert canonical(row, mapping={second: second})[0]["messages"][-1] == assistant("c")
    pair = {"query": "a", "response": "b", "answer": "c", "rejected_response": "d"}
    assert refused(pair, "dpo") == "columns-ambiguous"


def test_text_row():
    assert canonical({"text": "a", "id": 1})[:2] == ({"text": "a", "id": 1}, "text")


def test_map_renames_columns():
    row, layout, _ = canonical({"question": "a", "answer": "b"}, mapping={"prompt": "question", "completion": "answer"})
    assert row["messages"] == [user("a"), assistant("b")] and layout == "prompt-completion"


@pytest.mark.parametrize(
    ("row", "repairs"),
    [
        (PAIR, []),
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, []),
        ({"prompt": [user("a")], "chosen": assistant("b"), "rejected": assistant("c")}, []),
        ({"chosen": [user("a"), assistant("b")], "rejected": [user("a"), assistant("c")]}, []),
        (
            {"prompt": "a", "chosen": [user("a"), assistant("b")], "rejected": [user("a"), assistant("c")]},
            ["prompt-repeated"],
        ),
    ],
)
def test_preferences(row, repairs):
    made, layout, done = canonical(row, "dpo")
    assert (made, layout, done) == (PAIR, "preference", repairs)


def test_conversation_with_two_answers():
    row = {"conversations": [user("a")], "chosen": assistant("b"), "rejected": assistant("c")}
    assert canonical(row, "dpo") == (PAIR, "preference", ["layout-converted"])


def test_numbers_that_are_text():
    row, _, repairs = canonical({**PAIR, "margin": "1.5", "score_chosen": " ", "rejected_rating": "2"}, "rm")
    assert row == {**PAIR, "margin": 1.5, "rejected_rating": 2.0} and repairs == ["number-as-text"] * 2
    assert canonical({**PAIR, "margin": "high"}, "rm")[0]["margin"] == "high"
    assert canonical({**PAIR, "margin": "nan"}, "rm")[0]["margin"] == "nan"


def test_implicit_prompt_is_counted_in_messages():
    opening = [user("a"), assistant("b"), user("c")]
    row, _, _ = canonical(
        {"chosen": [*opening, assistant("Yes, d")], "rejected": [*opening, assistant("Yes, e")]}, "rm"
    )
    assert row["prompt"] == opening and row["chosen"] == [assistant("Yes, d")]


def test_prompts():
    assert canonical({"prompt": "a", "id": 1}, "prompts")[0] == {"id": 1, "prompt": [user("a")]}
    assert canonical(chat(user("a")), "prompts")[0] == {"prompt": [user("a")]}
    assert canonical({"instruction": "a", "output": "x"}, "prompts")[0] == {"prompt": [user("a")], "output": "x"}
    assert canonical("a", "prompts") == ({"prompt": [user("a")]}, "prompt", ["layout-converted"])


@pytest.mark.parametrize("row", [GOOD, GOOD["messages"]])
def test_rows_that_are_json_text(row):
    made, _, repairs = canonical(json.dumps(row))
    assert made == GOOD and "text-decoded" in repairs


def test_second_conversation_is_told_only_where_it_differs():
    turns = [{"from": "human", "value": "Name a bread."}, {"from": "gpt", "value": "Rye."}]
    assert canonical({**GOOD, "conversations": turns})[0] == GOOD
    assert "column-ignored" not in canonical({**GOOD, "conversations": turns})[2]
    assert "column-ignored" in canonical({**GOOD, "conversations": turns[:1]})[2]
    assert "column-ignored" in canonical({**GOOD, "conversations": "x"})[2]


def test_keys_that_say_the_same_twice():
    both = {"role": "user", "from": "human", "content": "a", "value": "a"}
    assert canonical(chat(both, assistant("b")))[0] == chat(user("a"), assistant("b"))
    assert canonical(chat({**both, "from": "Ann"}, assistant("b")))[0]["messages"][0]["from"] == "Ann"


def test_tools_that_are_json_text_one_by_one():
    row, _, repairs = canonical({**GOOD, "tools": [json.dumps(tool) for tool in TOOLS]})
    assert row["tools"] == TOOLS and set(repairs) == {"text-decoded"}


@pytest.mark.parametrize(
    ("row", "task", "code"),
    [
        (3, "sft", "row-not-object"),
        ("hello", "sft", "row-not-object"),
        ("[{'role': 'user'}]", "sft", "row-not-object"),
        (chat({"role": "user", "from": "gpt", "content": "a"}, assistant("b")), "sft", "message-ambiguous"),
        (chat(user("a"), {"role": "assistant", "content": "b", "value": "c"}), "sft", "message-ambiguous"),
        ({**GOOD, "tools": ["{"]}, "sft", "tools-invalid"),
        (None, "sft", "row-not-object"),
        ({}, "sft", "unknown-columns"),
        ({"notes": None, "tools": None}, "sft", "unknown-columns"),
        ({"text": None}, "sft", "target-missing"),
        ({"id": 3, "tools": None, "messages": None}, "sft", "target-missing"),
        ({"question": None, "answer": None}, "sft", "target-missing"),
        ({"prompt": None}, "prompts", "target-missing"),
        ({"chosen": None, "rejected": None}, "dpo", "target-missing"),
        ({"question": "a", "verdict": "b"}, "sft", "unknown-columns"),
        ({"messages": []}, "sft", "messages-empty"),
        ([], "sft", "messages-empty"),
        ({"messages": {"role": "user"}}, "sft", "messages-type"),
        ({"messages": "hello"}, "sft", "messages-type"),
        ({"messages": "[{'role': 'user', 'content': 'a'}]"}, "sft", "python-literal"),
        (chat("hello"), "sft", "messages-type"),
        (chat(user("a"), {"content": "b"}), "sft", "role-missing"),
        (chat(user("a"), {"role": None, "content": "b"}), "sft", "role-missing"),
        (chat(user("a"), {"role": ["x"], "content": "b"}), "sft", "role-unknown"),
        (chat(user("a"), {"role": "narrator", "content": "b"}), "sft", "role-unknown"),
        (chat(user("a"), assistant("b"), {"role": "context", "content": "c"}), "sft", "role-unknown"),
        (chat({"role": "user"}, assistant("b")), "sft", "content-missing"),
        (chat(user("a"), assistant(None)), "sft", "answer-empty"),
        (chat(user("a"), assistant(5)), "sft", "content-type"),
        (chat(user({"text": "a"}), assistant("b")), "sft", "content-type"),
        (chat(user(["a"]), assistant("b")), "sft", "part-invalid"),
        (chat(user([{"type": "picture"}]), assistant("b")), "sft", "part-invalid"),
        (chat(user([{"type": ["text"]}]), assistant("b")), "sft", "part-invalid"),
        (chat(user([{"type": "text"}]), assistant("b")), "sft", "part-invalid"),
        (chat(user("a"), assistant("b", weight=0.5)), "sft", "weight-invalid"),
        (chat(user("a"), assistant("b", tool_calls="x")), "sft", "tool-call-invalid"),
        (chat(user("a"), assistant("b", tool_calls=[{"function": {}}])), "sft", "tool-call-invalid"),
        (chat(user("a"), assistant("b", tool_calls=[call(arguments="{")])), "sft", "arguments-invalid"),
        (chat(user("a"), assistant("b", tool_calls=[call(arguments="[1]")])), "sft", "arguments-invalid"),
        ({**GOOD, "tools": "{"}, "sft", "tools-invalid"),
        ({**GOOD, "tools": [{"type": "function"}]}, "sft", "tools-invalid"),
        ({**GOOD, "chat_template_kwargs": "x"}, "sft", "template-kwargs-invalid"),
        ({**GOOD, "chat_template_kwargs": {"messages": []}}, "sft", "template-kwargs-invalid"),
        ({"instruction": "a"}, "sft", "target-missing"),
        ({"instruction": ["a"], "output": "b"}, "sft", "content-type"),
        ({"prompt": "a"}, "sft", "target-missing"),
        ({"prompt": 3, "completion": "a"}, "sft", "content-type"),
        (PAIR, "sft", "wrong-task"),
        (GOOD, "dpo", "target-missing"),
        ({"prompt": "a", "chosen": "b"}, "dpo", "target-missing"),
        ({"prompt": "a", "chosen": "b", "rejected": None}, "dpo", "target-missing"),
        ({"chosen": "b", "rejected": "c"}, "dpo", "prompt-missing"),
        ({"chosen": [user("a"), assistant("b")], "rejected": [user("z"), assistant("c")]}, "dpo", "prompts-differ"),
        ({"prompt": "z", "chosen": [user("a"), assistant("b")], "rejected": [user("a"), assistant("c")]}, "dpo", "prompts-differ"),
        ({"prompt": "a", "chosen": [user("a")], "rejected": [user("a"), assistant("c")]}, "dpo", "target-missing"),
        ({"text": "a"}, "prompts", "wrong-layout"),
        ({"text": 4}, "sft", "content-type"),
    ],
)  # fmt: skip
def test_refusals(row, task, code):
    assert refused(row, task) == code


def test_forced_layout():
    assert refused({"text": "a"}, layout="alpaca") == "wrong-layout"
    assert refused({"instruction": "a", "output": "b"}, layout="messages") == "wrong-layout"
    assert refused(GOOD, "dpo", layout="messages") == "wrong-layout"
    assert canonical({**GOOD, "text": "x"}, layout="text")[1] == "text"


def test_every_fault_of_a_row_is_told():
    notes = Notes()
    with pytest.raises(Refused):
        canonical_row(chat({"role": "x", "content": "a"}, {"role": "y", "content": "b"}, user(3)), "sft", notes)
    assert [note.path for note in notes.found] == ["messages[0].role", "messages[1].role"]


@pytest.mark.parametrize(
    ("row", "task"),
    [
        (PAIR, "dpo"), ({"chosen": "a"}, "dpo"), (GOOD, "sft"), ([user("a")], "sft"), ({"prompt": "a"}, "prompts"),
        ({"prompt": "a", "completion": "b"}, "sft"), ({"text": "a"}, "sft"), (5, None),
        (None, None), ({}, None), ([], None), ({"text": None}, None), ({"notes": "a"}, None), ("a", None),
        ({"prompt": "a", "completion": None}, None), ({"prompt": "a", "chosen": None, "rejected": None}, None),
        ({"prompt": "a", "notes": None}, "prompts"), ({"messages": GOOD["messages"], "chosen": None}, "sft"),
        ({"id": 1, "prompt": "a", "response": "b", "finish_reason": "stop"}, "responses"),
    ],
)  # fmt: skip
def test_task_is_told_by_a_row(row, task):
    assert detect_task(row) == task


def test_role_table_is_closed():
    assert {canonical_role(name) for name in ROLES} == {"user", "assistant", "system", "tool", "call"}
    assert canonical_role(" GPT\n") == "assistant"
    assert canonical_role("narrator") is canonical_role("") is None


def test_tool_result_keeps_its_fields():
    row, _, _ = canonical(chat(user("a"), assistant("", tool_calls=[call()]), result(tool_call_id=4, name="get_tide")))
    assert row["messages"][2] == {"role": "tool", "content": "3.2", "tool_call_id": "4", "name": "get_tide"}
