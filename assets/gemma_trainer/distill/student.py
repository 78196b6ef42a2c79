"""Whether rows fit the model that is to be trained on them, counted with its own tokens."""

from __future__ import annotations

from gemma_trainer.data.model import Model
from gemma_trainer.distill.work import Reject, Result, Results
from gemma_trainer.families.family import RenderError


def fitting(results: Results, model: Model, max_length: int) -> Results:
    """Rows over `max_length` tokens become rejects. Without a tokenizer nothing is counted."""
    for item, result in results:
        kept, rejects = [], list(result.rejects)
        for row in result.rows:
            reason, detail = _fault(row, model, max_length)
            if reason:
                rejects.append(Reject([reason], {**row, "details": {reason: detail}}, [row["meta"]["id"]]))
            else:
                kept.append(row)
        yield item, Result(kept, rejects)


def _fault(row: dict, model: Model, max_length: int) -> tuple[str | None, str]:
    """(word for the reason, detail)."""
    try:
        length = longest(row, model)
    except RenderError as error:  # by the model's own template, which may be an older one
        return "invalid", f"{error.code}: {error}"
    return ("too-long", f"{length} tokens, --max-length is {max_length}") if length > max_length else (None, "")


def longest(row: dict, model: Model) -> int:
    """Tokens of a row, of a pair those of its longer side. Raises RenderError."""
    sides = [side for side in ("chosen", "rejected") if side in row]
    texts = [row["prompt"] + row[side] for side in sides] or [row["messages"]]
    shared = {key: row[key] for key in ("tools", "chat_template_kwargs") if key in row}
    rendered = [model.renderer.render({"messages": messages, **shared}).text for messages in texts]
    return max(model.tokenizer.count_batch(rendered))
