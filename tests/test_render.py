"""Rendering follows the template at hand, and its text is that of the goldens."""

from __future__ import annotations

import pytest

from conversations import Maker
from gemma_trainer.data.render import Renderer, last_turn
from gemma_trainer.families.catalogue import family_names, get_family
from gemma_trainer.families.family import RenderError
from gemma_trainer.families.template import Template
from gemma_trainer.rows.codes import CODES
from official_templates import OLDER, official, older_gemma4
from test_families import GOLDEN_FAMILIES, rendered, thinking

CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]


def row_of(golden: dict) -> dict:
    return {
        "messages": golden["messages"],
        "tools": golden.get("tools"),
        "chat_template_kwargs": thinking(golden),
    }


def check(renderer: Renderer, golden: dict) -> None:
    prompt = golden["add_generation_prompt"]
    if golden["rendered"] is None:
        with pytest.raises(RenderError) as caught:
            renderer.render(row_of(golden), "assistant", prompt)
        assert caught.value.code in CODES and caught.value.path.startswith("messages")
        return
    assert renderer.render(row_of(golden), "assistant", prompt).text == golden["rendered"], golden["name"]
    if prompt:
        assert renderer.prompt(row_of(golden)) == golden["rendered"]
        args = golden["messages"], golden.get("tools")
        assert renderer.prompt(*args, **thinking(golden)) == golden["rendered"]


@pytest.mark.parametrize("name", family_names())
def test_goldens_without_a_template(name, goldens):
    renderer = Renderer(get_family(name))
    assert renderer.origin == "packaged" and renderer.template_hash is None
    for golden in goldens:
        if golden["family"] == GOLDEN_FAMILIES[name]:
            check(renderer, golden)


@pytest.mark.parametrize("name", family_names())
def test_goldens_through_jinja(name, goldens):
    """With a comment in front a template has an unknown hash: Jinja renders, masks come from the pieces."""
    template = official(name)
    known, unknown = (
        Renderer(get_family(name), template),
        Renderer(get_family(name), Template("{#- x -#}" + template.source)),
    )
    assert (known.origin, unknown.origin) == ("direct", "template")
    assert known.template_hash == template.sha256 != unknown.template_hash
    for golden in goldens:
        if golden["family"] == GOLDEN_FAMILIES[name]:
            check(unknown, golden)
            if golden["rendered"] is not None:
                assert unknown.render(row_of(golden)) == known.render(row_of(golden)), golden["name"]


@pytest.mark.parametrize("revision", ["r1", "r4"])
def test_goldens_of_older_revisions(revision, goldens):
    renderer = Renderer(get_family("gemma4"), older_gemma4(revision))
    assert (renderer.origin, renderer.revision) == ("template", revision)
    mine = [golden for golden in goldens if golden["family"] == f"gemma4_small_{revision}"]
    assert len(mine) in (14, 6)
    for golden in mine:
        check(renderer, golden)


@pytest.mark.parametrize("name", ["gemma3", "gemma4", "gemma4-large"])
def test_marks_and_pieces_agree(name):
    """Spans found by marks in Jinja's text equal those of the direct renderer, wherever both exist."""
    from gemma_trainer.data.marks import _Parser, _veiled_text

    family, template = get_family(name), official(name)
    compared = 0
    for seed in range(300):
        maker = Maker(seed, plain=True)
        messages, tools, options = maker.chat(), maker.tools(), maker.options()
        text = rendered(template.render, messages, tools, **options)
        if text is None or _has_silent_answer(family, messages):
            continue
        layout = _veiled_text(family, template, text, messages, tools, options)
        assert layout is not None, f"seed {seed}"
        found = _trained(_Parser(family, text, layout, messages).pieces())
        assert found == _trained(family.render(messages, tools, **options)), f"seed {seed}"
        compared += 1
    assert compared > 40


def _has_silent_answer(family, messages) -> bool:
    """An answer or thought without a word leaves no trace in a joined turn: the owner of a mark differs."""
    if any((message.get(key) or "x").isspace() for message in messages for key in ("reasoning", "reasoning_content")):
        return True
    loud = {piece.message for piece in family.render(messages) if piece.trained and piece.text != family.turn_end}
    return any(message["role"] == "assistant" and at not in loud for at, message in enumerate(messages))


def _trained(pieces) -> list[tuple[str, int]]:
    """Trained text with its owner, neighbours of one owner joined."""
    out: list[tuple[str, int]] = []
    broken = True
    for text, message, trained in pieces:
        if not trained:
            broken = broken or bool(text)
        elif not broken and out[-1][1] == message:
            out[-1] = (out[-1][0] + text, message)
        else:
            out.append((text, message))
            broken = False
    return out


@pytest.mark.parametrize("revision", OLDER)
def test_older_revisions_render_random_rows(revision):
    """Text is Jinja's; every span lies in the text of an answer, and plain answers are all found."""
    template = older_gemma4(revision)
    renderer = Renderer(get_family("gemma4"), template)
    for seed in range(120):
        maker = Maker(seed, plain=True)
        row = {"messages": maker.chat(), "tools": maker.tools(), "chat_template_kwargs": maker.options()}
        expected = rendered(template.render, row["messages"], row["tools"], **row["chat_template_kwargs"])
        if expected is None:
            continue
        out = renderer.render(row)
        assert out.text == expected
        answers = {at for at, message in enumerate(row["messages"]) if message["role"] == "assistant"}
        assert {span.message for span in out.spans} <= answers
        assert not any(mark in piece for piece in out.trained_text for mark in ("<|turn>", "response:"))


def test_prompt_forms():
    renderer = Renderer(get_family("gemma4"))
    expected = "<bos><|turn>user\nHi<turn|>\n<|turn>model\n"
    assert renderer.prompt(CHAT[:1]) == expected
    assert renderer.prompt({"messages": CHAT[:1]}) == expected
    assert renderer.prompt({"prompt": CHAT[:1], "chosen": CHAT[1:]}) == expected
    assert "<|think|>" in renderer.prompt(CHAT[:1], enable_thinking=True)
    with_options = Renderer(get_family("gemma4"), Template(get_family("gemma4").plain_template))
    assert "<|think|>" in with_options.prompt({"messages": CHAT[:1], "chat_template_kwargs": {"enable_thinking": True}})


def test_trained_text_and_spans():
    out = Renderer(get_family("gemma3")).render({"messages": CHAT})
    assert out.trained_text == ["Hello!<end_of_turn>"]
    (span,) = out.spans
    assert (out.text[span.start : span.end], span.message) == ("Hello!<end_of_turn>", 1)


def test_plain_text_rows():
    renderer = Renderer(get_family("gemma4"))
    assert renderer.render({"text": "<bos>a"}).text == "<bos>a<eos>"
    rendered_before = "<bos><|turn>user\nHi<turn|>\n<|turn>model\nHello!<turn|>\n"
    assert renderer.render({"text": rendered_before}).text == rendered_before


@pytest.mark.parametrize(
    ("name", "messages", "code", "path"),
    [
        ("gemma2", [{"role": "system", "content": "S"}, *CHAT], "system-refused", "messages[0].role"),
        ("gemma3", [*CHAT, CHAT[1]], "roles-not-alternating", "messages[2].role"),
        ("gemma3", [CHAT[0], {"role": "assistant", "content": 5}], "template-refused", "messages[1].content"),
        ("gemma4", [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}],
         "template-refused", "messages[0].tool_calls"),
        ("functiongemma", [CHAT[0], {"role": "tool", "content": "x"}],
         "template-refused", "messages[1].name"),
        ("gemma4", [{"content": "no role"}], "template-refused", "messages[0]"),
        ("gemma3", [], "template-refused", "messages"),
    ],
)  # fmt: skip
def test_refusals_name_the_place(name, messages, code, path):
    with pytest.raises(RenderError) as caught:
        Renderer(get_family(name)).render({"messages": messages})
    assert (caught.value.code, caught.value.path) == (code, path)


def test_last_turn():
    roles = lambda *names: [{"role": name} for name in names]  # noqa: E731
    assert last_turn(roles("user", "assistant", "tool", "assistant")) == 1
    assert last_turn(roles("user", "assistant", "user", "assistant", "user")) == 3
    assert last_turn(roles("assistant")) == 0
    assert last_turn(roles("user")) == 0
    assert last_turn([]) == 0
