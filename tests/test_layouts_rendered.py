"""Text that a chat template wrote -> messages that render to it again."""

from __future__ import annotations

import pytest

from conversations import Maker
from gemma_trainer.data.layouts.registry import canonical_row
from gemma_trainer.data.notes import Notes, Refused
from gemma_trainer.families.catalogue import get_family
from gemma_trainer.families.family import RenderError
from preparing import TOOLS, assistant, call, chat, result, user

SYSTEM = {"role": "system", "content": "Be brief."}


def rendered(row: dict, family: str) -> str:
    options = row.get("chat_template_kwargs", {})
    return "".join(p.text for p in get_family(family).render(row["messages"], row.get("tools"), False, **options))


def parsed(text: str, family: str, task: str = "sft", layout: str = "rendered", **more) -> tuple[dict, list[str]]:
    notes = Notes()
    value = {"segments": text} if layout == "segments" else {"text": text}
    row = canonical_row({**value, **more}, task, notes, layout, family=get_family(family)).row
    return row, [note.code for note in notes.repairs if note.code != "layout-converted"]


def refused(text: str, family: str, **options) -> str:
    with pytest.raises(Refused) as caught:
        parsed(text, family, **options)
    return caught.value.note.code


@pytest.mark.parametrize("family", ["gemma3", "gemma3n", "gemma4", "gemma4-large", "functiongemma"])
@pytest.mark.parametrize("row", [
    chat(user("a"), assistant("b")),
    chat(user("a\n\nb"), assistant("x <b>y</b>"), user("c"), assistant("d"), id=7),
])  # fmt: skip
def test_plain_turns(row, family):
    text = rendered(row, family)
    for one in (text, text.removeprefix("<bos>"), text + "<eos>"):
        assert parsed(one, family, **{k: v for k, v in row.items() if k != "messages"}) == (row, [])
    cut = text.rstrip().removesuffix(get_family(family).turn_end)
    assert parsed(cut, family)[1] == ["text-terminator-missing"]


@pytest.mark.parametrize("family", ["gemma4", "functiongemma"])
@pytest.mark.parametrize(
    "row",
    [
        chat(SYSTEM, user("a"), assistant("b")),
        chat(user("a"), assistant(None, tool_calls=[call(id=None)]), tools=TOOLS),
        chat(
            SYSTEM, user("a"), assistant(None, tool_calls=[call(id=None)]), result(name="get_tide"), assistant("b"),
            user("c"), assistant("d"), tools=TOOLS,
        ),
        chat(user("a"), assistant(None, tool_calls=[call(arguments={
            "b": True, "n": None, "l": [1, -2.5, {"x": "y"}], "s": "a,b:{c}", "e": "", "o": {}})]), result("x", name="get_tide"), assistant("b")),
    ],
)  # fmt: skip
def test_calls_and_results(row, family):
    text = rendered(row, family)
    made, codes = parsed(text, family)
    assert rendered(made, family) == text and not codes
    assert [m["role"] for m in made["messages"]] == [m["role"] for m in row["messages"]]
    if family == "gemma4":  # FunctionGemma writes a description for every argument
        assert made.get("tools", []) == row.get("tools", [])
    calls = [c["function"] for m in row["messages"] for c in m.get("tool_calls", ())]
    assert [c["function"] for m in made["messages"] for c in m.get("tool_calls", ())] == calls


def test_thoughts():
    row = chat(
        user("a"), assistant(None, reasoning_content="Ask.", tool_calls=[call(id=None)]), result(name="get_tide"),
        assistant("b", reasoning_content="Now I know."), chat_template_kwargs={"enable_thinking": True},
    )  # fmt: skip
    assert parsed(rendered(row, "gemma4"), "gemma4") == (row, [])
    large = "<|turn>user\na<turn|>\n<|turn>model\n<|channel>thought\n<channel|>b<turn|>\n"
    assert parsed(large, "gemma4-large") == (chat(user("a"), assistant("b")), ["empty-thought"])


def test_prompts():
    assert parsed("<|turn>user\na<turn|>\n<|turn>model\n", "gemma4", "prompts")[0] == {"prompt": [user("a")]}


@pytest.mark.parametrize(
    ("text", "family", "code"),
    [
        ("a", "gemma4", "wrong-layout"), ("<start_of_turn>user\na<end_of_turn>\n", "gemma4", "text-wrong-family"),
        ("<|turn>user\na<turn|>\n", "gemma3", "text-wrong-family"),
        ("x<|turn>user\na<turn|>\n", "gemma4", "rendered-unclear"), ("<|turn>user\na<turn|>b", "gemma4", "rendered-unclear"),
        ("<|turn>narrator\na<turn|>\n", "gemma4", "role-unknown"),
        ("<start_of_turn>user\n a <end_of_turn>\n", "gemma3", "rendered-unclear"),
        ("<start_of_turn>model\na<end_of_turn>\n", "gemma3", "rendered-unclear"),
        ("<|turn>user\na<turn|>\n<|turn>model\n<|tool_call>call:f{x:1<tool_call|><turn|>\n", "gemma4", "rendered-unclear"),
        ("<|turn>user\na<turn|>\n<|turn>model\n<|channel>thought\nb<turn|>\n", "gemma4", "rendered-unclear"),
        ("<|turn>model\n", "gemma4", "messages-empty"),
        ("<|turn>user\na<turn|>\n<|turn>model\n<|tool_call>call:f{x:" + "1" * 5000 + "}<tool_call|><turn|>", "gemma4", "rendered-unclear"),
        ("<|turn>", "gemma4", "role-unknown"),
        ("<|turn>user\na<turn|>\n<|turn>model\n<|tool_call>call:f{" + "x:{" * 90 + "<tool_call|><turn|>", "gemma4", "rendered-unclear"),
    ],
)  # fmt: skip
def test_refusals(text, family, code):
    assert refused(text, family) == code


def test_tools_that_the_text_does_not_show_are_left_out():
    made, codes = parsed(rendered(chat(user("a"), assistant("b")), "gemma4"), "gemma4", tools=TOOLS)
    assert made == chat(user("a"), assistant("b")) and codes == ["column-ignored"]


@pytest.mark.parametrize("family", ["gemma3", "gemma4", "functiongemma"])
def test_whatever_is_taken_renders_to_the_same_text(family):
    taken = 0
    for seed in range(300):
        maker = Maker(seed, plain=seed % 4 > 0)
        row = {"messages": maker.plain_chat() if family == "gemma3" else maker.chat(), "tools": maker.tools()}
        try:
            text = rendered(row, family)
            made, codes = parsed(text, family)
        except (RenderError, Refused):
            continue
        taken += 1
        assert rendered(made, family).rstrip() == text.rstrip() or codes
    assert taken > 60


SEGMENTS = [(False, "<bos><start_of_turn>user\na<end_of_turn>\n<start_of_turn>model\n"), (True, "b<end_of_turn>\n")]


def segments(*pairs):
    return [{"label": label, "text": text} for label, text in pairs]


def test_segments():
    row, _ = parsed(segments(*SEGMENTS), "gemma3", layout="segments", id=1)
    assert row == chat(user("a"), assistant("b"), id=1)
    longer = [
        *SEGMENTS[:1],
        (False, "b<end_of_turn>\n"),
        *[(label, text.removeprefix("<bos>")) for label, text in SEGMENTS],
    ]
    row, _ = parsed(segments(*longer), "gemma3", layout="segments")
    assert row == chat(user("a"), assistant("b", weight=0), user("a"), assistant("b"))


@pytest.mark.parametrize(
    ("pairs", "code"),
    [
        ([(True, "<start_of_turn>user\na<end_of_turn>\n<start_of_turn>model\nb<end_of_turn>\n")], "segments-partial"),
        ([*SEGMENTS[:1], (False, "b"), (True, "c<end_of_turn>\n")], "segments-partial"), ([(True, "a")], "segments-raw"),
    ],
)  # fmt: skip
def test_segments_that_messages_cannot_say(pairs, code):
    assert refused(segments(*pairs), "gemma3", layout="segments") == code
