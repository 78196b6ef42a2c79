"""Sections of the HTML page that are drawn from the facts of Stats.as_dict()."""

from __future__ import annotations

from gemma_trainer.data.pages.page_parts import bar_list, count_of, histogram, number, percent, plain, table, tiles

PERCENTILES = (("median", "p50"), ("p90", "p90"), ("p95", "p95"), ("p99", "p99"), ("longest", "max"))
MARKS = ("p50", "p95", "p99")  # percentiles that the picture names
BARS = 12  # of messages and turns


def lengths(stats: dict) -> str:
    tokens = stats.get("tokens")
    if not tokens or not stats["rows"]:
        return ""
    fits = tokens["fits"]
    says = f"95 of 100 rows have at most {number(tokens['p95'])} tokens, the longest {number(tokens['max'])}."
    marks = [(name, tokens[name]) for name in MARKS]
    picture = histogram(tokens["bars"], marks, fits["max_length"] if fits else None, says)
    facts = [(name, number(tokens[key])) for name, key in PERCENTILES]
    if tokens["trained"] is not None and tokens["total"]:
        facts.append(("trained", percent(tokens["trained"] / tokens["total"])))
    guessed = "" if tokens["exact"] else "<strong>Guessed from characters: pass --model for exact lengths.</strong> "
    return (
        f"<p>{guessed}{says} {_fits(fits)}</p>{picture}{tiles(facts)}"
        f"{_max_lengths(tokens, stats['rows'])}{_padding(tokens['padding'])}"
    )


def _fits(fits: dict | None) -> str:
    if not fits:
        return ""
    flag = f'<code class="flag">--max-length {number(fits["max_length"])}</code>'
    if not fits["cut"]:
        return f"None is longer than {flag}."
    return f"{count_of(fits['cut'], 'row')} ({percent(fits['cut_share'])}) would be cut at {flag}."


def _max_lengths(tokens: dict, rows: int) -> str:
    """What each --max-length would cut."""
    body = []
    for most, cut in tokens["cut_at"].items():
        advice = "keeps 99 % whole" if int(most) == tokens["suggested_max_length"] else ""
        body.append(
            [f"<b>{number(int(most))}</b>", number(cut), percent(cut / rows), f"<em>{advice}</em>" if advice else ""]
        )
    return table("What --max-length would cut", ["max length", "rows cut", "share", "advice"], body, "numbers")


def _padding(padding: dict) -> str:
    if not padding["waste"]:
        return ""
    return (
        f"<p>In batches of {padding['batch']} in this order, {percent(padding['waste'])} of the tokens would be padding: "
        f"{number(padding['padded'])} instead of {number(padding['packed'])}. Packing or grouping by length saves them.</p>"
    )


def shape(stats: dict) -> str:
    if not stats.get("rows"):
        return ""
    blocks = [
        _roles(stats["roles"]),
        _ranges("Messages a row", stats["messages_per_row"]),
        _ranges("Answered questions a row", stats["turns_per_row"]),
        _scripts(stats["scripts"]),
        _tools(stats["tools"]),
        _preferences(stats["preferences"]),
        _others(stats),
    ]
    return f'<div class="blocks">{"".join(f"<div>{block}</div>" for block in blocks if block)}</div>'


def _roles(roles: dict) -> str:
    heads = ["role", "messages", "median", "p95", "longest"]
    rows = [
        [plain(role), *(number(fact[key]) for key in ("messages", "p50", "p95", "max"))] for role, fact in roles.items()
    ]
    return table("Messages by role, sizes in characters", heads, rows, "numbers") if rows else ""


def _ranges(caption: str, ranges: list[list[int]]) -> str:
    filled = [(first, last, count) for first, last, count in ranges if count]
    shown, rest = filled[: BARS - 1], filled[BARS - 1 :]
    if len(rest) > 1:
        rest = [(rest[0][0], rest[-1][1], sum(count for _, _, count in rest))]
    bars = [
        (number(first) if first == last else f"{number(first)}–{number(last)}", count, count_of(count, "row"))
        for first, last, count in shown + rest
    ]
    return bar_list(caption, bars) if bars else ""


def _scripts(scripts: dict) -> str:
    bars = [
        (
            name,
            fact["share"],
            " · ".join([percent(fact["share"]), *([count_of(fact["rows"], "row")] if fact["rows"] else [])]),
        )
        for name, fact in scripts.items()
    ]
    return bar_list("Scripts, by share of letters", bars) if bars else ""


def _tools(tools: dict) -> str:
    if not tools["rows"] and not tools["calls"]:
        return ""
    bars = [(name, count, count_of(count, "call")) for name, count in tools["by_name"].items()]
    if tools["other"]:
        bars.append(("all others", tools["other"], count_of(tools["other"], "call")))
    lead = f"{count_of(tools['rows'], 'row')} with tools, {count_of(tools['calls'], 'call')}, {count_of(tools['results'], 'result')}."
    return (bar_list("Tool calls by name", bars) if bars else "<h3>Tools</h3>") + f"<p>{lead}</p>"


def _preferences(pairs: dict | None) -> str:
    if not pairs:
        return ""
    bars = [
        (side, pairs[f"{side}_characters"], f"{number(pairs[f'{side}_characters'])} characters")
        for side in ("chosen", "rejected")
    ]
    lead = f"The chosen answer is the longer one in {percent(pairs['chosen_longer_share'])} of {count_of(pairs['rows'], 'pair')}"
    biased = pairs["rows"] >= 20 and pairs["chosen_longer_share"] >= 0.75
    return (
        bar_list("Mean length of answers", bars)
        + f"<p>{lead}{': a model may learn to write more' if biased else ''}.</p>"
    )


def _others(stats: dict) -> str:
    """Facts that only some data sets have."""
    system, thinking = stats["system"], stats["thinking"]
    lines = []
    if system["rows"]:
        distinct = f"{'at least ' if system['more'] else ''}{count_of(system['distinct'], 'different prompt')}"
        lines.append(f"System prompt in {percent(system['share'])} of the rows, {distinct}.")
    if thinking["rows"]:
        lines.append(
            f"Thinking in {percent(thinking['share'])} of the rows, {number(thinking['characters'])} characters."
        )
    lines += [f"{count_of(count, f'part of type {kind}')}." for kind, count in stats["media"].items()]
    if stats["weight_0_messages"]:
        lines.append(f"{count_of(stats['weight_0_messages'], 'message')} of weight 0, left out of the loss.")
    items = "".join(f"<li>{plain(line)}</li>" for line in lines)
    return f"<h3>Also</h3><ul>{items}</ul>" if items else ""
