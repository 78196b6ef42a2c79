"""Faults of conversations and texts, one by one, for the families where they matter."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gemma_trainer.data.checking.marks_in_text import WATCHED
from gemma_trainer.families.catalogue import family_names, get_family
from judging import IMAGE, ROUND, SYSTEM, TEXT, judge, judged_as, noted, pair
from preparing import GOOD, TOOLS, assistant, call, chat, user
from test_families import GOLDEN_FAMILIES

RENDERED = "<start_of_turn>user\na<end_of_turn>\n<start_of_turn>model\nb<end_of_turn>\n"


def system(content: str) -> dict:
    return {"role": "system", "content": content}


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
        # answers that say nothing of their own
        ("gemma4", chat(user("a"), assistant("<|channel>thought\nb\n<channel|>")), {"answer-empty", "inline-thought"}),
        ("gemma4", chat(user("a"), assistant("<think>b</think> ")), {"answer-empty", "think-tags"}),
        ("gemma3", chat(user("a"), assistant("<think>b</think>")), {"answer-empty", "think-tags"}),
        ("gemma4", chat(user("a"), assistant("b\n</think>\n\nc")), {"think-tags"}),
        ("gemma4", chat(user("a"), assistant("b\n</think>\n")), {"answer-empty", "think-tags"}),
        ("gemma3", chat(user("a"), assistant("</think> ")), {"answer-empty", "think-tags"}),
        ("gemma4", chat(user("a"), assistant("<think>b</think>\u200b")), {"answer-empty", "think-tags"}),
        ("gemma4", chat(user("a"), assistant("<thinking>b</thinking>")), {"answer-empty", "think-tags"}),
        ("gemma4", chat(user("a"), assistant("<thinking>b</thinking>c")), {"think-tags"}),
        ("gemma4", chat(user("a"), assistant("<thinking>b")), {"thought-unclosed"}),
        ("gemma4", chat(user("What closes <think>?"), assistant("The tag </think> does.")), set()),
        ("gemma4", chat(user("a"), assistant([IMAGE])), {"answer-empty"}),
        ("gemma4", chat(user("a"), assistant([IMAGE, TEXT])), {"media-in-answer"}),
        ("gemma3", chat(system(" "), *GOOD["messages"]), {"system-empty"}),
        ("gemma2", chat(system(""), *GOOD["messages"]), {"system-empty"}),
        ("gemma4", chat(user("a"), assistant("b", train=False), user("c"), assistant("d", training=True)), {"train-flag"}),
        ("gemma4", chat(user("a"), assistant("b", loss=False)), {"train-flag", "no-trained-token"}),
        ("gemma4", chat(user("a"), assistant("\u200b\ufeff ")), {"answer-empty"}),
        ("gemma4", chat(user("a"), assistant("\0 \0")), {"answer-empty", "nul-character"}),
        ("gemma4", chat(user("\u2060"), assistant("\u200da")), {"prompt-empty"}),
        ("gemma4", chat(user("a"), assistant("NULL")), {"blank-as-word"}),
        ("gemma4", chat(user("caf\ufffd"), assistant("b")), {"replacement-character"}),
        ("gemma2", chat(user("a"), assistant("[{'type': 'text', 'text': 'b'}]")), {"python-literal"}),
        ("gemma4", chat(user("a"), assistant("[{'kind': 'text'}] is a list in Python")), set()),
    ],
)  # fmt: skip
def test_fault_of_a_conversation(family, row, expected):
    judged_as(row, family, expected)


@pytest.mark.parametrize(
    ("family", "row", "expected"),
    [
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
        # ends of turns of other models
        ("gemma4", chat(user("a"), assistant("b<|im_end|>\n")), {"terminator-in-answer"}),
        ("gemma4", chat(user("a"), assistant("b<|eot_id|>")), {"terminator-in-answer"}),
        ("gemma4", chat(user("a"), assistant("b<end_of_turn>")), {"terminator-in-answer"}),
        ("gemma3", chat(user("a"), assistant("b<turn|>")), {"terminator-in-answer"}),
        ("gemma4", chat(user("a"), assistant("b</s>")), {"terminator-in-answer"}),
        ("gemma4", chat(user("a"), assistant("<s>old</s>")), set()),
        ("gemma4", chat(user("a"), assistant("ChatML writes <|im_end|> there.")), set()),
        ("gemma4", chat(user("a"), assistant("<|channel|>analysis<|message|>b<|end|>")), {"terminator-in-answer", "foreign-markup"}),
        ("gemma4", chat(user("a"), assistant('<tool_call>\n{"name": "f"}\n</tool_call>')), {"foreign-markup"}),
        ("gemma4", chat(user("a"), assistant('[TOOL_CALLS] [{"name": "f"}]')), {"foreign-markup"}),
        ("gemma4", chat(user("what is <tool_call>?"), assistant("a tag, like <function>")), set()),
        ("gemma3", chat(user("<unused7> and <unused>"), assistant("b")), {"special-token"}),
        ("gemma4", chat(user("a"), assistant("<|image|> it is", weight=1), images=["media/dot.png"]), {"media-in-answer"}),
    ],
)  # fmt: skip
def test_control_tokens(family, row, expected):
    judged_as(row, family, expected)


@pytest.mark.parametrize(
    ("family", "row", "expected"),
    [
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
        ("gemma4", chat(user("a"), assistant("b", reasoning_content="c<turn|>")), {"reasoning-template", "control-token"}),
        ("gemma4", chat(user("a"), assistant("b", reasoning_content="<|channel>thought\nc<channel|>")),
         {"reasoning-template", "control-token"}),
        ("gemma3", chat(user("a"), assistant("b", reasoning_content=5)), {"content-type"}),
        ("gemma4", chat(system("<|think|>\nBe brief."), user("a"), assistant("b", reasoning_content="c")),
         {"think-switch", "reasoning-template"}),
        ("gemma4", chat(system("<|think|>"), *GOOD["messages"]), {"think-switch", "thinking-unused"}),
        ("gemma4", chat(system("Be <|think|> brief."), *GOOD["messages"]), {"control-token"}),
        ("gemma4", chat(system("<|think|>a"), *GOOD["messages"], chat_template_kwargs={"enable_thinking": False}), {"control-token"}),
        ("gemma3", chat(system("<|think|>a"), *GOOD["messages"]), {"foreign-token"}),
        ("gemma4", {**GOOD, "chat_template_kwargs": {"enable_thinking": True}}, {"thinking-unused"}),
        ("gemma3", {**GOOD, "chat_template_kwargs": {"enable_thinking": "false"}}, {"template-kwargs-invalid"}),
        ("gemma4", chat(user("a"), assistant("", reasoning_content="r", tool_calls=[call()]), *ROUND[2:], user("b"), assistant("c"),
                        tools=TOOLS, chat_template_kwargs={"preserve_thinking": True}), set()),
    ],
)  # fmt: skip
def test_thinking(family, row, expected):
    judged_as(row, family, expected)


@pytest.mark.parametrize(
    ("family", "row", "expected"),
    [
        # parts for families that print them
        ("gemma2", chat(user([TEXT]), assistant([TEXT])), {"parts-joined"}),
        ("gemma2", chat(user([IMAGE, TEXT]), assistant("b")), {"modality-unsupported"}),
        ("gemma3", chat(user([TEXT]), assistant([TEXT])), set()),
        ("gemma3", chat({"role": "system", "content": [TEXT, TEXT]}, *GOOD["messages"]), {"parts-joined"}),
        ("gemma4", chat({"role": "system", "content": [TEXT, TEXT]}, *GOOD["messages"]), set()),
        ("gemma4", chat(user([{"type": "text", "text": "Look at "}, TEXT]), assistant("b")), {"parts-joined"}),
        ("gemma3", chat(user([TEXT, TEXT]), assistant("b")), {"parts-glued"}),
        ("gemma4", chat(user([TEXT, IMAGE, TEXT]), assistant("b")), set()),
        ("gemma4", chat({"role": "system", "content": [IMAGE]}, *GOOD["messages"]), {"media-lost"}),
        ("gemma2", chat({"role": "system", "content": [IMAGE]}, *GOOD["messages"]),
         {"media-lost", "system-refused", "modality-unsupported"}),
    ],
)  # fmt: skip
def test_parts(family, row, expected):
    judged_as(row, family, expected)


@pytest.mark.parametrize(
    ("family", "row", "expected"),
    [
        # text
        ("gemma4", {"text": " "}, {"text-empty"}),
        ("gemma4", {"text": "High water twice a day."}, {"text-plain"}),
        ("gemma3", {"text": "<bos><start_of_turn>user\na<end_of_turn>\n"}, {"text-bos", "text-rendered"}),
        ("gemma3", {"text": "<start_of_turn>user\na"}, {"text-terminator-missing", "text-rendered"}),
        ("gemma3", {"text": "<|turn>user\na<turn|>\n"}, {"text-wrong-family"}),
        ("gemma4", {"text": "<start_of_turn>user\na<end_of_turn>\n"}, {"text-wrong-family"}),
        ("gemma4", {"text": "### Instruction:\na\n\n### Response:\nb"}, {"text-instruction-style"}),
        ("gemma4", {"text": "<|im_start|>user\na<|im_end|>"}, {"foreign-markup"}),
        ("gemma3", {"text": "<bos>The sea is calm."}, {"text-bos", "text-plain"}),
        ("gemma4", {"text": "<bos>The sea is calm."}, {"text-plain"}),
        ("gemma4", {"text": "<bos><bos>The sea is calm.<eos>"}, {"text-bos", "text-plain"}),
        ("gemma4", {"text": "The sea<eos> is calm."}, {"special-token", "text-plain"}),
        ("gemma3", {"text": "The sea<end_of_turn> is calm."}, {"control-token", "text-plain"}),
        ("gemma3", {"text": "Is the sea calm? Yes.<end_of_turn>"}, {"text-plain"}),
        ("gemma3", {"text": "The sea is calm. "}, {"trailing-blank", "text-plain"}),
        ("gemma3", {"text": "The sea is calm.\n"}, {"text-plain"}),
        ("gemma3", {"text": "\u200b"}, {"text-empty"}),
        *((family, {"text": text}, {"text-empty"}) for family in ("gemma2", "gemma4")
          for text in ("<bos>", "<bos> \n", "<bos><bos>", "<eos>", "<bos><eos>")),
        ("gemma3", {"text": "<start_of_turn>user\na<end_of_turn>\n<start_of_turn>model\n"}, {"answer-empty", "text-rendered"}),
        ("gemma3", {"text": RENDERED}, {"text-rendered"}),
        ("gemma3", {"text": RENDERED + "<eos>"}, {"text-rendered"}),
        ("gemma3", {"text": RENDERED.replace("model", "assistant")}, {"text-rendered", "text-role-unknown"}),
        ("gemma3", {"text": RENDERED.replace("user", "system")}, {"text-rendered", "text-role-unknown"}),
        ("gemma3", {"text": RENDERED.replace("user\n", "user ")}, {"text-rendered", "text-turns-differ"}),
        ("gemma3", {"text": RENDERED.replace("<end_of_turn>\n<", "<end_of_turn><")}, {"text-rendered", "text-turns-differ"}),
    ],
)  # fmt: skip
def test_fault_of_a_text(family, row, expected):
    judged_as(row, family, expected)


def test_texts_of_the_goldens_are_laid_out_as_the_template_does(goldens):
    forged = {"32_tool_without_call", "36_unknown_role", "37_control_token_in_user_text", "52_sharegpt_roles_unmapped"}
    told = {"control-token", "text-role-unknown", "text-turns-differ"}
    for golden in goldens:
        for family in (name for name, source in GOLDEN_FAMILIES.items() if source == golden["family"]):
            if golden.get("rendered") and judge({"text": golden["rendered"]}, family)[1] & told:
                assert golden["name"] in forged


def test_a_think_switch_renders_as_the_template_writes_it():
    raw = chat(system("<|think|>\nBe brief."), *GOOD["messages"])
    data, _ = judge(raw)
    assert data["chat_template_kwargs"] == {"enable_thinking": True} and data["messages"][0]["content"] == "Be brief."
    render = get_family("gemma4").render
    as_found = "".join(piece.text for piece in render(raw["messages"]))
    assert "".join(piece.text for piece in render(data["messages"], None, False, enable_thinking=True)) == as_found
    alone, _ = judge(chat(system("<|think|>"), *GOOD["messages"]))
    assert alone["messages"] == GOOD["messages"]
    both, _ = judge({**pair(), "prompt": [system("<|think|>x"), user("a")]}, task="dpo")
    assert both["prompt"][0]["content"] == "x" and both["chat_template_kwargs"] == {"enable_thinking": True}


def test_repairs_of_parts_lose_no_text():
    apart = [{"type": "text", "text": "Look at "}, {"type": "text", "text": "this."}, IMAGE]
    data, _ = judge(chat(user(apart), assistant("b")), "gemma3")
    assert data["messages"][0]["content"] == [{"type": "text", "text": "Look at this."}, IMAGE]
    data, _ = judge(chat({"role": "system", "content": [TEXT, {**TEXT, "text": "No."}]}, *GOOD["messages"]), "gemma3")
    assert data["messages"][0]["content"] == "What is it? No."


def test_a_train_flag_becomes_a_weight():
    data, _ = judge(chat(user("a"), assistant("b", train=False), user("c"), assistant("d", loss=True)))
    assert [message.get("weight") for message in data["messages"]] == [None, 0, None, 1]
    assert not {"train", "loss"} & {key for message in data["messages"] for key in message}


def test_paths_point_into_the_row():
    row = pair(prompt=[user("a")], chosen=[assistant("b")], rejected=[assistant("<|turn>")])
    assert [note.path for note in noted(row, task="dpo")[1].found] == ["rejected[0].content"]
    row = pair(prompt=[user([{**IMAGE, "image": "media/no.png"}, TEXT])])
    assert [note.path for note in noted(row, task="dpo")[1].found] == ["prompt[0].content[0]"]


words = st.sampled_from(
    [
        *WATCHED,
        "<",
        "<|",
        ">",
        "think",
        "[{",
        "'type': 'text'",
        "unused9>",
        "a",
        "\n",
        "INST]",
        "x[/INST]",
        "</s",
        "|>",
        "{",
    ]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(words, min_size=1, max_size=5).map("".join), st.sampled_from(family_names()))
@example("[{'type': 'text'}]", "gemma3")
@example("<tool_call>{", "gemma4")
def test_texts_without_a_watched_mark_have_no_marks(text, family):
    """The fast path accepts such texts unseen."""
    told = (
        judge(chat(user(text), assistant(f"Yes {text}")), family)[1]
        | judge(chat(user("a"), assistant(text)), family)[1]
    )
    if not any(mark in text for mark in WATCHED):
        assert told <= {"prompt-empty", "answer-empty"}


@pytest.mark.parametrize(
    ("messages", "fix"),
    [
        ((user("a"), user("b"), assistant("c")), None),  # that of the code: merge-turns
        ((assistant("a"), user("b"), assistant("c")), "Drop the first message"),
        ((SYSTEM, assistant("a"), user("b"), assistant("c")), "Drop the first message"),
    ],
)
def test_turns_are_merged_only_where_there_are_two(messages, fix):
    (note,) = [note for note in noted(chat(*messages), "gemma3")[1].found if note.code == "roles-not-alternating"]
    assert note.fix is None if fix is None else note.fix.startswith(fix)


def test_an_assistant_message_without_content_is_told_in_english():
    (note,) = noted(chat(user("a"), {"role": "assistant"}))[1].found
    assert note.message == "an assistant message has no content"
