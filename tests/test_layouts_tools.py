"""Rows in the layouts of other tools and services -> canonical rows."""

from __future__ import annotations

import json

import pytest

from gemma_trainer.data.layouts.registry import LAYOUT_NAMES, LAYOUTS, canonical_row, detect_task
from gemma_trainer.data.layouts.tokenised import check_tokenised
from gemma_trainer.data.notes import Notes, Refused
from gemma_trainer.families.catalogue import get_family
from preparing import GOOD, TOOLS, assistant, call, chat, result, user

SYSTEM = {"role": "system", "content": "Be brief."}
ASKED, CHOSEN, REJECTED = [user("a")], [assistant("b")], [assistant("c")]
PAIR = {"prompt": ASKED, "chosen": CHOSEN, "rejected": REJECTED}
TOLD = "layout-converted"


def canonical(row, task="sft", **options):
    notes, before = Notes(), json.dumps(row)
    made = canonical_row(row, task, notes, family=get_family("gemma4"), **options)
    assert json.dumps(row) == before
    return made.row, made.layout, [note.code for note in notes.repairs] + [note.code for note in notes.found]


def refused(row, task="sft", **options) -> str:
    with pytest.raises(Refused) as caught:
        canonical(row, task, **options)
    return caught.value.note.code


def talk(*turns, **more):
    return {"conversations": list(turns), **more}


@pytest.mark.parametrize(
    ("row", "layout"),
    [
        (talk({"speaker": "Human", "text": "a"}, {"speaker": "gpt", "text": "b"}), "sharegpt"),
        (talk({"who": "a", "what": "user"}, {"who": "b", "what": "bot"}), "sharegpt"),
        ({"conversations": {"from": ["human", "gpt"], "value": ["a", "b"], "weight": None}}, "sharegpt"),
        ({"messages": {"role": ["user", "assistant"], "content": ["a", "b"]}}, "messages"),
        (chat({"role": "user", "text": "a"}, {"role": "assistant", "text": "b"}), "messages"),
        (chat({"author": "user", "content": "a"}, {"author": "assistant", "content": "b"}), "messages"),
        (talk({"user": "a", "assistant": "b"}), "sharegpt"),
        (chat({"assistant": "b", "user": "a"}), "messages"),
        ({"conversation": [{"human": "a", "bot": "b"}]}, "sharegpt"),
        ({"conversation": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}, "sharegpt"),
        ({"question": "a", "answer": "b"}, "qa"), ({"query": "a", "response": "b"}, "qa"),
        ({"problem": "a", "solution": "b"}, "qa"), ({"question": "a", "target": "b"}, "qa"),
        ({"input": "a", "output": "b"}, "qa"), ({"question": "a", "answer": "b", "solution": "b"}, "qa"),
        ({"prompt": "a", "completions": ["b"], "labels": [True]}, "stepwise"),
        ({"prompt": "a", "responses": ["c", "b"], "scores": [1, 2]}, "scored"),
        ({"contents": [{"role": "user", "parts": [{"text": "a"}]}, {"role": "model", "parts": [{"text": "b"}]}]}, "gemini"),
        ({"Instruction": "a", " OUTPUT": "b"}, "alpaca"), ({"Messages": [user("a"), assistant("b")]}, "messages"),
    ],
)  # fmt: skip
def test_one_question_and_its_answer(row, layout):
    made, name, codes = canonical(row)
    assert (made["messages"], name) == ([user("a"), assistant("b")], layout)
    assert TOLD in codes or "column-renamed" in codes
    assert canonical(made)[0] == made  # what was made is read as it stands


@pytest.mark.parametrize(
    ("row", "messages"),
    [
        ({"query": "a", "response": "b", "history": [["c", "d"]], "system": "Be brief."},
         [SYSTEM, user("c"), assistant("d"), user("a"), assistant("b")]),
        ({"query": "a", "response": "b", "history": '[["c", "d"]]'}, [user("c"), assistant("d"), user("a"), assistant("b")]),
        ({"question": "a", "context": "CREATE TABLE t", "answer": "b"}, [user("a\nCREATE TABLE t"), assistant("b")]),
        ({"instruction": "a", "context": "x", "response": "b"}, [user("a\nx"), assistant("b")]),
        ({"instruction": "a", "input": " ", "output": "b", "system": "", "history": ""}, [user("a"), assistant("b")]),
        (talk({"system": "Be brief.", "user": "a", "assistant": "b"}, {"user": "c", "assistant": "d"}),
         [SYSTEM, user("a"), assistant("b"), user("c"), assistant("d")]),
        ({"prompt": json.dumps([SYSTEM, *ASKED]), "completion": "b"}, [SYSTEM, user("a"), assistant("b")]),
        ({"prompt": json.dumps(ASKED), "completion": json.dumps(CHOSEN)}, [user("a"), assistant("b")]),
        ({"prompt": "a", "completion": json.dumps([user("x")])}, [user("a"), assistant(json.dumps([user("x")]))]),
        ({"prompt": "a", "completion": json.dumps(CHOSEN)}, [user("a"), assistant(json.dumps(CHOSEN))]),
        ({"prompt": ASKED, "completion": json.dumps(CHOSEN)}, [user("a"), assistant("b")]),
        ({"prompt": "a", "completions": '["b"]', "labels": "[true]"}, [user("a"), assistant("b")]),
        ({"contents": '[{"parts": [{"text": "a"}]}, {"role": "model", "parts": [{"text": "b"}]}]',
          "systemInstruction": '{"parts": [{"text": "Be brief."}]}'}, [SYSTEM, user("a"), assistant("b")]),
        ({"prompt": "[1, 2]", "completion": "b"}, [user("[1, 2]"), assistant("b")]),
        ({"prompt": "a", "completion": "b", "label": True}, [user("a"), assistant("b")]),
        ({"prompt": "a", "completions": ["b", "c"], "labels": [1, True]}, [user("a"), assistant("b\nc")]),
    ],
)  # fmt: skip
def test_messages_of(row, messages):
    assert canonical(row)[0]["messages"] == messages


def test_functions_are_tools():
    row = chat(
        user("a"),
        assistant(None, function_call={"name": "get_tide", "arguments": "{}"}),
        functions=[TOOLS[0]["function"]],
    )
    made, _, codes = canonical(row)
    assert made["tools"] == TOOLS and "functions" not in made and "function-call-legacy" in codes


def test_anthropic():
    row = {
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "tools": [{"name": "get_tide", "description": "Tide height.", "input_schema": TOOLS[0]["function"]["parameters"]}],
        "messages": [
            user([{"type": "text", "text": "a"}, {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "eA=="}}]),
            assistant([
                {"type": "thinking", "thinking": "Ask.", "signature": "x"},
                {"type": "tool_use", "id": "c1", "name": "get_tide", "input": {"station": "North"}},
            ]),
            user([{"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "3.2"}]}, {"type": "text", "text": "So?"}]),
            assistant([{"type": "text", "text": "3.2 metres."}]),
        ],
    }  # fmt: skip
    made, layout, codes = canonical(row, layout="anthropic")
    image = {"type": "image", "base64": "eA==", "mime_type": "image/png"}
    assert made["messages"] == [
        SYSTEM, user([{"type": "text", "text": "a"}, image]),
        assistant(None, reasoning_content="Ask.", tool_calls=[call()]), result(tool_call_id="c1"), user("So?"), assistant("3.2 metres."),
    ]  # fmt: skip
    assert made["tools"] == TOOLS and layout == "messages" and {TOLD, "tool-wrapped", "system-column"} <= set(codes)
    hidden = chat(user("a"), assistant([{"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "b"}]))
    assert canonical(hidden)[0] == chat(user("a"), assistant("b")) and "thought-redacted" in canonical(hidden)[2]
    assert (
        refused(chat(user([{"type": "document"}, {"type": "tool_result", "tool_use_id": "x"}]), assistant("b")))
        == "part-invalid"
    )


@pytest.mark.parametrize("snake", [False, True])
def test_gemini(snake):
    row = {
        "systemInstruction": {"role": "system", "parts": [{"text": "Be brief."}]},
        "tools": [{"functionDeclarations": [{
            "name": "get_tide", "description": "Tide height.",
            "parameters": {"type": "OBJECT", "required": ["station"], "properties": {
                "station": {"type": "STRING"}, "hour": {"type": "INTEGER"}}},
        }]}],
        "contents": [
            {"role": "user", "parts": [{"text": "a", "inlineData": None}, {"fileData": {"mimeType": "image/png", "fileUri": "gs://b/x.png"}}]},
            {"role": "model", "parts": [{"text": "Ask.", "thought": True}, {"functionCall": {"name": "get_tide", "args": {"station": "North"}}}]},
            {"role": "user", "parts": [{"functionResponse": {"name": "get_tide", "response": {"result": "3.2"}}}]},
            {"role": "model", "parts": [{"text": "3.2 metres."}]},
        ],
        "generationConfig": {"temperature": 0},
    }  # fmt: skip
    if snake:
        text = json.dumps(row)
        for name in ("functionDeclarations", "functionCall", "functionResponse", "fileData", "mimeType", "fileUri"):
            text = text.replace(f'"{name}"', '"' + "".join("_" + c.lower() if c.isupper() else c for c in name) + '"')
        row = json.loads(text.replace("systemInstruction", "system_instruction"))
    made, layout, codes = canonical(row)
    image = {"type": "image", "url": "gs://b/x.png", "mime_type": "image/png"}
    assert made["messages"] == [
        SYSTEM, user([{"type": "text", "text": "a"}, image]),
        assistant(None, reasoning_content="Ask.", tool_calls=[call(id=None)]), result(name="get_tide"), assistant("3.2 metres."),
    ]  # fmt: skip
    assert made["tools"] == TOOLS and made["generationConfig"] and layout == "gemini" and TOLD in codes


@pytest.mark.parametrize(
    "row",
    [
        {"question": "a", "chosen": "b", "rejected": "c"}, {"input": "a", "chosen": "b", "rejected": "c"},
        {"instruction": "a", "input": "", "chosen": "b", "rejected": "c"},
        {"instruction": "a", "chosen_response": "b", "rejected_response": "c"},
        {"prompt": "a", "chosen": [*ASKED, *CHOSEN], "rejected": [*ASKED, *REJECTED]},
        talk({"from": "human", "value": "a"}, chosen={"from": "gpt", "value": "b"}, rejected={"from": "gpt", "value": "c"}),
        chat(*ASKED, *CHOSEN, rejected_response="c"), chat(*ASKED, *CHOSEN, rejected_messages=REJECTED),
        chat(*ASKED, *CHOSEN, rejected_messages=[*ASKED, *REJECTED]), {"query": "a", "response": "b", "rejected_response": "c"},
        {"input": {"messages": ASKED}, "preferred_output": CHOSEN, "non_preferred_output": REJECTED},
        {"prompt": json.dumps(ASKED), "chosen": json.dumps(CHOSEN), "rejected": json.dumps(REJECTED)},
        {"chosen": json.dumps([*ASKED, *CHOSEN]), "rejected": json.dumps([*ASKED, *REJECTED])},
        chat(*ASKED, *CHOSEN, rejected_messages=json.dumps([*ASKED, *REJECTED])), chat(*ASKED, *CHOSEN, rejected_messages=json.dumps(REJECTED)),
        {"input": json.dumps({"messages": ASKED}), "preferred_output": json.dumps(CHOSEN), "non_preferred_output": json.dumps(REJECTED)},
        {"Prompt": "a", "Chosen": "b", "Rejected": "c"}, {**PAIR, "messages": None, "system": ""},
    ],
)  # fmt: skip
def test_preferences_of_other_tools(row):
    assert canonical(row, "dpo")[0] == PAIR and detect_task(row) == "dpo"


def test_what_stands_beside_a_pair_is_kept():
    row = {"question": "a", "system": "Be brief.", "chosen": "b", "rejected": "c", "id": 1}
    assert canonical(row, "dpo")[0] == {**PAIR, "prompt": [SYSTEM, *ASKED], "id": 1}
    asked = {"messages": ASKED, "tools": TOOLS, "parallel_tool_calls": False}
    row = {"input": asked, "preferred_output": CHOSEN, "non_preferred_output": REJECTED, "id": 1}
    assert canonical(row, "dpo")[0] == {**PAIR, "tools": TOOLS, "parallel_tool_calls": False, "id": 1}
    earlier = {"query": "a", "response": "b", "rejected_response": "c", "history": [["d", "e"]]}
    assert canonical(earlier, "dpo")[0]["prompt"] == [user("d"), assistant("e"), *ASKED]


def test_messages_beside_a_pair_are_told_and_left_out():
    made, _, codes = canonical({**PAIR, "messages": [*ASKED, *CHOSEN]}, "dpo")
    assert made == PAIR and codes == ["column-ignored"]


def test_scored_answers():
    row = {"prompt": "a", "responses": ["c", "b", "d"], "scores": [0.5, 2, 1]}
    made = {**PAIR, "margin": 1.5, "responses": row["responses"], "scores": row["scores"]}
    assert canonical(row, "rm")[:2] == (made, "scored") and detect_task(row) == "dpo"
    vertex = {
        "contents": [{"role": "user", "parts": [{"text": "a"}]}],
        "completions": [
            {"score": score, "completion": {"role": "model", "parts": [{"text": text}]}} for score, text in ((0, "c"), (1, "b"))
        ],
    }  # fmt: skip
    made = canonical(vertex, "dpo")[0]
    assert {key: made[key] for key in PAIR} == PAIR and made["margin"] == 1


@pytest.mark.parametrize(
    ("row", "task", "code"),
    [
        ({"prompt": "a", "completion": "b", "label": False}, "sft", "answer-undesired"),
        ({"prompt": "a", "completion": "b", "label": "False"}, "sft", "answer-undesired"),
        (talk({"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}, kto_tag=False), "sft", "answer-undesired"),
        ({**GOOD, "label": False}, "sft", "answer-undesired"),
        ({"prompt": "a", "completion": "b", "label": True}, "dpo", "target-missing"),
        ({"prompt": "a", "completions": ["b", "c"], "labels": [True, False]}, "sft", "steps-not-good"),
        ({"prompt": "a", "completions": ["b", "c"], "labels": [True]}, "sft", "steps-invalid"),
        ({"prompt": "a", "responses": ["b", "c"], "scores": [1]}, "sft", "scores-invalid"),
        ({"prompt": "a", "responses": ["b", "c"], "scores": [1, "x"]}, "dpo", "scores-invalid"),
        ({"prompt": "a", "responses": ["b", "c"], "scores": [1, 1]}, "dpo", "scores-all-equal"),
        ({"problem": "a", "solution": "b", "answer": "c"}, "sft", "columns-ambiguous"),
        ({"question": "a", "query": "b", "answer": "c"}, "sft", "columns-ambiguous"),
        ({"question": "a", "answer": ["b"]}, "sft", "content-type"),
        ({"question": "a", "chosen": "b", "rejected": "c"}, "sft", "wrong-task"),
        ({"input": {"messages": ASKED}, "preferred_output": CHOSEN, "non_preferred_output": REJECTED}, "sft", "wrong-task"),
        ({"input": {}, "preferred_output": CHOSEN, "non_preferred_output": REJECTED}, "dpo", "prompt-missing"),
        ({"messages": {"role": ["user"], "content": []}}, "sft", "messages-type"),
        ({"prompt": {"a": 1}, "completion": "b"}, "sft", "messages-type"),
        ({"chosen": "Human: a", "rejected": "Human: a\n\nAssistant: c"}, "dpo", "prompt-missing"),
        (chat(*ASKED, rejected_response="c"), "dpo", "target-missing"), ({"query": "a", "rejected_response": "c"}, "dpo", "target-missing"),
        ({"prompt": "[{'role': 'user', 'content': 'a'}]", "completion": "b"}, "sft", "python-literal"),
        (talk({"speaker": "Ann", "text": "a b"}, {"speaker": "Ann", "text": "b"}), "sft", "role-unknown"),
        (talk({"a": "x", "b": "y"}, {"a": "z", "b": "w"}), "sft", "role-missing"),
        (talk({"speaker": "user", "text": "a"}, {"speaker": "gpt"}), "sft", "answer-empty"),
        ({"contents": [{"role": "user", "parts": [{"executableCode": {}}]}]}, "sft", "part-invalid"),
        ({"contents": [{"role": "user", "parts": [{"functionCall": {"name": "f"}}]}]}, "sft", "tool-call-invalid"),
        ({"contents": "a"}, "sft", "messages-type"), ({"segments": [{"text": "a"}]}, "sft", "segments-invalid"),
        ({"segments": [{"label": False, "text": "a"}, {"label": True, "text": "b"}]}, "sft", "segments-raw"),
    ],
)  # fmt: skip
def test_refusals(row, task, code):
    assert refused(row, task) == code


def test_a_label_that_is_a_number_is_told():
    assert "label-as-number" in canonical({"prompt": "a", "completion": "b", "label": 0})[2]
    assert "label-as-number" not in canonical({**GOOD, "label": 0})[2]  # as likely a class


def test_a_mapped_column_wins_and_what_it_replaces_is_told():
    made, layout, codes = canonical(
        {"problem": "a", "solution": "b", "answer": "c"}, mapping={"prompt": "problem", "completion": "solution"}
    )
    assert made == {**chat(user("a"), assistant("b")), "answer": "c"} and layout == "prompt-completion" and not codes
    made, _, codes = canonical({**GOOD, "q": "a", "a": "b"}, mapping={"prompt": "q", "completion": "a"})
    assert made == chat(user("a"), assistant("b")) and codes == ["column-ignored"]
    made, _, codes = canonical({"text": "a", "body": "b"}, mapping={"text": "body"})
    assert made == {"text": "b"} and codes == ["column-ignored"]


IDS = [2, 105, 9, 8]


@pytest.mark.parametrize(
    ("columns", "code"),
    [
        ({"labels": [-100, -100, 9, 8]}, None), ({"assistant_masks": [0, 0, 1, 1], "attention_mask": [1] * 4}, None),
        ({"completion_mask": [False, False, True, True]}, None), ({"labels": json.dumps([-100, -100, 9, 8])}, None),
        ({}, "tokens-unmasked"), ({"labels": [-100] * 4}, "no-trained-token"), ({"assistant_masks": [0] * 4}, "no-trained-token"),
        ({"labels": [9, 8]}, "tokens-length"), ({"attention_mask": [1] * 5}, "tokens-length"),
        ({"labels": [105, 9, 8, -100]}, "labels-invalid"), ({"labels": [-100, -100, 9, 7]}, "labels-invalid"),
        ({"assistant_masks": [0, 0, 2, 1]}, "tokens-invalid"), ({"labels": "x"}, "tokens-invalid"), ({"labels": [0.5] * 4}, "tokens-invalid"),
        ({"input_ids": []}, "tokens-invalid"), ({"input_ids": [2, 2, 9, 8], "labels": [2, 2, 9, 8]}, "tokens-two-bos"),
    ],
)  # fmt: skip
def test_tokenised_rows(columns, code):
    notes = Notes()
    try:
        row, layout = canonical_row({"input_ids": IDS, "id": 1, **columns}, "sft", notes)
        assert layout == "pretokenized" and row["id"] == 1
        check_tokenised(row, notes)
    except Refused as refusal:
        notes.found.append(refusal.note)
    assert [note.code for note in notes.found] == ([code] if code else [])


def test_token_ids_beside_messages_are_left_out():
    assert canonical({**GOOD, "input_ids": IDS, "labels": IDS})[0] == GOOD
    assert canonical({**GOOD, "labels": ["bread"]})[0] == {**GOOD, "labels": ["bread"]}


def test_names_of_layouts_are_words_for_the_command_line():
    assert {*LAYOUT_NAMES.values()} - {"auto"} <= LAYOUTS.keys() and not LAYOUTS.keys() & LAYOUT_NAMES.keys()


@pytest.mark.parametrize(
    ("row", "task"),
    [
        ({"question": "a", "answer": "b"}, "sft"), ({"contents": []}, "sft"), ({"prompt": "a", "completions": [], "labels": []}, "sft"),
        ({"prompt": "a", "completion": "b", "label": True}, "sft"), ({"Prompt": "a"}, "prompts"), ('{"prompt": "a"}', "prompts"),
        ({"input_ids": [1]}, "sft"), (chat(user("a"), label=True), "sft"), ({"prompt": "a", "images": []}, "prompts"),
    ],
)  # fmt: skip
def test_task_is_told_by_a_row(row, task):
    assert detect_task(row) == task


def test_prompts_of_any_layout():
    for row in ({"question": "a"}, {"query": "a", "response": "b"}, {"prompt": "a", "completions": ["b"], "labels": [True]},
                {"contents": [{"parts": [{"text": "a"}]}]}, {"prompt": "a", "responses": ["b"], "scores": [1]}):  # fmt: skip
        assert canonical(row, "prompts")[0]["prompt"] == ASKED


# Shapes that are repaired, and told


_ASKS = {"name": "get_tide", "arguments": {"station": "North"}}


@pytest.mark.parametrize(
    ("answer", "tools", "told"),
    [
        (assistant(None, tool_calls=[call()]), TOOLS[0], ["tool-wrapped"]),
        (assistant(None, tool_calls=[call()]), json.dumps(TOOLS[0]), ["tool-wrapped"]),
        (assistant(None, tool_calls=call()), TOOLS, ["tool-wrapped"]),
        (assistant(None, tool_calls=json.dumps([call()])), TOOLS, ["text-decoded"]),
        (assistant(None, tool_calls=json.dumps(call())), TOOLS, ["text-decoded", "tool-wrapped"]),
        (assistant(None, tool_calls=[call()], function_call=_ASKS), TOOLS, ["function-call-legacy", "tool-wrapped"]),
        (assistant(None, tool_calls=[], function_call=_ASKS), TOOLS, ["function-call-legacy", "tool-wrapped"]),
    ],
)
def test_calls_and_tools_of_another_shape_are_told(answer, tools, told):
    row, _, notes = canonical(chat(user("a"), answer, tools=tools))
    [made] = row["messages"][1]["tool_calls"]
    assert made["function"] == call()["function"] and row["tools"] == TOOLS
    assert [code for code in notes if code != TOLD] == told


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_calls": [call()], "function_call": {"name": "other", "arguments": "{}"}},
        {"tool_calls": [call()], "function_call": {"name": "get_tide", "arguments": '{"station": "South"}'}},
        {"reasoning_content": "x", "reasoning": "y"},
        {"reasoning": "x", "thinking": "y"},
    ],
)
def test_a_message_that_says_two_things_is_refused(fields):
    assert refused(chat(user("a"), assistant("b", **fields))) == "message-ambiguous"


@pytest.mark.parametrize("calls", [[], "", "[]", {}, None])
def test_no_calls_are_no_calls(calls):
    row, _, _ = canonical(chat(user("a"), assistant("b", tool_calls=calls)))
    assert row == chat(user("a"), assistant("b"))


def test_the_same_reasoning_twice_is_said_once():
    row, _, _ = canonical(chat(user("a"), assistant("b", reasoning_content="x", reasoning="x\n")))
    assert row["messages"][1] == assistant("b", reasoning_content="x")
