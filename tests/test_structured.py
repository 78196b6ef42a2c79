"""JSON answers, schemas and tool calls in text, against a teacher whose replies are written down."""

import asyncio
import json

import pytest

from gemma_trainer.distill.calls_in_text import calls_in_text
from gemma_trainer.distill.request import Request, Sampling
from gemma_trainer.distill.schemas import read_schema, validator, with_schema
from gemma_trainer.distill.structured import ask_samples, ask_value
from gemma_trainer.rows.problems import USAGE, Failure
from preparing import TOOLS, user
from teaching import Scripted

SCHEMA = {
    "type": "object",
    "properties": {"bread": {"type": "string"}, "hours": {"type": "integer", "minimum": 1}},
    "required": ["bread", "hours"],
    "additionalProperties": False,
}
FITS = validator(SCHEMA, "the schema")
GOOD = {"bread": "rye", "hours": 3}
REQUEST = Request("teacher", [user("Which bread, and how long?")], Sampling(max_tokens=100))


def asked(*replies):
    teacher = Scripted(*replies)
    return asyncio.run(ask_value(teacher.ask, REQUEST, FITS)), teacher


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(GOOD),
        f"```json\n{json.dumps(GOOD, indent=2)}\n```",
        f"Of course [1]:\n{json.dumps(GOOD)}\nEnjoy {{your}} bread!",
        str(GOOD),
        '{"bread": "rye", "hours": 3,}',
        f'{{"note": "a draft"}}\n{json.dumps(GOOD)}',
        json.dumps([GOOD]),
        json.dumps({"result": GOOD}),
    ],
)
def test_an_answer_that_can_be_read_is_asked_once(text):
    answer, teacher = asked(text)
    assert answer.value == GOOD and answer.fault is None and len(teacher.requests) == 1
    assert teacher.requests[0].schema == SCHEMA
    assert json.loads(answer.reply.content) == GOOD


def test_json_that_is_right_is_kept_letter_by_letter():
    text = '{"hours": 3,\n "bread": "rye"}'
    assert asked(text)[0].reply.content == text


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Rye, three hours.", "no JSON"),
        ("", "no JSON"),
        ('{"bread": "rye"}', "'hours' is a required property"),
        ('{"bread": "rye", "hours": "3"}', "hours: '3' is not of type 'integer'"),
        ('{"bread": "rye", "hours": 0}', "hours: 0 is less than the minimum"),
        ('{"bread": "rye", "hours": 3, "more": 1}', "'more' was unexpected"),
        (json.dumps([GOOD, GOOD]), "is not of type 'object'"),
    ],
)
def test_a_fault_is_told_and_asked_about_once(text, told):
    answer, teacher = asked(text, json.dumps(GOOD))
    assert answer.value == GOOD and len(teacher.requests) == 2
    messages = teacher.requests[1].messages
    assert told in messages[-1]["content"] and messages[0] == REQUEST.messages[0]
    assert [message["role"] for message in messages[1:-1]] == (["assistant"] if text else [])
    answer, teacher = asked(text, text)
    assert answer.value is None and answer.fault and len(teacher.requests) == 2  # and never a third time


def test_a_cut_answer_gets_more_room_instead_of_being_told():
    answer, teacher = asked(('{"bread": "ry', "length"), json.dumps(GOOD))
    assert answer.value == GOOD
    assert teacher.requests[1].messages == REQUEST.messages and teacher.requests[1].sampling.max_tokens == 200
    assert len(set(answer.ids)) == 2


def samples(count, *replies):
    teacher = Scripted(*replies)

    def make(wanted, attempt):
        return Request("teacher", [user(f"Write {wanted}.")], Sampling(), sample=attempt)

    return asyncio.run(ask_samples(teacher.ask, make, count, ["bread"], FITS)), teacher


def bread(number):
    return {"bread": f"bread {number}", "hours": number}


def test_whole_samples_of_a_cut_reply_stay_and_the_rest_is_asked_for():
    text = json.dumps([bread(1), bread(2), bread(3)])[:-20]
    found, teacher = samples(3, (text, "length"), json.dumps([bread(3), bread(4)]))
    assert [sample.value for sample in found.samples] == [bread(1), bread(2), bread(3)]
    assert [request.messages[0]["content"] for request in teacher.requests] == ["Write 3.", "Write 1."]
    assert [sample.reply.id for sample in found.samples] == [teacher.requests[at].id for at in (0, 0, 1)]
    assert found.faults


def test_a_sample_too_many_is_left_out_and_a_repeated_one_counts_once():
    found, _ = samples(2, json.dumps([bread(1), bread(1), bread(2), bread(3)]))
    assert [sample.value for sample in found.samples] == [bread(1), bread(2)]


def test_bad_samples_are_told_and_asked_for_once_more():
    found, teacher = samples(2, json.dumps([bread(1), {"bread": "x"}]), "no idea")
    assert (
        [sample.value for sample in found.samples] == [bread(1)]
        and len(found.faults) == 2
        and len(teacher.requests) == 2
    )


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{", '{"type": "nonsense"}', '{"$ref": "https://example.com/x.json"}', '{"$ref": "other.json"}'),
        *('{"$ref": "#"}', '{"allOf": [{"$ref": "#"}]}', '{"type": "string", "pattern": "("}', "[" * 100_000),
        '{"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}]}, "b": {"$ref": "#/$defs/a"}}}',
        '{"$ref": "#/$defs/none"}',
    ],
)
def test_a_schema_that_is_none_is_refused(tmp_path, text):
    path = tmp_path / "schema.json"
    path.write_text(text)
    with pytest.raises(Failure) as failure:
        read_schema(path)
    assert failure.value.exit_code == USAGE and "Traceback" not in str(failure.value)


def test_what_shows_of_a_schema_with_an_answer_only_ends_in_words():
    tree = validator(
        {"properties": {"a": {"$ref": "#"}, "b": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"$ref": "#/$defs/x"}}}, "it"
    )
    deep = {}
    for _ in range(5000):
        deep = {"a": deep}
    assert tree.fault({"a": {"a": {}}}) is None and tree.fault(deep) and tree.fault({"b": 1})
    with pytest.raises(Failure) as failure:
        validator({"properties": {"a": {"$ref": "#/$defs/none"}}}, "it").fault({"a": 1})
    assert failure.value.exit_code == USAGE


def test_a_schema_is_told_in_words():
    told = with_schema([user("Which bread?")], SCHEMA)
    assert told[0]["content"].startswith("Which bread?\n\n") and json.dumps(SCHEMA) in told[0]["content"]
    parts = with_schema([user([{"type": "text", "text": "Which?"}])], SCHEMA)
    assert parts[0]["content"][0]["text"] == "Which?" and "JSON Schema" in parts[0]["content"][1]["text"]


CALL = {"type": "function", "function": {"name": "get_tide", "arguments": {"station": "North"}}}
FLAT = json.dumps({"name": "get_tide", "arguments": {"station": "North"}})


@pytest.mark.parametrize(
    ("text", "rest", "calls"),
    [
        (f"<tool_call>\n{FLAT}\n</tool_call>", "", 1),
        (f"Let me look.\n<tool_call>{FLAT}</tool_call>\n<tool_call>{FLAT}</tool_call>", "Let me look.", 2),
        (f"<tool_call>{FLAT}", "", 1),
        (FLAT, "", 1),
        (f"```json\n{FLAT}\n```", "", 1),
        (f"[{FLAT}, {FLAT}]", "", 2),
        (json.dumps({"tool_calls": [{"function": json.loads(FLAT)}]}), "", 1),
        (json.dumps({"name": "get_tide", "parameters": {"station": "North"}}), "", 1),
        (json.dumps({"name": "get_tide", "arguments": '{"station": "North"}'}), "", 1),
        (f"[TOOL_CALLS] [{FLAT}]", "", 1),
        ('<function=get_tide>{"station": "North"}</function>', "", 1),
        ("```tool_code\nprint(get_tide(station='North'))\n```", "", 1),
        ('[get_tide(station="North")]', "", 1),
        ('<|tool_call>call:get_tide{station:<|"|>North<|"|>}<tool_call|>', "", 1),
        ("<start_function_call>call:get_tide{station:<escape>North<escape>}<end_function_call>", "", 1),
        ("The tide is high.", "The tide is high.", 0),
        (f"You could send {FLAT} to it.", f"You could send {FLAT} to it.", 0),
        (FLAT.replace("get_tide", "other"), FLAT.replace("get_tide", "other"), 0),
        ("print('hello')", "print('hello')", 0),
        ("get_tide(__import__('os').system('true'))", "get_tide(__import__('os').system('true'))", 0),
        ('{"station": "North"}', '{"station": "North"}', 0),
    ],
)
def test_calls_in_text(text, rest, calls):
    said, found = calls_in_text(text, TOOLS)
    assert said == rest
    assert (found or []) == [CALL] * calls


def test_text_is_no_call_where_no_tool_is_declared():
    assert calls_in_text(FLAT, None) == (FLAT, None)
