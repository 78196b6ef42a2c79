"""The sink that gathers statistics of rows."""

from __future__ import annotations

from gemma_trainer.data.options import Checked
from gemma_trainer.data.running.keys import prompt_text
from gemma_trainer.data.running.part import Part
from gemma_trainer.data.stats import Stats


class Shapes:
    """Adds every valid row of a batch to a Stats, and its prompt to what rows are compared by."""

    needs_rows = False

    def take(self, checked: Checked, part: Part) -> None:
        if checked.data is not None:
            self._add(checked.data, part)

    def take_line(self, line: bytes, row: dict, part: Part) -> bool:
        self._add(row, part)
        return True

    def _add(self, row: dict, part: Part) -> None:
        part.taken = part.taken or Stats()
        part.taken.add(row, *(part.size or (None, None, None)))
        if not part.keys.prompts.holds(part.rows):  # with the split of the row, which must stay
            part.keys.put_prompt(part.rows, prompt_text(row), None)


def shape_lines(stats: dict) -> list[str]:
    """The facts of Stats.as_dict() that people look for first, a line each."""
    tokens = stats["tokens"]
    sure = "" if tokens["exact"] else " (guessed: pass --model)"
    places = ", ".join(f"{name} {tokens[name]}" for name in ("p50", "p95", "p99", "max"))
    lines = [f"tokens  total {tokens['total']}, {places}{sure}"]
    if tokens["suggested_max_length"]:
        lines.append(f"        --max-length {tokens['suggested_max_length']} holds 99 % of the rows whole")
    roles = ", ".join(f"{role} {facts['messages']}" for role, facts in stats["roles"].items())
    scripts = ", ".join(f"{script} {facts['share']:.0%}" for script, facts in list(stats["scripts"].items())[:5])
    lines += [f"roles   {roles}"] * bool(roles) + [f"scripts {scripts}"] * bool(scripts)
    if stats["tools"]["calls"]:
        lines.append(f"tools   {stats['tools']['calls']} calls, {stats['tools']['results']} results")
    return lines
