"""Whether rows fit the model that is to be trained on them, counted with its own tokens."""

from __future__ import annotations

from collections.abc import Iterator

from gemma_trainer.data.model import Model
from gemma_trainer.distill.work import Reject, Result, Results
from gemma_trainer.families.family import RenderError


def fitting(results: Results, model: Model, max_length: int) -> Results:
    """Rows over `max_length` tokens become rejects, or lose their last turns where all turns are the teacher's.

    The model has a tokenizer.
    """
    for item, result in results:
        kept, rejects = [], list(result.rejects)
        for row in result.rows:
            reason, detail = _fault(row, model, max_length)
            if not reason:
                kept.append(row)
            elif shorter := next((one for one in _openings(row) if not _fault(one, model, max_length)[0]), None):
                kept.append(shorter)
            else:
                rejects.append(Reject([reason], {**row, "details": {reason: detail}}, [row["meta"]["id"]]))
        yield item, Result(kept, rejects)


def _openings(row: dict) -> Iterator[dict]:
    """What a conversation that the teacher wrote whole is up to each earlier answer, the longest first."""
    if row["meta"].get("kind") != "multi-turn":
        return
    rest = {key: value for key, value in row.items() if key != "chat_template_kwargs"}  # only the last answer thinks
    for at in range(len(row["messages"]) - 2, 0, -1):
        if row["messages"][at]["role"] == "assistant":
            yield {**rest, "messages": row["messages"][: at + 1], "meta": {**row["meta"], "turns_cut": True}}


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
