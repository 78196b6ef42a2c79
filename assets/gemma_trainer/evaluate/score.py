"""Measure one model on held-out rows: answers, their scores, and the loss of the right answers."""

from __future__ import annotations

from collections.abc import Sequence

from gemma_trainer.data.encode import RowTokenizer
from gemma_trainer.evaluate.generate import MARGIN, Task, generate
from gemma_trainer.evaluate.metrics import exact_match, similarity, sql_match
from gemma_trainer.families.family import Family


def answer_all(model, tokenizer: RowTokenizer, family: Family, tasks: Sequence[Task], max_new_tokens, batch_size):
    """Greedy answers. Without a limit they may run MARGIN tokens over the longest right answer."""
    limit = max_new_tokens or max(task.target_tokens for task in tasks) + MARGIN
    return generate(model, tokenizer, tasks, family.stop_tokens, limit, batch_size)


def score_rows(
    metrics: Sequence[str], rows: Sequence[dict], tasks: Sequence[Task], answers: Sequence[str]
) -> list[dict]:
    """One dict a row with the keys of the wished metrics; `sql_match` is true, false, "both-empty" or "gold-broken"."""
    scored = []
    for row, task, answer in zip(rows, tasks, answers, strict=True):
        line: dict = {"prediction": answer, "target": task.target}
        if "exact" in metrics:
            line["exact_match"] = exact_match(answer, task.target)
        if "similarity" in metrics:
            line["similarity"] = similarity(answer, task.target)
        if "sql" in metrics:
            line["sql_match"] = sql_match(answer, task.target, row["schema"])
        scored.append(line)
    return scored


def summarise(lines: Sequence[dict]) -> dict:
    """Means over the rows. Pairs of SQL results that prove nothing are counted apart and left out of the mean."""
    summary: dict = {}
    for key in ("exact_match", "similarity"):
        if lines and key in lines[0]:
            summary[key] = sum(float(line[key]) for line in lines) / len(lines)
    if lines and "sql_match" in lines[0]:
        verdicts = [line["sql_match"] for line in lines]
        compared = [verdict for verdict in verdicts if isinstance(verdict, bool)]
        summary["sql_match"] = sum(compared) / len(compared) if compared else None
        summary["sql_compared"] = len(compared)
        summary["sql_both_empty"] = verdicts.count("both-empty")
        summary["sql_gold_broken"] = verdicts.count("gold-broken")
    return summary
