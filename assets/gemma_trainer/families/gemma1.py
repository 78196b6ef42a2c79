"""Gemma 1: no system turn, strict alternation, content printed as it is."""

from __future__ import annotations

from gemma_trainer.families.family import ASSISTANT_ROLES, Family, Piece, RenderError, traps
from gemma_trainer.families.values import MISSING, guarded, trim

START, END = "<start_of_turn>", "<end_of_turn>"
PROMPT = "<start_of_turn>model\n"
TURN_TOKENS = frozenset({"<pad>", "<eos>", "<bos>", "<unk>", "<mask>", START, END})

_BOS, _PROMPT, _NEWLINE = Piece("<bos>"), Piece(PROMPT), Piece("\n")


def alternate(role: str, index: int, first: int = 0) -> None:
    """Raise where the template does: users speak on even places counted from `first`, others on odd ones."""
    if (role == "user") != ((index - first) % 2 == 0):
        raise RenderError(
            "roles-not-alternating",
            "the template wants user and assistant to take turns, user first",
            f"messages[{index}].role",
        )


@guarded
def render(messages, tools=None, add_generation_prompt=False, **_) -> list[Piece]:
    if messages[0].get("role") == "system":
        raise RenderError("system-refused", "the template has no system turn", "messages[0].role")
    pieces = [_BOS]
    add = pieces.append
    for index, message in enumerate(messages):
        role = message["role"]
        alternate(role, index)
        text = trim(message.get("content", MISSING))
        if role in ASSISTANT_ROLES:
            add(_PROMPT)
            if text:
                add(Piece(text, index, True))
            add(Piece(END, index, True))
            add(_NEWLINE)
        else:
            add(Piece(START + role + "\n" + text + "<end_of_turn>\n", index))
    if add_generation_prompt:
        add(_PROMPT)
    return pieces


# Shipped with Gemma 1 and Gemma 2 alike.
TEMPLATES = {
    "ecd6ae513fe103f0eb62e8ab5bfa8d0fe45c1074fa398b089c93a7e70c15cfd6": "r1",
    "a2d06981c8abf90e65c6f0f3becfddd0dc856dd514dd1319d8dfcbbe156fb55c": "plain",
}

FAMILY = Family(
    name="gemma1",
    title="Gemma 1",
    render=render,
    turn_start=START,
    turn_end=END,
    stop_tokens=(END, "<eos>"),
    control_tokens=TURN_TOKENS,
    placeholders={},
    system="refused",
    alternates=True,
    tools=False,
    thinking=False,
    context=8_192,
    model_types=("gemma",),
    templates=TEMPLATES,
    current_revision="r1",
    plain="gemma1.jinja",
    traps=traps("double-bos", "system-refused", "list-printed", "tools-ignored", "eos-is-not-the-end"),
)
