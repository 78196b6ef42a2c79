"""Faults of the HTML page: by code, with their first places, cause and fix; repeats have a section of their own."""

from __future__ import annotations

from pathlib import Path

from gemma_trainer.data.pages.page_parts import count_of, number, plain, table, with_code
from gemma_trainer.rows.codes import CODES
from gemma_trainer.rows.problems import Problem

PLACES = 3  # of a fault that are named
REPEATS = ("duplicate-row", "duplicate-prompt", "duplicate-id", "split-leak", "pair-contradiction")


def faults(facts: dict, problems: list[Problem]) -> str:
    counts = _counts(facts)
    if not counts:
        return "<p>None were found.</p>"
    ordered = sorted(counts, key=lambda code: (CODES[code].severity != "error", -counts[code], code))
    errors = sum((facts.get("errors_by_code") or {}).values())
    lead = f"{count_of(errors, 'error')} and {count_of(sum(counts.values()) - errors, 'warning')}."
    return f"<p>{lead}</p>" + _table("Faults by code", ordered, counts, problems)


def _table(caption: str, codes: list[str], counts: dict, problems: list[Problem]) -> str:
    rows = []
    several = len({problem.file for problem in problems}) > 1
    for code in codes:
        entry, found = CODES[code], [problem for problem in problems if problem.code == code]
        fix = next((problem.fix for problem in found if problem.fix), None) or entry.fix
        example = f'<p class="example">{plain(found[0].message)}</p>' if found else ""
        rows.append([
            f'<span class="severity {entry.severity}">{entry.severity}</span>',
            f"<code>{plain(code)}</code>",
            f"<b>{number(counts[code])}</b>",
            _places(found, counts[code], several),
            with_code(entry.cause) + example,
            with_code(fix),
        ])  # fmt: skip
    return table(caption, ["severity", "code", "count", "first places", "cause", "fix"], rows, "faults")


def _places(found: list[Problem], count: int, several: bool) -> str:
    shown = found[:PLACES]
    out = [f'<li title="{plain(problem.file or "")}">{plain(_place(problem, several))}</li>' for problem in shown]
    if len(shown) < count and shown:
        out.append(f"<li>and {number(count - len(shown))} more</li>")
    return f'<ul class="places">{"".join(out)}</ul>'


def _place(problem: Problem, several: bool) -> str:
    """Line or row, after the name of the file where there are several files or no line."""
    where = (
        f"line\u00a0{number(problem.line)}"
        if problem.line
        else f"row\u00a0{number(problem.row)}"
        if problem.row
        else ""
    )
    file = Path(problem.file).name if problem.file and (several or not where) else ""
    return " ".join(filter(None, (file, where)))


def repeats(facts: dict, problems: list[Problem]) -> str:
    """Rows that stand in the data twice, or on both sides of a split."""
    if not facts.get("rows"):
        return ""
    counts = {code: count for code, count in _counts(facts).items() if code in REPEATS}
    lead = _repeated(facts.get("duplicates") or {})
    if not counts:
        return f"<p>{lead or 'None were found.'}</p>"
    codes = [code for code in REPEATS if code in counts]
    return (f"<p>{lead}</p>" if lead else "") + _table("Rows that repeat others", codes, counts, problems)


def _repeated(duplicates: dict) -> str:
    """Counts of rows whose whole, or whose prompt, an earlier row has; None where they were not compared."""
    rows, prompts = duplicates.get("rows"), duplicates.get("prompts")
    told = [f"{count_of(rows, 'row')} the same as an earlier one"] if rows else []
    told += [f"{count_of(prompts, 'row')} with the prompt of an earlier one, case and blanks aside"] if prompts else []
    return " and ".join(told) + "." if told else ""


def _counts(facts: dict) -> dict[str, int]:
    return {**(facts.get("errors_by_code") or {}), **(facts.get("warnings_by_code") or {})}
