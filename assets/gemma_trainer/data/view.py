"""Rows as the model sees them: rendered text with the loss mask in colour."""

from __future__ import annotations

from collections.abc import Iterator

from gemma_trainer.data.encode import Encoded
from gemma_trainer.data.lengths import render_all
from gemma_trainer.data.model import Model
from gemma_trainer.data.options import Checked
from gemma_trainer.data.render import Rendered
from gemma_trainer.families.family import RenderError
from gemma_trainer.rows.visible import visible

TRAINED, PLAIN, FAINT = "\x1b[1;32m", "\x1b[0m", "\x1b[2m"


def view_rows(rows: Iterator[Checked], model: Model, count: int, loss_on: str = "assistant") -> Iterator[dict]:
    """The first `count` rows that can be rendered: {file, line, row, text, trained, tokens, trained_tokens, ...}.

    `trained` are [start, end] characters of `text` that carry loss. A preference gives two entries, told by `side`.
    """
    shown = 0
    for checked in rows:
        if shown == count:
            return
        if checked.data is None:
            continue
        try:
            texts = render_all(checked.data, model, loss_on)
        except RenderError:
            continue
        shown += 1
        sides = ("chosen", "rejected") if len(texts) == 2 else (None,)
        for side, rendered in zip(sides, texts, strict=True):
            encoded = model.tokenizer.encode(rendered) if model.tokenizer else None
            view = row_view(checked.file, checked.raw.line, checked.raw.row, rendered, encoded)
            yield {**view, "side": side} if side else view


def row_view(file: str, line: int | None, row: int, rendered: Rendered, encoded: Encoded | None) -> dict:
    """One rendered text and where it comes from; `tokens` and `trained_tokens` are None without a tokenizer."""
    return {
        "file": file,
        "line": line,
        "row": row,
        "text": rendered.text,
        "trained": rendered.trained,
        "tokens": len(encoded.ids) if encoded else None,
        "trained_tokens": sum(encoded.mask) if encoded else None,
    }


def painted(view: dict, colour: bool) -> str:
    """A view for people, control characters as escapes. Without colour trained text stands in double angle quotes."""
    start, end = (TRAINED, PLAIN + FAINT) if colour else ("«", "»")
    text, out, at = view["text"], [], 0
    for first, last in view["trained"]:
        out += [visible(text[at:first]), start, visible(text[first:last]), end]
        at = last
    out.append(visible(text[at:]))
    body = "".join(out)
    tokens = f", {view['tokens']} tokens, {view['trained_tokens']} trained" if view["tokens"] is not None else ""
    where = f"line {view['line']}" if view["line"] else f"row {view['row']}"
    head = f"--- {visible(view['file'])} {where}{' ' + view['side'] if 'side' in view else ''}{tokens}"
    return f"{head}\n{FAINT + body + PLAIN if colour else body}"
