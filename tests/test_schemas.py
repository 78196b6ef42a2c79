"""assets/schemas and the pipeline agree on what a canonical row is; what passes the checks can be rendered."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conversations import Maker
from gemma_trainer.data.checking.explain import EXPLAINED, explain
from gemma_trainer.data.render import Renderer
from gemma_trainer.families.catalogue import family_names, get_family
from gemma_trainer.rows.codes import CODES
from gemma_trainer.rows.content import texts
from judging import IMAGE, ROUND, SYSTEM, TEXT, judge, noted, pair
from preparing import GOOD, TOOLS, assistant, call, chat, result, row_validator, user

PROMPT = {"prompt": [SYSTEM, user("a")]}
PAIR = {"prompt": [user("a")], "chosen": [assistant("b")], "rejected": [assistant("c")]}
AGENT = chat(*ROUND, tools=TOOLS)


def is_refused(notes, data) -> bool:
    return data is None or any(CODES[note.code].severity == "error" for note in notes.found)


def without_nulls(row: dict) -> dict:
    return {key: value for key, value in row.items() if value is not None}


# Broken rows: the schema refuses them, and so do the checks


@pytest.mark.parametrize(
    ("task", "row", "path", "words"),
    [
        ("sft", {"x": 1}, None, "the row: it has none of messages, text, input_ids"),
        ("sft", chat(), None, "messages: the list is empty"),
        ("sft", {"messages": 5}, None, "messages: 5 is not a list"),
        ("sft", chat("a"), None, "messages[0]: text is not an object"),
        ("sft", chat(user("a")), None, "messages: no message is the assistant's"),
        ("sft", chat(user("a"), {"role": "assistant"}), None, "messages[1]: `content` is missing"),
        ("sft", chat(user("a"), {"content": "b"}), None, "messages[1]: `role` is missing"),
        ("sft", chat(user("a"), assistant(5)), None, "messages[1].content: 5 is neither text nor a list"),
        ("sft", chat(user("a"), assistant(None)), None, "messages[1]: `tool_calls` is missing"),
        ("sft", chat(user({"a": 1}), assistant("b")), None, "messages[0].role: `user` is not tool"),
        ("sft", chat(user("a"), {"role": "narrator", "content": "b"}, assistant("c")), "messages[1].role",
         "messages[1].role: `narrator` is not system or user or assistant or tool"),
        ("sft", chat(user([{"type": "smell"}]), assistant("b")), "messages[0].content[0]",
         "messages[0].content[0].type: `smell` is not text or image or audio or video or input_audio"),
        ("sft", chat(user([{"type": "text"}]), assistant("b")), None, "messages[0].content[0]: `text` is missing"),
        ("sft", chat(user(["a"]), assistant("b")), None, "messages[0].content[0]: text is not an object"),
        ("sft", chat(user("a"), assistant("b", weight=2)), None, "messages[1].weight: 2 is not 0 or 1"),
        ("sft", chat(user("a", tool_calls=[call()]), assistant("b")), None, "messages[0].role: `user` is not assistant"),
        ("sft", chat(user("a"), assistant("", tool_calls=[{**call(), "function": {"arguments": {}}}])), None,
         "messages[1].tool_calls[0].function: `name` is missing"),
        ("sft", chat(user("a"), assistant("", tool_calls=[{**call(), "function": {"name": "f", "arguments": []}}])), None,
         "messages[1].tool_calls[0].function.arguments: a list is not an object"),
        ("sft", {**GOOD, "tools": 5}, None, "tools: 5 is not a list"),
        ("sft", {**GOOD, "tools": [{"type": "function", "function": {"name": " "}}]}, None,
         "tools[0].function.name: text is not taken here"),
        ("sft", {**GOOD, "tools": [{"type": "function", "function": {"name": "f", "description": 5}}]}, None,
         "tools[0].function.description: 5 is not text"),
        ("sft", {**GOOD, "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}]}, None,
         "tools[0].function.parameters.type: `string` is not taken here"),
        ("sft", {**GOOD, "chat_template_kwargs": 5}, None, "chat_template_kwargs: 5 is not an object"),
        ("sft", {**GOOD, "chat_template_kwargs": {"tools": []}}, None, "chat_template_kwargs: `tools` is not taken here"),
        ("sft", {**GOOD, "chat_template_kwargs": {"enable_thinking": "no"}}, None,
         "chat_template_kwargs.enable_thinking: text is not true or false"),
        ("sft", {"text": ""}, None, "text: the text is empty"),
        ("sft", {"text": 5}, None, "text: 5 is not text"),
        ("dpo", {"prompt": [user("a")], "chosen": [assistant("b")]}, "rejected", "the row: `rejected` is missing"),
        ("dpo", {**PAIR, "chosen": [user("b")]}, None, "chosen[0].role: `user` is not assistant"),
        ("dpo", {**PAIR, "chosen": [assistant("b"), user("c")]}, None, "chosen[1].role: `user` is not assistant or tool"),
        ("dpo", {**PAIR, "rejected": []}, None, "rejected: the list is empty"),
        ("rm", {**PAIR, "margin": True}, None, "margin: true or false is not a number"),
        ("prompts", {"prompt": []}, None, "prompt: the list is empty"),
        ("prompts", {"prompt": [user(7)]}, None, "prompt[0].content: 7 is neither text nor a list"),
    ],
)  # fmt: skip
def test_schema_and_checks_refuse_what_is_broken(task, row, path, words):
    assert not row_validator(task).is_valid(row)
    data, notes = noted(row, task=task)
    assert is_refused(notes, data)
    assert explain(row, task, path) == words


@pytest.mark.parametrize(
    ("task", "row"), [("sft", GOOD), ("sft", AGENT), ("dpo", PAIR), ("rm", PAIR), ("prompts", PROMPT)]
)
def test_nothing_is_explained_of_a_row_that_fits(task, row):
    assert explain(row, task) is None


def test_faults_are_explained_at_the_place_that_the_checks_name():
    row = chat(user("a", weight=3), {"role": "bot x", "content": "b"}, assistant([{"type": "smell"}]))
    _, notes = noted(row)
    found = [(note.code, explain(row, "sft", note.path)) for note in notes.found if note.code in EXPLAINED]
    assert found == [
        ("weight-invalid", "messages[0].weight: 3 is not 0 or 1"),
        ("role-unknown", "messages[1].role: text is not system or user or assistant or tool"),
        ("part-invalid", "messages[2].content[0].type: `smell` is not text or image or audio or video or input_audio"),
    ]
    assert set(CODES) >= EXPLAINED


def test_an_explanation_shows_no_sample_text():
    secret = "The harbour master sleeps at noon. " * 40
    for row in ({"messages": secret}, chat({"role": secret, "content": "a"}), {**GOOD, "tools": [secret]}):
        assert "harbour" not in explain(row, "sft") and len(explain(row, "sft")) < 120


def test_only_the_place_that_is_asked_for_is_explained():
    row = chat({"role": "human", "content": "a"}, assistant(7), assistant([{"type": "text", "text": 3}]))
    assert explain(row, "sft", "messages[1].content") == "messages[1].content: 7 is neither text nor a list"
    assert explain(row, "sft", "messages[2]") == "messages[2].content[0].text: 3 is not text"
    assert explain(row, "sft", "messages[3]") is None and explain([row], "sft") is None


# Rows that the checks accept fit the schema


@pytest.mark.parametrize("family", family_names())
def test_rows_of_goldens_and_random_conversations_fit_the_schema(family, goldens):
    rows = [{key: golden[key] for key in ("messages", "tools") if key in golden} for golden in goldens]
    for seed in range(300):
        maker = Maker(seed, plain=seed % 3 == 0)
        rows.append({"messages": maker.messages(), "tools": maker.tools(), "chat_template_kwargs": maker.options()})
    validator, fitting = row_validator("sft"), 0
    for row in rows:
        data, notes = noted(row, family)
        if not is_refused(notes, data):
            fitting += 1
            assert validator.is_valid(data), explain(data, "sft")
    assert fitting > 30


@pytest.mark.parametrize("family", family_names())
def test_what_the_template_leaves_out_is_told(family):
    """Every text of an accepted row stands in what is rendered, or a code says that it does not."""
    renderer, looked_at = Renderer(get_family(family)), 0
    for seed in range(600):
        maker = Maker(seed, plain=seed % 2 == 0)
        data, notes = noted({"messages": maker.messages(), "tools": maker.tools()}, family)
        if is_refused(notes, data) or {note.code for note in notes.found} & {"reasoning-lost", "inline-thought"}:
            continue
        text = renderer.render(data).text
        said = [words.strip() for message in data["messages"] for _, words in texts(message)]
        assert [words for words in said if words not in text] == []
        looked_at += len(said)
    assert looked_at > 30


def test_nulls_and_other_columns_are_taken():
    nulls = dict.fromkeys(("name", "tool_calls", "tool_call_id", "reasoning_content", "weight"))
    row = {
        **chat(user("a", **nulls), assistant("b", **nulls)),
        "tools": None,
        "chat_template_kwargs": None,
        "label": True,
    }
    row_validator("sft").validate(row)
    data, told = judge(row)
    assert not told and data == {**chat(user("a"), assistant("b")), "label": True}
    row_validator("dpo").validate({**PAIR, "margin": None, "tools": None, "score": "x"})


@pytest.mark.parametrize("column", ["text", "labels", "attention_mask", "completion_mask", "assistant_masks", "label"])
@pytest.mark.parametrize("value", ["a\nb", "", [0.5], ["x"], {"a": 1}, 7])
def test_columns_beside_messages_mean_what_they_like(column, value):
    data, notes = noted({**GOOD, column: value})
    assert not is_refused(notes, data) and data[column] == value
    row_validator("sft").validate(data)


@pytest.mark.parametrize("column", ["labels", "attention_mask", "completion_mask", "assistant_masks"])
@pytest.mark.parametrize("value", ["ab", [0.5, 1], ["x", "y"], {"a": 1}, 7])
def test_columns_beside_token_ids_are_theirs(column, value):
    row = {"input_ids": [5, 6], column: value}
    data, notes = noted(row)
    assert is_refused(notes, data) and not row_validator("sft").is_valid(row)


contents = st.sampled_from(["a", " b ", "", "x\ny", "<b>", None, 4, [], [TEXT], [IMAGE, TEXT], {"k": [1, None]}])
messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "assistant", "system", "tool", "model"]), "content": contents},
    optional={
        "tool_calls": st.lists(st.sampled_from([call(), call(id=None), call("f", {"x": None}, "c2")]), max_size=2),
        "tool_call_id": st.sampled_from(["c1", "c2", 3]),
        "name": st.sampled_from(["get_tide", "f", None]),
        "reasoning_content": st.sampled_from(["r", "", None, 5]),
        "weight": st.sampled_from([0, 1, True, None]),
        "train": st.booleans(),
    },
)
schemas = st.recursive(
    st.sampled_from([None, "x", {"type": "string"}, {"type": ["string"]}, {"enum": [1]}, {}]),
    lambda inner: st.dictionaries(st.sampled_from(["type", "properties", "items", "required", "x"]), inner, max_size=3),
    max_leaves=6,
)
tools = schemas.map(lambda s: {"type": "function", "function": {"name": "f", "parameters": s}})
options = st.sampled_from([None, {}, {"enable_thinking": True}, {"enable_thinking": 1}, {"x": None}])
others = {"tools": st.none() | st.lists(tools, max_size=2), "chat_template_kwargs": options}
turns = st.lists(messages, max_size=6)
answers = turns | st.just([assistant("b")]) | st.just([assistant("", tool_calls=[call()]), result("x"), assistant("c")])
rows = {
    "sft": st.fixed_dictionaries({"messages": turns, **others}),
    "prompts": st.fixed_dictionaries({"prompt": turns, **others}),
    "dpo": st.fixed_dictionaries(
        {"prompt": turns | st.just([user("a")]), "chosen": answers, "rejected": answers, **others},
        optional={"margin": st.sampled_from([1, 0.5, None, "2", True])},
    ),
}


@settings(max_examples=300, deadline=None)
@given(st.data(), st.sampled_from(sorted(rows)), st.sampled_from(family_names()))
def test_valid_rows_render_and_fit_the_schema(data, task, family):
    row = data.draw(rows[task])
    before = json.dumps(row)
    clean, notes = noted(row, family, task)
    assert json.dumps(row) == before
    if is_refused(notes, clean):
        return
    row_validator(task).validate(clean)
    if json.dumps(clean) == json.dumps(without_nulls(row)):  # True == 1 in Python
        row_validator(task).validate(row)  # it was canonical already
    again = noted(clean, family, task)
    assert again[0] == clean and not again[1].repairs
    if task == "sft":
        rendered = Renderer(get_family(family)).render(clean)
        assert any(end > start for start, end, _ in rendered.spans)


# One change to a row that fits, by which it no longer does: the checks refuse it too, or mend it

VALUES = (None, True, 5, 2.5, "", "x", "<|turn>", [], ["x"], {}, {"x": 1})


def places(value: object, path: tuple = ()):
    """Paths to all values inside a value."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


def changed(row: dict, path: tuple, value: object) -> dict:
    """The row with another value at a path, or without it for `Ellipsis`."""
    row = copy.deepcopy(row)
    holder = row
    for step in path[:-1]:
        holder = holder[step]
    if value is Ellipsis:
        del holder[path[-1]]
    else:
        holder[path[-1]] = value
    return row


@pytest.mark.parametrize("family", ["gemma3", "gemma4", "functiongemma"])
@pytest.mark.parametrize(
    ("task", "row"),
    [("sft", chat(user([TEXT, IMAGE]), assistant("b", weight=1, reasoning_content="r"))), ("sft", AGENT), ("dpo", PAIR),
     ("dpo", {**pair(), **PAIR, "margin": 1}), ("prompts", PROMPT), ("sft", {"text": "a"}),
     ("sft", {"input_ids": [2, 5], "labels": [-100, 5], "attention_mask": [1, 1], "completion_mask": [0, 1]})],
)  # fmt: skip
def test_what_a_change_breaks_is_refused_or_mended(task, row, family):
    validator = row_validator(task)
    for path in places(row):
        if path[:1] == ("tools",) and "properties" in path:
            continue  # a schema of arguments, which may be anything
        for value in (..., *VALUES):
            raw = changed(row, path, value)
            data, notes = noted(raw, family, task)
            if not is_refused(notes, data):
                assert validator.is_valid(data), (path, value, explain(data, task))
