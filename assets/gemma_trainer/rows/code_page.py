"""The pages references/error-codes*.md, made from the table of codes.

PYTHONPATH=assets python -m gemma_trainer.rows.code_page references
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from gemma_trainer.rows import data_codes
from gemma_trainer.rows.codes import CODES, COMMAND, RENDERING
from gemma_trainer.rows.distill_codes import DISTILL
from gemma_trainer.rows.planning_codes import PLANNING
from gemma_trainer.rows.training_codes import TRAINING


class Page(NamedTuple):
    """One file: its title, what it is about, and {heading: codes}."""

    title: str
    about: str
    sections: dict[str, Iterable[str]]


INDEX = "error-codes.md"
_ABOUT = (
    "Every error and warning of every script has one of these codes. An error fails the command; a warning fails it "
    "under `--strict` only. `--report FILE.jsonl` of dataset_prep.py takes all problems, not only those that are printed. "
    "A data code that names a repair is a warning: training and `convert` use the repaired row."
)
PAGES = {
    INDEX: Page(
        "Error codes",
        _ABOUT,
        {"Any command": COMMAND, "Rendering and tokenizers": RENDERING},
    ),
    "error-codes-training.md": Page(
        "Error codes of training and distillation",
        "Models, runs, measuring, teachers. All codes: [error-codes.md](error-codes.md).",
        {"Planning": PLANNING, "Models, training and evaluation": TRAINING, "Distillation": DISTILL},
    ),
    "error-codes-files.md": Page(
        "Error codes of data files",
        "Reading files, telling layouts, rows against each other. All codes: [error-codes.md](error-codes.md).",
        {
            "Bytes, JSON, tables": data_codes.READING,
            "Layouts and messages": data_codes.LAYOUT,
            "Rows of a set, lengths": data_codes.ACROSS,
            "Replies of a teacher": data_codes.TEACHER,
            "Converting": data_codes.CONVERT,
        },
    ),
    "error-codes-rows.md": Page(
        "Error codes of rows",
        "What stands in a row that could be read. All codes: [error-codes.md](error-codes.md).",
        {
            "Conversations": data_codes.CHAT,
            "Tools": data_codes.TOOLS,
            "Images, audio, video": data_codes.MEDIA,
            "Preferences": data_codes.PREFERENCE,
            "Text rows": data_codes.TEXT,
        },
    ),
}


def pages() -> dict[str, str]:
    """{file name: text} of all pages; codes stand in alphabetical order in their section."""
    return {name: _page(name, page) for name, page in PAGES.items()}


def _page(name: str, page: Page) -> str:
    parts = [f"# {page.title}\n", textwrap.fill(page.about, 120) + "\n"]
    if name == INDEX:
        parts += [_names(other) for other in PAGES if other != INDEX]
    return "\n".join([*parts, *(_section(title, codes) for title, codes in page.sections.items())])


def _names(name: str) -> str:
    """A page and the codes that it explains."""
    codes = sorted(code for codes in PAGES[name].sections.values() for code in codes)
    listed = textwrap.fill(", ".join(f"`{code}`" for code in codes) + ".", 120, break_on_hyphens=False)
    return f"[{name}]({name}) explains\n{listed}\n"


def _section(title: str, codes: Iterable[str]) -> str:
    head = f"## {title}\n\n| code | | cause | fix |\n| --- | --- | --- | --- |\n"
    return head + "".join(_line(code) for code in sorted(codes))


def _line(code: str) -> str:
    severity, cause, fix = CODES[code]
    cells = (f"`{code}`", severity, cause, fix)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


if __name__ == "__main__":
    for file, content in pages().items():
        (Path(sys.argv[1]) / file).write_text(content, "utf-8")
