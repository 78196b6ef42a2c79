"""The fast path for preference rows of plain text, as PlainRows is for conversations."""

from __future__ import annotations

from collections.abc import Callable

from gemma_trainer.data.checking.check_pairs import differ_plainly
from gemma_trainer.data.options import Options
from gemma_trainer.data.reading.raw import Lines
from gemma_trainer.data.running.keys import BETWEEN
from gemma_trainer.data.running.part import Part
from gemma_trainer.data.running.plain_text import (
    Plain,
    Slow,
    Take,
    as_dicts,
    holds_strings,
    is_harmless,
    message_type,
    row_decoder,
    text_type,
)
from gemma_trainer.rows.content import BLANK_WORDS, is_blank
from gemma_trainer.rows.roles import ASSISTANT, SYSTEM, USER

_LAYOUTS = ("auto", "preference")


class PlainPairs(Plain):
    """Accepts `{"prompt", "chosen", "rejected"}`, each a text or messages, without a margin or any other column."""

    def __init__(self, options: Options, decode: Callable):
        super().__init__(options)
        self.decode = decode

    @classmethod
    def for_run(cls, options: Options) -> PlainPairs | None:
        """None where rows of this shape need the slow path, or msgspec is not installed."""
        message = message_type(1)
        if options.layout not in _LAYOUTS or options.mapping or options.has_margin or message is None:
            return None
        side = text_type(1) | list[message]
        return cls(options, row_decoder(prompt=side, chosen=side, rejected=side))

    def judge(self, lines: Lines, before: int, part: Part, take: Take | None, slow: Slow) -> None:
        """As PlainRows.judge."""
        for line in lines.lines:
            row = self._row(line)
            if row is None or (take and not take(line, row, part)):
                slow(line)
                continue
            part.saw("preference", before + part.lines + 1)
            part.keys.put(part.rows, row, None)
            part.sums.bias.add(len(row["chosen"][0]["content"]), len(row["rejected"][0]["content"]))
            part.rows += 1
            part.valid += 1
            part.lines += 1

    def _row(self, line: bytes) -> dict | None:
        """The canonical row of a plain line; None where a check must look."""
        try:
            found = self.decode(line)
        except ValueError:
            return None
        prompt, strings = _messages(found.prompt, USER)
        chosen, more = _messages(found.chosen, ASSISTANT)
        rejected, most = _messages(found.rejected, ASSISTANT)
        if not self._speaks_in_turn(prompt) or len(chosen) != 1 or len(rejected) != 1:
            return None
        if chosen[0]["role"] != ASSISTANT or rejected[0]["role"] != ASSISTANT:
            return None
        contents = [message["content"] for message in (*prompt, *chosen, *rejected)]
        if any(map(is_blank, contents)) or not BLANK_WORDS.isdisjoint(contents) or contents[-3][-1:].isspace():
            return None
        text = BETWEEN.join(contents).encode()
        if len(text) > self.limit or not is_harmless(text, contents) or not differ_plainly(*contents[-3:]):
            return None
        if not holds_strings(line, 3 + strings + more + most, text):
            return None
        return {"prompt": prompt, "chosen": chosen, "rejected": rejected}

    def _speaks_in_turn(self, prompt: list[dict]) -> bool:
        roles = [message["role"] for message in prompt]
        turns = roles[1:] if roles[:1] == [SYSTEM] and self.takes_system else roles
        return len(turns) % 2 == 1 and turns == ([USER, ASSISTANT] * len(turns))[: len(turns)]


def _messages(side: str | list, role: str) -> tuple[list[dict], int]:
    """(messages, how many strings of the line they are made of); none where a text may be a stored list of them."""
    if isinstance(side, str):
        return ([], 0) if side.lstrip().startswith("[") else ([{"role": role, "content": side}], 1)
    return as_dicts(side), 4 * len(side)
