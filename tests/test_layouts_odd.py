"""Every value of every layout replaced by odd ones: a row comes out, or a reason, and the input stays as it was."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from gemma_trainer.data.exports.export import EXPORTS, export_row
from gemma_trainer.data.layouts.registry import TASKS, canonical_row, detect_task
from gemma_trainer.data.layouts.tokenised import check_tokenised
from gemma_trainer.data.model import describe_model
from gemma_trainer.data.notes import Notes, Refused
from gemma_trainer.families.catalogue import get_family
from gemma_trainer.rows.codes import CODES
from preparing import TOOLS, assistant, call, chat, result, user

ASKED, CHOSEN, REJECTED = [user("a")], [assistant("b")], [assistant("c")]
ROWS = [
    chat({"role": "system", "content": "s"}, *ASKED, assistant(None, tool_calls=[call()]), result(tool_call_id="c1"), *CHOSEN, tools=TOOLS),
    {"conversations": [{"from": "human", "value": "a"}, {"from": "function_call", "value": '{"name": "f", "arguments": {}}'},
                       {"from": "observation", "value": "x"}, {"from": "gpt", "value": "b"}], "system": "s", "tools": json.dumps(TOOLS)},
    {"conversations": [{"user": "a", "assistant": "b"}]}, {"conversations": {"from": ["human", "gpt"], "value": ["a", "b"]}},
    {"instruction": "a", "input": "b", "output": "c", "history": [["d", "e"]]}, {"question": "a", "answer": "b", "context": "c"},
    {"prompt": ASKED, "completion": CHOSEN, "label": True}, {"prompt": "a", "completions": ["b", "c"], "labels": [True, True]},
    {"prompt": "a", "responses": ["b", "c"], "scores": [1, 2]},
    {"contents": [{"role": "user", "parts": [{"text": "a"}, {"inlineData": {"mimeType": "image/png", "data": "x"}}]},
                  {"role": "model", "parts": [{"text": "b", "thought": True}, {"functionCall": {"name": "f", "args": {}}}]},
                  {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {"result": "x"}}}]},
                  {"role": "model", "parts": [{"text": "b"}]}], "systemInstruction": {"parts": [{"text": "s"}]},
     "tools": [{"functionDeclarations": [{"name": "f", "parameters": {"type": "OBJECT", "properties": {"x": {"type": "STRING"}}}}]}]},
    chat(user([{"type": "text", "text": "a"}, {"type": "image", "source": {"type": "url", "url": "x"}}]),
         assistant([{"type": "thinking", "thinking": "t"}, {"type": "tool_use", "id": "1", "name": "f", "input": {}}]),
         user([{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "x"}]}]), *CHOSEN,
         system=[{"type": "text", "text": "s"}], tools=[{"name": "f", "input_schema": {"type": "object"}}]),
    {"prompt": ASKED, "chosen": CHOSEN, "rejected": REJECTED, "margin": 1}, chat(*ASKED, *CHOSEN, rejected_messages=[*ASKED, *REJECTED]),
    {"input": {"messages": ASKED, "tools": TOOLS}, "preferred_output": CHOSEN, "non_preferred_output": REJECTED},
    {"contents": [{"role": "user", "parts": [{"text": "a"}]}], "completions": [
        {"score": score, "completion": {"role": "model", "parts": [{"text": text}]}} for score, text in ((1, "b"), (0, "c"))]},
    {"segments": [{"label": False, "text": "<|turn>user\na<turn|>\n<|turn>model\n"}, {"label": True, "text": "b<turn|>\n"}]},
    {"input_ids": [2, 3], "labels": [-100, 3], "attention_mask": [1, 1]}, {"text": "a"},
]  # fmt: skip
ODD = (
    None,
    True,
    0,
    -1.5,
    "",
    "x",
    "[",
    "[{'role': 'user'",
    '[{"role": "user", "content": "a"}]',
    "<|turn>",
    [],
    [[]],
    {},
    {"type": "text"},
)
GEMMA4, MODEL = get_family("gemma4"), describe_model("gemma4", None)


def replaced(value: object) -> Iterator[object]:
    """The value with one of the values inside it replaced, or left out."""
    yield from ODD
    if isinstance(value, dict):
        for key, inner in value.items():
            yield {name: item for name, item in value.items() if name != key}
            yield from ({**value, key: other} for other in replaced(inner))
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            yield from ([*value[:at], other, *value[at + 1 :]] for other in replaced(inner))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(row))
def test_odd_values(row):
    assert canonical_row(row, detect_task(row), Notes(), family=GEMMA4)
    taken = 0
    for odd in replaced(row):
        before, notes = json.dumps(odd), Notes()
        try:
            made = canonical_row(odd, detect_task(odd) or "sft", notes, family=GEMMA4).row
            taken += 1
            if "input_ids" in made:
                check_tokenised(made, notes)
            _export(made)
        except Refused as refusal:
            notes.found.append(refusal.note)
        assert {note.code for note in (*notes.found, *notes.repairs)} <= CODES.keys() and json.dumps(odd) == before
    assert taken


def _export(row: dict) -> None:
    for target in EXPORTS:
        if target != "pretokenized":
            try:
                json.dumps(export_row(row, target, MODEL))
            except Refused as refusal:
                assert refusal.note.code == "export-impossible"


@pytest.mark.parametrize("task", TASKS)
def test_every_layout_for_every_task(task):
    for row in ROWS:
        try:
            made = canonical_row(row, task, Notes(), family=GEMMA4).row
        except Refused as refusal:
            assert refusal.note.code in CODES
        else:
            again = canonical_row(made, task, Notes(), family=GEMMA4).row
            assert again == made  # what was made is canonical
