"""Tokens of rows: exact with a model, guessed from characters without one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from gemma_trainer.data.histogram import quantiles
from gemma_trainer.data.render import Rendered
from gemma_trainer.families.family import Family
from gemma_trainer.rows.content import text_of
from gemma_trainer.rows.roles import TOOL, USER

CHARACTERS_PER_TOKEN = 4  # of English text; only to guess a length without a tokenizer
WIDE_PER_TOKEN = 1.5  # of Chinese, Japanese and Korean
WIDE = r"\u1100-\u11ff\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"  # their characters
_WIDE = re.compile(f"[{WIDE}]")


@dataclass
class Lengths:
    """Tokens of rows. A preference row is as long as its longer side; its totals count both sides."""

    total: int = 0
    trained: int = 0
    over: int = 0
    rows: Counter[int] = field(default_factory=Counter)  # {tokens of a row: rows}

    def add(self, longest: int, trained: int, total: int) -> None:
        self.rows[longest] += 1
        self.total += total
        self.trained += trained

    def merge(self, other: Lengths) -> None:
        self.total += other.total
        self.trained += other.trained
        self.over += other.over
        self.rows.update(other.rows)

    def as_dict(self) -> dict:
        p50, p95, longest = quantiles(self.rows, (0.5, 0.95, 1.0))
        places = {"p50": p50, "p95": p95, "max": longest}
        return {"total": self.total, "trained": self.trained, **places, "over_length": self.over}


def sequences(row: dict) -> list[dict]:
    """The rows that are rendered for a canonical row: itself, or both sides of a preference."""
    if "chosen" in row:
        prompt = [{**m, "weight": 0} if m["role"] == "assistant" else m for m in row["prompt"]]
        return [{**row, "messages": [*prompt, *row[side]]} for side in ("chosen", "rejected")]
    if "messages" not in row and "prompt" in row:
        return [{**row, "messages": row["prompt"]}]
    return [row]


def render_all(row: dict, model, loss_on: str = "assistant") -> list[Rendered]:
    """The texts of a canonical row by a Model. Raises RenderError."""
    return [model.renderer.render(one, loss_on, add_generation_prompt="prompt" in row and "chosen" not in row)
            for one in sequences(row)]  # fmt: skip


def guessed_tokens(row: dict, family: Family | None = None) -> int:
    """About how many tokens a canonical row has, of a preference the longer side; of token ids, their number.

    What the template of `family` leaves out does not count. Columns beside those that make the row say nothing.
    """
    if "chosen" in row:
        chats = [[*row["prompt"], *row[side]] for side in ("chosen", "rejected")]
    elif "messages" in row or "prompt" in row:
        chats = [row["messages" if "messages" in row else "prompt"]]
    elif "input_ids" in row:
        return len(row["input_ids"]) if isinstance(row["input_ids"], list) else 0
    else:
        return guess(row["text"])
    declared = str(row["tools"]) if row.get("tools") and (family is None or family.tools) else ""
    options = row.get("chat_template_kwargs") or {}
    return max(guess("".join([declared, *_written(chat, family, options)])) for chat in chats)


def guess(text: str) -> int:
    wide = 0 if text.isascii() else len(_WIDE.findall(text))
    return int((len(text) - wide) / CHARACTERS_PER_TOKEN + wide / WIDE_PER_TOKEN)


def _written(messages: list[dict], family: Family | None, options: dict) -> Iterator[str]:
    """What stands in messages and is rendered."""
    tools, thinking = (True, True) if family is None else (family.tools, family.thinking)
    last_user = max((at for at, message in enumerate(messages) if message["role"] == USER), default=-1)
    for at, message in enumerate(messages):
        content = message.get("content")
        yield text_of(content) or (str(content) if message["role"] == TOOL else "")
        if len(message) == 2:
            continue
        calls = message.get("tool_calls")
        if thinking and (at > last_user or (calls and options.get("preserve_thinking"))):
            yield str(message.get("reasoning_content", ""))
        if tools:
            yield "".join([str(call["function"]) for call in calls or ()])
            yield str(message.get("tool_responses", ""))
