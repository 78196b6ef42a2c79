"""Exact token counts of checked rows, in batches."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field

from gemma_trainer.data.model import Model
from gemma_trainer.data.pipeline import Checked
from gemma_trainer.data.render import Rendered
from gemma_trainer.data.report import Report
from gemma_trainer.families.family import RenderError
from gemma_trainer.rows.problems import Problem

_BATCH = 64


@dataclass
class Lengths:
    """Tokens of rows. A preference row is as long as its longer side; its totals count both sides."""

    max_length: int | None
    total: int = 0
    trained: int = 0
    over: int = 0
    rows: array = field(default_factory=lambda: array("I"))

    def as_dict(self) -> dict:
        ordered = sorted(self.rows)
        at = {name: ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0
              for name, share in (("p50", 0.5), ("p95", 0.95), ("max", 1.0))}  # fmt: skip
        return {"total": self.total, "trained": self.trained, **at, "over_length": self.over}


def sequences(row: dict) -> list[dict]:
    """The rows that are rendered for a canonical row: itself, or both sides of a preference."""
    if "chosen" in row:
        prompt = [{**m, "weight": 0} if m["role"] == "assistant" else m for m in row["prompt"]]
        return [{**row, "messages": [*prompt, *row[side]]} for side in ("chosen", "rejected")]
    if "messages" not in row and "prompt" in row:
        return [{**row, "messages": row["prompt"]}]
    return [row]


def render_all(row: dict, model: Model, loss_on: str = "assistant") -> list[Rendered]:
    """The texts of a canonical row. Raises RenderError."""
    return [model.renderer.render(one, loss_on, add_generation_prompt="prompt" in row and "chosen" not in row)
            for one in sequences(row)]  # fmt: skip


def counted(rows: Iterator[Checked], model: Model, lengths: Lengths, report: Report) -> Iterator[Checked]:
    """Pass rows on and count the valid ones; a row that the template refuses or that trains nothing becomes invalid."""
    waiting: list[tuple[Checked, list[Rendered]]] = []
    for checked in rows:
        if checked.data is None:
            yield checked
            continue
        try:
            waiting.append((checked, render_all(checked.data, model)))
        except RenderError as error:
            yield _refused(checked, error.code, str(error), error.path, report)
        if len(waiting) >= _BATCH:
            yield from _count(waiting, model, lengths, report)
            waiting = []
    yield from _count(waiting, model, lengths, report)


def _count(
    waiting: list[tuple[Checked, list[Rendered]]], model: Model, lengths: Lengths, report: Report
) -> Iterator[Checked]:
    encoded = iter(model.tokenizer.encode_batch([text for _, texts in waiting for text in texts]))
    for checked, texts in waiting:
        sizes = [(len(one.ids), sum(one.mask)) for one in (next(encoded) for _ in texts)]
        longest, trained = max(size for size, _ in sizes), sum(count for _, count in sizes)
        lengths.rows.append(longest)
        lengths.total += sum(size for size, _ in sizes)
        lengths.trained += trained
        if lengths.max_length and longest > lengths.max_length:
            lengths.over += 1
            text = f"{longest} tokens, over --max-length {lengths.max_length}"
            report.add(Problem("over-length", text, checked.file, checked.raw.line, checked.raw.row))
        if trained == 0 and "prompt" not in checked.data:
            yield _refused(checked, "no-trained-token", "not one token of the row carries loss", None, report)
        else:
            yield checked


def _refused(checked: Checked, code: str, message: str, path: str | None, report: Report) -> Checked:
    problem = Problem(code, message, checked.file, checked.raw.line, checked.raw.row, path)
    report.add(problem)
    report.valid -= 1
    return checked._replace(data=None, problems=[*checked.problems, problem])
