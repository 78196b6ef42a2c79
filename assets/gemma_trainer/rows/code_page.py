"""references/error-codes.md, made from the table of codes.

PYTHONPATH=assets python -m gemma_trainer.rows.code_page > references/error-codes.md
"""

from __future__ import annotations

from gemma_trainer.rows.codes import CODES

HEAD = """# Error codes

Every error and warning of every script has one of these codes. An error fails the command; a warning fails it under
`--strict` only. `--report FILE.jsonl` of dataset_prep.py takes all problems, not only those that are printed.

| code | | cause | fix |
| --- | --- | --- | --- |
"""


def page() -> str:
    """The whole page, codes in alphabetical order."""
    return HEAD + "".join(_line(code) for code in sorted(CODES))


def _line(code: str) -> str:
    severity, cause, fix = CODES[code]
    cells = (f"`{code}`", severity, cause, fix)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


if __name__ == "__main__":
    print(page(), end="")
