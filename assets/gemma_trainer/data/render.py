"""A row as the exact text that the model is trained on, with the spans of it that carry loss."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import NamedTuple

from gemma_trainer.data.marks import UNKNOWN, template_pieces
from gemma_trainer.data.shown import shown_by
from gemma_trainer.families.blame import blamed, path_in_row
from gemma_trainer.families.catalogue import revision
from gemma_trainer.families.family import ASSISTANT_ROLES, Family, Piece, RenderError
from gemma_trainer.families.template import Template


class Span(NamedTuple):
    """Characters `start` to `end` of the text, trained. `message` is an index into the row's messages."""

    start: int
    end: int
    message: int


_new_span = partial(tuple.__new__, Span)  # without the Python code of Span(...)


@dataclass
class Rendered:
    text: str
    spans: list[Span] = field(default_factory=list)

    @property
    def trained(self) -> list[list[int]]:
        """The spans as [start, end], neighbours joined."""
        joined: list[list[int]] = []
        for start, end, _ in self.spans:
            if joined and joined[-1][1] == start:
                joined[-1][1] = end
            else:
                joined.append([start, end])
        return joined

    @property
    def trained_text(self) -> list[str]:
        """What carries loss, as a person would read it."""
        return [self.text[start:end] for start, end in self.trained]


class Renderer:
    """Renders every row of a run alike.

    `template` is the chat template that came with the tokenizer. The family's current revision is rendered by
    the family itself, byte-equal and fast; any other template by Jinja. While it is unknown the family stands in.
    """

    def __init__(self, family: Family, template: Template | None = None):
        self.family = family
        self.template = template
        self.revision = revision(family, template)
        self._direct = template is None or self.revision == family.current_revision

    @property
    def origin(self) -> str:
        if self.template is None:
            return "packaged"
        return "direct" if self._direct else "template"

    @property
    def template_hash(self) -> str | None:
        return self.template.sha256 if self.template else None

    def render(self, row: dict, loss_on: str = "assistant", add_generation_prompt: bool = False) -> Rendered:
        """Text and trained spans of a row with `messages` (or `text`). Raises RenderError.

        `loss_on="last"` trains what the assistant says after the last message of anybody else (tools aside).
        A message of `weight` 0 is left out; a terminator is left out when all messages of its turn are.
        """
        return assemble(self.pieces(row, loss_on, add_generation_prompt))

    def pieces(self, row: dict, loss_on: str = "assistant", add_generation_prompt: bool = False) -> list[Piece]:
        """What `render` joins: the pieces of the text, each trained or not. Raises RenderError."""
        if "messages" not in row and "text" not in row:
            raise RenderError("tokens-not-text", "the row holds token ids, which have no text here", "input_ids")
        if "messages" not in row:
            return self._plain_text(row["text"])
        try:
            pieces = self._pieces(row, add_generation_prompt)
        except RenderError as error:
            raise self._blamed(error, row["messages"], row, row.get("chat_template_kwargs") or {}) from None
        kept = _kept(row["messages"], loss_on)
        return pieces if kept is None else _select(pieces, kept, self.family)

    def prompt(self, row_or_messages: dict | list[dict], tools: list[dict] | None = None, **template_kwargs) -> str:
        """The text that the model continues: the messages and the generation prompt. Raises RenderError."""
        row = row_or_messages if isinstance(row_or_messages, dict) else {"messages": row_or_messages}
        messages = row["messages"] if "messages" in row else row["prompt"]
        tools = tools or row.get("tools") or None
        options = {**(row.get("chat_template_kwargs") or {}), **template_kwargs}
        try:
            return self._text(messages, tools, True, options)
        except RenderError as error:
            raise self._blamed(error, messages, row, options) from None

    @cached_property
    def shown(self) -> frozenset[str] | None:
        """What of a conversation the template writes, see shown.py; None while the template is unknown."""
        if self.template is None:
            return None
        return shown_by(lambda messages, tools: self._text(messages, tools, False, {}))

    def _blamed(self, error: RenderError, messages: list[dict], row: dict, options: dict) -> RenderError:
        found = blamed(error, lambda some, tools: self._text(some, tools, False, options), messages, row.get("tools"))
        return RenderError(found.code, str(found), path_in_row(found.path, {**row, "messages": messages}))

    def _text(self, messages: list[dict], tools: list[dict] | None, add_generation_prompt: bool, options: dict) -> str:
        if self._direct:
            return "".join(
                [piece.text for piece in self.family.render(messages, tools, add_generation_prompt, **options)]
            )
        return self.template.render(messages, tools, add_generation_prompt, **options)

    def _pieces(self, row: dict, add_generation_prompt: bool) -> list[Piece]:
        messages, tools = row["messages"], row.get("tools") or None
        options = row.get("chat_template_kwargs") or {}
        if self._direct:
            return self.family.render(messages, tools, add_generation_prompt, **options)
        return template_pieces(self.family, self.template, messages, tools, add_generation_prompt, options)

    def _plain_text(self, text: str) -> list[Piece]:
        """Continued pretraining: <bos>, the text, and <eos> unless it ends in a terminator of its own."""
        bos, eos = self.family.bos, self.family.eos
        body = text.removeprefix(bos)
        if not body.rstrip().endswith((eos, self.family.turn_end)):
            body += eos
        return [Piece(bos), Piece(body, 0, True)]


def _kept(messages: list[dict], loss_on: str) -> set[int] | None:
    """Indices of the messages that carry loss; None when all that the assistant says does."""
    start = last_turn(messages) if loss_on == "last" else 0
    if start == 0 and not any(message.get("weight") == 0 for message in messages):
        return None
    return {index for index in range(start, len(messages)) if messages[index].get("weight") != 0}


def last_turn(messages: list[dict]) -> int:
    """Index where the assistant's last turn begins: behind the last message of anybody else, tools aside."""
    end = len(messages)
    while end and messages[end - 1].get("role") not in ASSISTANT_ROLES:
        end -= 1
    while end and messages[end - 1].get("role") in (*ASSISTANT_ROLES, "tool"):
        end -= 1
    return end


def _select(pieces: list[Piece], kept: set[int], family: Family) -> list[Piece]:
    """The pieces with loss on `kept` messages only; a terminator follows the messages of its turn."""
    out = []
    spoke: int | None = None  # the last kept message of the open turn
    for piece in pieces:
        if not piece.trained:
            if piece.text.startswith(family.turn_start):
                spoke = None
        elif piece.message == UNKNOWN:
            text = "the chat template joins messages in a way that leaves their borders unknown"
            raise RenderError("mask-ambiguous", text, "messages")
        elif piece.message in kept:
            spoke = piece.message
        elif piece.text == family.turn_end and spoke is not None:
            piece = piece._replace(message=spoke)
        else:
            piece = piece._replace(trained=False)
        out.append(piece)
    return out


def assemble(pieces: list[Piece]) -> Rendered:
    """Join the pieces; trained neighbours of one message become one span."""
    spans: list[Span] = []
    position, start, speaker = 0, 0, None
    for text, message, trained in pieces:
        owner = message if trained else None
        if owner != speaker:
            if speaker is not None:
                spans.append(_new_span((start, position, speaker)))
            start, speaker = position, owner
        position += len(text)
    if speaker is not None:
        spans.append(_new_span((start, position, speaker)))
    return Rendered("".join([piece[0] for piece in pieces]), spans)
