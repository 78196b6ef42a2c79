"""Trained spans of text that a Jinja template wrote: found by turn marks, attributed through a veiled copy.

Older and edited templates have no renderer of their own, so Jinja writes their text. To find who said what,
the conversation is rendered once more with every visible character of message i replaced by one private-use
character: white space, lengths and thus positions stay, and nothing that a user wrote can look like a mark.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import groupby

from gemma_trainer.families.family import ASSISTANT_ROLES, Family, Piece, RenderError
from gemma_trainer.families.template import Template

UNKNOWN = -1  # owner of a piece that belongs to one of several messages

_VEIL = 0xF0000  # plane 15, private use: one character per message
_RUN = re.compile("([\U000f0000-\U000ffffd])\\1*")


def template_pieces(
    family: Family,
    template: Template,
    messages: list[dict],
    tools,
    add_generation_prompt: bool,
    options: dict,
) -> list[Piece]:
    """The text that `template` writes, as pieces. A trained piece may have the owner UNKNOWN.

    Raises RenderError: template-refused, mask-not-found, mask-ambiguous.
    """
    text = template.render(messages, tools, False, **options)
    pieces = _same_as_direct(family, text, messages, tools, options)
    if pieces is None:
        layout = _veiled_text(family, template, text, messages, tools, options)
        pieces = _Parser(family, text, layout, messages).pieces()
    if not add_generation_prompt:
        return pieces
    full = template.render(messages, tools, True, **options)
    return [*pieces, Piece(full[len(text) :])] if full.startswith(text) else [Piece(full)]


def _same_as_direct(family: Family, text: str, messages, tools, options: dict) -> list[Piece] | None:
    """The family's own pieces, where its current template would have written the same."""
    try:
        pieces = family.render(messages, tools, False, **options)
    except RenderError:
        return None
    return pieces if "".join([piece.text for piece in pieces]) == text else None


class _Parser:
    """Cuts one rendered conversation into pieces. `layout` is its veiled copy, equal in length."""

    def __init__(self, family: Family, text: str, layout: str | None, messages: list[dict]):
        if layout is None and (family.turn_start in str([m.get("content") for m in messages])):
            raise _ambiguous("a message holds turn marks and the template changes text by its content")
        self.family, self.text, self.layout = family, text, text if layout is None else layout
        self.messages = messages
        self.spoken = [at for at, message in enumerate(messages) if message.get("role") in ASSISTANT_ROLES]

    def pieces(self) -> list[Piece]:
        turns = self._turns()
        owners = self._turn_owners(len(turns))
        out, position = [], 0
        for (start, body, end), owner in zip(turns, owners, strict=True):
            self._refuse_speech(position, start)
            out.append(Piece(self.text[position:start]))
            out.append(Piece(self.text[start:body]))
            out.extend(self._turn(body, end, owner))
            position = end
        self._refuse_speech(position, len(self.text))
        out.append(Piece(self.text[position:]))
        return [piece for piece in out if piece.text]

    def _turns(self) -> list[tuple[int, int, int]]:
        """(start, start of the body, end) of the model turns; a turn reaches to the next header."""
        header = self.family.turn_start + "model\n"
        starts = [match.start() for match in re.finditer(re.escape(self.family.turn_start), self.layout)]
        ends = [*starts[1:], len(self.text)]
        turns = [
            (a, a + len(header), b) for a, b in zip(starts, ends, strict=False) if self.layout.startswith(header, a)
        ]
        if self.spoken and not turns:
            raise RenderError("mask-not-found", f"the template writes no `{header.strip()}` turn", "messages")
        return turns

    def _turn_owners(self, turns: int) -> list[int]:
        """The message of each turn by counting: one to one, else by runs of answers and results."""
        if turns == len(self.spoken):
            return self.spoken
        by_group = groupby(range(len(self.messages)), lambda at: self._role(at) in (*ASSISTANT_ROLES, "tool"))
        groups = [[at for at in group if self._role(at) != "tool"] for ours, group in by_group if ours]
        groups = [group for group in groups if group]
        if turns != len(groups):
            return [UNKNOWN] * turns
        alike = [len({self.messages[at].get("weight") for at in group}) == 1 for group in groups]
        return [group[-1] if same else UNKNOWN for group, same in zip(groups, alike, strict=True)]

    def _role(self, at: int) -> str | None:
        return self.messages[at].get("role")

    def _turn(self, start: int, end: int, owner: int) -> Iterator[Piece]:
        """The pieces of one model turn, from behind its header to the next one."""
        family, position = self.family, start
        for match in _unspoken(family).finditer(self.layout, start, end):
            for piece in self._speech(position, match.start(), owner):
                owner = piece.message if piece.trained else owner
                yield piece
            position = match.end()
            if match["result"]:
                waits = match["result"] == family.result[0]  # an open mark: the call has no result
                stop = waits or self.layout.endswith(family.call[1], start, match.start())
                yield Piece(family.result[0], owner, stop)
                yield Piece(self.text[match.start() + len(family.result[0]) : position])
            elif match["end"]:
                yield Piece(family.turn_end, owner, True)
                yield Piece(self.text[match.start() + len(family.turn_end) : position])
            else:
                yield Piece(self.text[match.start() : position])
        yield from self._speech(position, end, owner)

    def _speech(self, start: int, end: int, owner: int) -> Iterator[Piece]:
        """What the messages of a turn say between two marks, cut where the next message begins."""
        if not self.layout[start:end].strip():
            yield Piece(self.text[start:end])
            return
        cut = last = start
        first = True
        for run in _RUN.finditer(self.layout, start, end):
            message = ord(run[1]) - _VEIL
            if first:
                owner, first = message, False
            elif message != owner:
                opening = _opening(self.family).search(self.layout, last, run.start())
                here = opening.start() if opening else run.start()
                yield self._said(cut, here, owner)
                owner, cut = message, here
            last = run.end()
        yield self._said(cut, end, owner)

    def _said(self, start: int, end: int, owner: int) -> Piece:
        return Piece(self.text[start:end], owner, owner == UNKNOWN or self._role(owner) in ASSISTANT_ROLES)

    def _refuse_speech(self, start: int, end: int) -> None:
        """An answer outside the model turns: the template is not one of this family."""
        for run in _RUN.finditer(self.layout, start, end):
            if self._role(ord(run[1]) - _VEIL) in ASSISTANT_ROLES:
                raise RenderError(
                    "mask-not-found", "the template writes an answer outside the model's turn", "messages"
                )


def _ambiguous(text: str) -> RenderError:
    return RenderError("mask-ambiguous", text, "messages")


@lru_cache
def _unspoken(family: Family) -> re.Pattern[str]:
    """What in a model turn the model does not say: results, empty thoughts, media; and the terminator."""
    nothing = "(?!)"
    media = "|".join(re.escape(mark) for mark in sorted(set(family.placeholders.values()))) or nothing
    result = thought = nothing
    if family.result:
        first, last = map(re.escape, family.result)
        result = f"{first}(?:response:.*?{last}(?:{media})*)?"
    if family.thought:
        first, last = map(re.escape, family.thought)
        thought = f"{first}thought\\n?{last}"
    end = re.escape(family.turn_end) + "\n*"
    return re.compile(f"(?P<result>{result})|(?P<end>{end})|{thought}|{media}", re.DOTALL)


@lru_cache
def _opening(family: Family) -> re.Pattern[str]:
    marks = [re.escape(pair[0]) for pair in (family.call, family.thought) if pair]
    return re.compile("|".join(marks) or "(?!)")


def _veiled_text(family: Family, template: Template, text: str, messages, tools, options: dict) -> str | None:
    """The veiled conversation as the template writes it, None when words change their places."""
    if len(messages) > 0xFFFD or family.turn_start in str(tools or ""):
        return None
    try:
        veiled = template.render([_veil(family, m, at) for at, m in enumerate(messages)], tools, False, **options)
    except RenderError:
        return None
    if len(veiled) != len(text) or any(b < "\U000f0000" and a != b for a, b in zip(text, veiled, strict=True)):
        return None
    return veiled


def _veil(family: Family, message: dict, at: int) -> dict:
    """The message with its words veiled; roles, ids, part types and keys stay, for templates look at them."""
    kept = "|".join(re.escape(mark) for mark in family.thought or ()) if _is_answer(message) else ""
    pattern = re.compile(f"{kept}|\\S" if kept else r"\S")
    letter = chr(_VEIL + at)

    def hide(value: object) -> object:
        if isinstance(value, str):
            return pattern.sub(lambda match: letter if len(match[0]) == 1 else match[0], value)
        if isinstance(value, list):
            return [hide(item) for item in value]
        if isinstance(value, dict):
            return {key: item if key == "type" else hide(item) for key, item in value.items()}
        return value

    words = ("content", "reasoning", "reasoning_content", "thinking", "tool_responses")
    veiled = {key: hide(item) if key in words else item for key, item in message.items()}
    if message.get("tool_calls"):
        veiled["tool_calls"] = [
            {**call, "function": hide(call["function"])} if isinstance(call.get("function"), dict) else call
            for call in message["tool_calls"]
        ]
    return veiled


def _is_answer(message: dict) -> bool:
    return message.get("role") in ASSISTANT_ROLES
