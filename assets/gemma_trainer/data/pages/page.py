"""One HTML file about a data set, for people: verdict, faults, loss mask of sample rows, lengths, shape, repeats.

The file loads nothing and runs nothing but its own few lines of script, which its content security policy names by
hash; every text of the data is escaped. The same facts give the same bytes.
"""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from pathlib import Path
from string import Template

from gemma_trainer.data.output import replacing
from gemma_trainer.data.pages.page_facts import lengths, shape
from gemma_trainer.data.pages.page_faults import faults, repeats
from gemma_trainer.data.pages.page_parts import number, plain, tiles
from gemma_trainer.data.pages.page_rows import sample_rows
from gemma_trainer.families.catalogue import FAMILIES
from gemma_trainer.rows.problems import Problem

TEMPLATE = Path(__file__).with_name("page.html")
VERDICTS = {
    "empty": ("○", "No rows", "The data holds no row."),
    "error": ("✕", "Not valid", "Rows with an error are not trained on."),
    "warning": ("!", "Valid, with warnings", "Every row can be trained on; look at the warnings."),
    "ok": ("✓", "Valid", "Every row can be trained on."),
}


def write_page(path: str | Path, facts: dict, stats: dict, views: list[dict], problems: list[Problem]) -> None:
    """Write the page, whole or not at all. Raises Failure (exit 2) where `path` cannot be written.

    `facts` is the result of validate, stats or inspect (schemas/report.json) with, where known, `data` (names of
    files), `max_length` and `next` (commands); `stats` is Stats.as_dict() or empty; `views` come from view_rows;
    `problems` are those that the report kept. Whatever is missing is left out of the page.
    """
    with replacing(Path(path)) as file:
        file.write(page(facts, stats, views, problems))


def page(facts: dict, stats: dict, views: list[dict], problems: list[Problem]) -> str:
    """The HTML text of the page."""
    if isinstance(facts.get("rows"), list):  # of inspect: the views themselves
        facts = {**facts, "rows": facts.get("rows_read", len(facts["rows"]))}
    template = TEMPLATE.read_text("utf-8")
    script = template.partition("<script>")[2].partition("</script>")[0]
    sections = [
        ("faults", "Faults", faults(facts, problems)),
        ("mask", "Loss mask", _mask(facts, views, problems)),
        ("lengths", "Lengths", lengths(stats)),
        ("shape", "What the rows hold", shape(stats)),
        ("repeats", "Duplicates and leaks", repeats(facts, problems)),
    ]
    sections = [section for section in sections if section[2]]
    return Template(template).substitute(
        script_hash=b64encode(sha256(script.encode()).digest()).decode(),
        title=plain(_title(facts, views)),
        header=_header(facts, stats, views),
        nav="".join(f'<li><a href="#{name}">{title}</a></li>' for name, title, _ in sections),
        main="".join(
            f'<section id="{name}" aria-labelledby="{name}-h"><h2 id="{name}-h">{title}</h2>{body}</section>'
            for name, title, body in sections
        ),
    )


def verdict_of(facts: dict) -> str:
    if facts.get("errors_by_code"):
        return "error"
    if not facts.get("rows"):
        return "empty"
    return "warning" if facts.get("warnings_by_code") else "ok"


def _title(facts: dict, views: list[dict]) -> str:
    files = facts.get("data") or list(dict.fromkeys(view["file"] for view in views))
    if not files:
        return "Data set"
    return Path(str(files[0])).name + (f" and {len(files) - 1} more" if len(files) > 1 else "")


def _header(facts: dict, stats: dict, views: list[dict]) -> str:
    verdict = verdict_of(facts)
    sign, word, meaning = VERDICTS[verdict]
    tokens = stats.get("tokens") or {}
    about = "" if tokens.get("exact", True) else "about "
    large = [("rows", number(facts.get("rows")))]
    if facts.get("valid") is not None:
        large.append(("valid", number(facts["valid"])))
    if tokens and stats["rows"]:
        large.append(("tokens", about + number(tokens["total"])))
        if tokens["trained"] is not None:
            large.append(("trained", number(tokens["trained"])))
        large.append(("longest row", about + number(tokens["max"])))
    notes = "".join(f"<li>{plain(note)}</li>" for note in facts.get("notes") or ())
    commands = "".join(f"<pre><code>{plain(line)}</code></pre>" for line in facts.get("next") or ())
    return (
        f'<h1>{plain(_title(facts, views))}</h1><p class="verdict {verdict}"><b><span aria-hidden="true">{sign}</span> {word}</b> '
        f"{meaning}</p>{tiles(large)}{_origin(facts)}"
        + (f'<ul class="notes">{notes}</ul>' if notes else "")
        + (f'<div class="next"><h2>Next</h2>{commands}</div>' if commands else "")
    )


def _origin(facts: dict) -> str:
    """What the rows were judged as, and the hashes that name them."""
    family = FAMILIES.get(facts.get("family"))
    told = f"<small>{plain(facts['family_from'])}</small>" if facts.get("family_from") else ""
    names = [
        ("task", plain(facts.get("task") or "")),
        ("layout", plain(facts.get("layout") or "")),
        ("family", plain(family.title if family else facts.get("family") or "") + told),
        ("rendering", plain(facts.get("rendering") or "")),
        ("template", _hash(facts.get("template_hash"))),
        ("data", _hash(facts.get("data_hash"))),
    ]
    items = "".join(f"<div><dt>{name}</dt><dd>{text}</dd></div>" for name, text in names if text)
    return f'<dl class="origin">{items}</dl>'


def _hash(value: str | None) -> str:
    return f'<code title="sha256 {plain(value)}">{plain(value[:12])}</code>' if value else ""


def _mask(facts: dict, views: list[dict], problems: list[Problem]) -> str:
    if not views:
        return ""
    marks = '<span class="token">&lt;marks&gt;</span> are control tokens, one token each; <span class="nl"></span> is a line break.'
    tools = (
        '<p class="tools" hidden><label><input type="checkbox" id="unfold-all"> whole rows</label>'
        '<label><input type="checkbox" id="fade"> fade what is not trained</label></p>'
    )
    rows = sample_rows(views, problems, facts.get("family"), facts.get("max_length"))
    return f'<p class="key">{_lesson(facts, views)} {marks}</p>{tools}{rows}'


def _lesson(facts: dict, views: list[dict]) -> str:
    """What the model learns from these rows."""
    if not any(view["trained"] for view in views):
        return "The model is asked this; nothing of it is trained."
    learns = "The model reads all of it and learns from <mark>what is coloured and underlined</mark>: "
    turns = tuple(family.turn_start for family in FAMILIES.values())
    if not any(turn in view["text"] for view in views for turn in turns):
        return f"{learns}plain text as a whole."
    said = "its last turn" if facts.get("loss_on") == "last" else "what the assistant says"
    return f"{learns}{said} and the marks that end a turn."
