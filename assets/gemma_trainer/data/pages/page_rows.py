"""Sample rows of the HTML page: the rendered text with its loss mask, control tokens as chips, long ones folded."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from html import escape
from itertools import groupby
from pathlib import Path

from gemma_trainer.data.pages.page_parts import ODD, count_of, number, percent, plain
from gemma_trainer.families.catalogue import FAMILIES
from gemma_trainer.rows.problems import Problem

SHOWN = 4000  # characters of one text; the middle of a longer one is left out
HEAD = SHOWN // 3
FOLDED_LINES, FOLDED_CHARACTERS = 16, 1400  # more than this is folded


def sample_rows(views: list[dict], problems: list[Problem], family: str | None, max_length: int | None) -> str:
    """Views (see view.py) as articles; the two sides of a preference stand beside each other below their prompt."""
    marks = _control_tokens(family)
    told = {}
    for problem in problems:
        told.setdefault((problem.file, problem.row), []).append(problem)
    rows = groupby(views, key=lambda view: (view["file"], view["line"], view["row"]))
    return "".join(
        _row(at, list(group), told.get((where[0], where[2]), []), marks, max_length)
        for at, (where, group) in enumerate(rows, start=1)
    )


def _row(at: int, views: list[dict], problems: list[Problem], marks: re.Pattern, max_length: int | None) -> str:
    first = views[0]
    where = f"line {number(first['line'])}" if first["line"] else f"row {number(first['row'])}"
    head = (
        f'<h3 id="row-{at}" title="{plain(first["file"])}">{plain(Path(first["file"]).name)} <span>{where}</span></h3>'
    )
    faults = "".join(
        f'<li class="{problem.severity}"><b>{problem.severity}</b> <code>{plain(problem.code)}</code> {plain(problem.message)}</li>'
        for problem in problems
    )
    faults = f'<ul class="faults">{faults}</ul>' if faults else ""
    shared = _shared_prompt(views)
    if len(views) == 1:
        body = _facts(first, max_length) + _text(first, f"row-{at}-text", marks)
    else:
        prompt = ""
        if shared:
            prompt = f"<h4>prompt, the same for both</h4>{_text(first, f'row-{at}-prompt', marks, 0, shared)}"
        sides = "".join(
            f'<div class="{plain(view["side"])}"><h4>{plain(view["side"])}</h4>{_facts(view, max_length)}'
            f"{_text(view, f'row-{at}-{number}', marks, shared)}</div>"
            for number, view in enumerate(views)
        )
        body = f'{prompt}<div class="pair">{sides}</div>'
    return f'<article class="row" aria-labelledby="row-{at}">{head}{faults}{body}</article>'


def _shared_prompt(views: list[dict]) -> int:
    """Characters up to the first trained one, where all texts begin with the same."""
    if len(views) < 2 or not all(view["trained"] for view in views):
        return 0
    starts = {view["trained"][0][0] for view in views}
    heads = {view["text"][: max(starts)] for view in views}
    return starts.pop() if len(starts) == len(heads) == 1 else 0


def _facts(view: dict, max_length: int | None) -> str:
    """Sizes of a text and how much of it is trained."""
    tokens, unit = view["tokens"], "token"
    size, trained = tokens, view["trained_tokens"]
    if tokens is None:
        size, unit = len(view["text"]), "character"
        trained = sum(end - start for start, end in view["trained"])
    share = trained / size if size else 0
    long = ""
    if tokens is not None and max_length and tokens > max_length:
        long = f' <strong class="warning">{count_of(tokens - max_length, "token")} over --max-length</strong>'
    meter = f'<span class="meter" aria-hidden="true"><i style="width:{share * 100:.1f}%"></i></span>'
    return f'<p class="sizes">{count_of(size, unit)}, {number(trained)} trained {meter} {percent(share)}{long}</p>'


def _text(view: dict, name: str, marks: re.Pattern, start: int = 0, end: int | None = None) -> str:
    text, trained = view["text"], view["trained"]
    end = len(text) if end is None else end
    if end - start <= SHOWN:
        body = _painted(text, trained, marks, start, end)
        shown = end - start
    else:
        cut, resume = start + HEAD, end - (SHOWN - HEAD)
        lost = sum(max(0, min(resume, b) - max(cut, a)) for a, b in trained)
        note = f"{count_of(resume - cut, 'character')} left out, {number(lost)} of them trained"
        middle = f'<span class="cut">{note}</span>'
        body = _painted(text, trained, marks, start, cut) + middle + _painted(text, trained, marks, resume, end)
        shown = SHOWN
    block = f"<pre>{body}</pre>"
    if shown <= FOLDED_CHARACTERS and text.count("\n", start, end) <= FOLDED_LINES:
        return f'<div class="text">{block}</div>'
    box = f'<input type="checkbox" class="unfold" id="{name}"><label for="{name}"></label>'
    return f'<div class="text fold">{box}{block}</div>'


def _painted(text: str, trained: list[list[int]], marks: re.Pattern, start: int, end: int) -> str:
    """The characters from `start` to `end` as HTML: their text content is the text itself, odd characters aside."""
    return "".join(
        f"<mark>{_chips(text[a:b], marks)}</mark>" if loss else _chips(text[a:b], marks)
        for a, b, loss in _segments(trained, start, end)
    )


def _segments(trained: list[list[int]], start: int, end: int) -> Iterator[tuple[int, int, bool]]:
    at = start
    for first, last in trained:
        first, last = max(first, at), min(last, end)
        if first >= last:
            continue
        if at < first:
            yield at, first, False
        yield first, last, True
        at = last
    if at < end:
        yield at, end, False


def _chips(text: str, marks: re.Pattern) -> str:
    out, at = [], 0
    for found in marks.finditer(text):
        out.append(escape(text[at : found.start()]))
        at = found.end()
        piece = found[0]
        if piece == "\n":
            out.append('<span class="nl">\n</span>')
        elif ODD.fullmatch(piece):
            out.append(f'<span class="odd">U+{ord(piece):04X}</span>')
        else:
            out.append(f'<span class="token">{escape(piece)}</span>')
    out.append(escape(text[at:]))
    return "".join(out)


@lru_cache
def _control_tokens(family: str | None) -> re.Pattern:
    """Control tokens of the family (of all, if it is unknown), line breaks and odd characters."""
    known = [FAMILIES[family]] if family in FAMILIES else FAMILIES.values()
    tokens = sorted({token for one in known for token in one.control_tokens}, key=lambda token: (-len(token), token))
    return re.compile("|".join([*map(re.escape, tokens), "\n", ODD.pattern]))
