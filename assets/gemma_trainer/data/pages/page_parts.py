"""Pieces of the HTML page: escaping, numbers for people, bars, the length histogram. Nothing here trusts a text."""

from __future__ import annotations

import re
from html import escape

# What a browser would hide, reorder or not take: controls, lone surrogates, marks that turn the writing direction.
ODD = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ufffe\uffff\ud800-\udfff]"
)
_CHART = 1000, 220  # user units of the histogram; the page stretches it
_TICKS = 6
_MARK_WIDTH = 0.08  # of the chart, that the name of a percentile takes on a phone


def code_point(match: re.Match[str]) -> str:
    return f"U+{ord(match[0]):04X}"


def plain(value: object) -> str:
    """A value as escaped text, good inside elements and quoted attributes."""
    return escape(ODD.sub(code_point, str(value)))


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:,}"


def percent(share: float) -> str:
    """A share of 1 as percent, where neither something is called nothing nor nearly all is called all."""
    if 0 < share < 0.01:
        return "under 1\u00a0%"
    if 0.99 < share < 1:
        return "over 99\u00a0%"
    return f"{share:.0%}".replace("%", "\u00a0%")


def count_of(count: int, word: str) -> str:
    return f"{number(count)} {word}{'' if count == 1 else 's'}"


def with_code(text: str) -> str:
    """A sentence of ours, whose words between backticks are code."""
    parts = plain(text).split("`")
    return "".join(f"<code>{part}</code>" if at % 2 else part for at, part in enumerate(parts))


def tiles(facts: list[tuple[str, str]]) -> str:
    """Large numbers with small names."""
    items = "".join(f"<div><dt>{plain(name)}</dt><dd>{plain(value)}</dd></div>" for name, value in facts)
    return f'<dl class="tiles">{items}</dl>'


def table(caption: str, heads: list[str], rows: list[list[str]], kind: str = "") -> str:
    """`rows` are HTML. On a narrow screen each cell stands under its own head."""
    top = "".join(f'<th scope="col">{plain(head)}</th>' for head in heads)
    body = "".join(
        "<tr>"
        + "".join(f'<td data-head="{plain(head)}">{cell}</td>' for head, cell in zip(heads, row, strict=True))
        + "</tr>"
        for row in rows
    )
    head = f"<caption>{plain(caption)}</caption><thead><tr>{top}</tr></thead>"
    return f'<table class="{kind}">{head}<tbody>{body}</tbody></table>'


def bar_list(caption: str, bars: list[tuple[str, int | float, str]]) -> str:
    """(name, size, what to write) as bars side by side with their names. The longest fills the width."""
    most = max((size for _, size, _ in bars), default=0) or 1
    rows = "".join(
        f'<tr><th scope="row">{plain(name)}</th><td class="bar"><i style="width:{max(size / most * 100, 0.4):.1f}%"></i></td>'
        f'<td class="much">{plain(text)}</td></tr>'
        for name, size, text in bars
    )
    return f'<table class="bars"><caption>{plain(caption)}</caption><tbody>{rows}</tbody></table>'


def histogram(bars: list[list[int]], marks: list[tuple[str, int]], limit: int | None, describe: str) -> str:
    """[first, last, count] ranges of lengths as an SVG; ranges beyond `limit` are hatched and of another colour.

    `marks` are (name, length) such as percentiles. Labels are HTML over the picture, so that they keep their size.
    """
    if not bars:
        return ""
    scale = _Scale(bars)
    most = max(count for _, _, count in bars)
    width, height = _CHART
    rects = []
    for at, (first, last, count) in enumerate(bars):
        left, right = scale.sides(at)
        tall = max(count / most * (height - 20), 2) if count else 0
        kind = ' class="over"' if limit and first > limit else ""
        title = f"{number(first)}–{number(last)}" if last > first else number(first)
        rects.append(
            f'<rect{kind} x="{left * width + 0.7:.1f}" y="{height - tall:.1f}" width="{max((right - left) * width - 1.4, 1):.1f}"'
            f' height="{tall:.1f}"><title>{title} tokens: {count_of(count, "row")}</title></rect>'
        )
    marked = "".join(
        f'<span class="mark{" end" if place > 0.9 else ""}" style="left:{place * 100:.2f}%"><b>{plain(name)}</b></span>'
        for name, place in _apart([(name, scale.place(value)) for name, value in marks])
    )
    return (
        f'<figure class="chart"><p class="most" aria-hidden="true">{count_of(most, "row")}</p><div class="plot">'
        f'<svg viewBox="0 0 {width} {height}" preserveAspectRatio="none" role="img" aria-labelledby="lengths-t lengths-d">'
        f'<title id="lengths-t">Histogram of row lengths in tokens</title><desc id="lengths-d">{plain(describe)}</desc>'
        '<defs><pattern id="hatch" width="9" height="9" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<rect class="ground" width="9" height="9"/><rect class="line" width="4" height="9"/></pattern></defs>'
        f"{''.join(rects)}</svg>{marked}{_limit_mark(scale, limit)}</div>"
        f'<div class="ticks" aria-hidden="true">{_ticks(scale)}</div></figure>'
    )


def _apart(marks: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """Marks whose names would cover each other share one, at the place of the last."""
    out: list[tuple[str, float]] = []
    for name, place in marks:
        if out and place - out[-1][1] < _MARK_WIDTH:
            name = f"{out.pop()[0]}, {name}"
        out.append((name, place))
    return out


class _Scale:
    """Places on the width of the chart, 0 to 1. Ranges at the end that are far wider than the others are drawn short."""

    def __init__(self, bars: list[list[int]]):
        self.bars = bars
        widths = [last - first + 1 for first, last, _ in bars]
        wide = 1.5 * widths[0] + 1
        self.regular = next((at for at, width in enumerate(widths) if width > wide), len(bars))
        unit = max(widths[: self.regular])
        spare = 3 * unit if len(bars) < 6 else 0
        self.edges = [spare]
        for at, width in enumerate(widths):
            self.edges.append(self.edges[-1] + (width if at < self.regular else 2 * unit))
        self.length = self.edges[-1] + spare

    def place(self, value: int, behind: bool = False) -> float:
        """Where a length lies; a range of one length has it in its middle, `behind` gives its end."""
        at = next((at for at, bar in enumerate(self.bars) if value <= bar[1]), len(self.bars) - 1)
        first, last, _ = self.bars[at]
        within = min(1, max(0, (value - first + 1) / (last - first + 1))) if last > first or behind else 0.5
        return (self.edges[at] + within * (self.edges[at + 1] - self.edges[at])) / self.length

    def sides(self, at: int) -> tuple[float, float]:
        return self.edges[at] / self.length, self.edges[at + 1] / self.length


def _limit_mark(scale: _Scale, limit: int | None) -> str:
    if not limit:
        return ""
    if limit > scale.bars[-1][1]:
        return f'<span class="limit off"><b>--max-length {number(limit)} lies beyond →</b></span>'
    at = scale.place(limit, behind=True)
    side = " left" if at > 0.5 else ""
    return f'<span class="limit{side}" style="left:{at * 100:.2f}%"><b>--max-length {number(limit)}</b></span>'


def _ticks(scale: _Scale) -> str:
    single = scale.bars[0][0] == scale.bars[0][1]
    start, end = scale.bars[0][0] - (not single), scale.bars[scale.regular - 1][1]
    step = 1
    while (end - start) / step > _TICKS:
        step = step * 5 // 2 if str(step)[0] == "2" else step * 2
    values = range(-(-start // step) * step, end + 1, step)
    rest = scale.regular < len(scale.bars)
    out = [(scale.place(value), value) for value in values]
    if rest:
        out = [(place, value) for place, value in out if place < 0.86]
    labels = [f'<span style="left:{place * 100:.2f}%">{number(value)}</span>' for place, value in out]
    if rest:
        labels.append(f'<span class="rest" style="left:100%">… {number(scale.bars[-1][1])}</span>')
    return "".join(labels)
