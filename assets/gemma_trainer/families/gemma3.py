"""Gemma 3 (270M to 27B): system text folded into the first user turn, parts, strict alternation."""

from __future__ import annotations

from collections.abc import Iterable

from gemma_trainer.families.family import ASSISTANT_ROLES, Family, Piece, RenderError, new_piece, traps
from gemma_trainer.families.gemma1 import END, PROMPT, START, TURN_TOKENS, alternate
from gemma_trainer.families.values import MISSING, guarded, trim

_BOS, _PROMPT, _NEWLINE = Piece("<bos>"), Piece(PROMPT), Piece("\n")


def renderer(placeholders: dict[str, str]):
    """The renderer of Gemma 3 with the given part type -> placeholder table."""

    @guarded
    def render(messages, tools=None, add_generation_prompt=False, **_) -> list[Piece]:
        first = 0
        prefix = ""
        if messages[0].get("role") == "system":
            prefix, first = _system_text(messages[0]), 1
        pieces = [_BOS]
        add = pieces.append
        for index in range(first, len(messages)):
            message = messages[index]
            role = message["role"]
            alternate(role, index, first)
            content = message.get("content", MISSING)
            if content.__class__ is str:
                text = content.strip()
            else:
                text = _parts(content, index, placeholders, role in ASSISTANT_ROLES)
            if role in ASSISTANT_ROLES:
                add(Piece(PROMPT + prefix) if prefix else _PROMPT)
                if text.__class__ is list:
                    pieces.extend(text)
                elif text:
                    add(new_piece((text, index, True)))
                add(new_piece((END, index, True)))
                add(_NEWLINE)
            else:
                if text.__class__ is list:
                    text = "".join(piece.text for piece in text)
                add(new_piece((f"{START}{role}\n{prefix}{text}<end_of_turn>\n", index, False)))
            prefix = ""
        if add_generation_prompt:
            add(_PROMPT)
        return pieces

    return render


def _system_text(message: dict) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content + "\n\n"
    return content[0]["text"] + "\n\n"


def _parts(content, index: int, placeholders: dict[str, str], spoken: bool) -> list[Piece]:
    """Pieces of a list content. A media placeholder carries no loss: no model writes it."""
    if not isinstance(content, Iterable):
        raise RenderError("template-refused", "the template takes text or parts only", f"messages[{index}].content")
    pieces = []
    for item in content:
        kind = item.get("type") if isinstance(item, dict) else None
        if kind in placeholders:
            pieces.append(Piece(placeholders[kind], index))
        elif kind == "text" and (text := trim(item.get("text", MISSING))):
            pieces.append(Piece(text, index, spoken))
    return pieces


FAMILY = Family(
    name="gemma3",
    title="Gemma 3",
    render=renderer({"image": "<start_of_image>"}),
    turn_start=START,
    turn_end=END,
    stop_tokens=(END, "<eos>"),
    control_tokens=TURN_TOKENS | {"<start_of_image>", "<end_of_image>", "<image_soft_token>"},
    placeholders={"image": "<start_of_image>"},
    system="folded",
    alternates=True,
    tools=False,
    thinking=False,
    context=131_072,  # 32,768 for 270M and 1B
    model_types=("gemma3", "gemma3_text"),
    templates={
        "7de1c58e208eda46e9c7f86397df37ec49883aeece39fb961e0a6b24088dd3c4": "r1",
        "e067cfcdfab721b59e327af06856527c8030b222df86507079bf8c72848034cd": "plain",
    },
    current_revision="r1",
    plain="gemma3.jinja",
    traps=traps("double-bos", "system-folded", "tools-ignored", "eos-is-not-the-end"),
)
