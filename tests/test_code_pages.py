"""The pages of codes, the table of codes and the code itself agree."""

from __future__ import annotations

import re
from pathlib import Path

from gemma_trainer.rows import code_page
from gemma_trainer.rows.codes import CODES
from gemma_trainer.rows.data_codes import DATA_CODES

ROOT = Path(__file__).parents[1]
REFERENCES = ROOT / "references"


def test_pages_are_those_of_the_table():
    how = "run: PYTHONPATH=assets python -m gemma_trainer.rows.code_page references"
    for name, text in code_page.pages().items():
        assert (REFERENCES / name).read_text("utf-8") == text, how
    assert {file.name for file in REFERENCES.glob("error-codes*.md")} == set(code_page.PAGES)


def test_every_code_is_explained_once_and_named_in_the_index():
    texts = code_page.pages()
    explained = [code for text in texts.values() for code in re.findall(r"^\| `([a-z0-9-]+)` \|", text, re.MULTILINE)]
    assert sorted(explained) == sorted(CODES)
    assert set(re.findall(r"`([a-z0-9-]+)`", texts[code_page.INDEX])) >= set(CODES)


def test_every_data_code_is_used_and_every_used_code_is_in_the_table():
    sources = "".join(path.read_text("utf-8") for path in (ROOT / "assets/gemma_trainer/data").rglob("*.py"))
    assert [code for code in DATA_CODES if f'"{code}"' not in sources] == []
    used = re.findall(r'(?:fault|repair|Refused|Fault|Problem)\(\s*"([a-z0-9-]+)"', sources)
    assert set(used) <= set(CODES)
