"""The example prompts, seeds, tools, document and verifier in assets/examples/prompts."""

import asyncio
import json

import pytest

from gemma_trainer.data.model import describe_model
from gemma_trainer.distill.judge import read_rubric
from gemma_trainer.distill.seeds import read_passages, read_seeds, read_tools
from gemma_trainer.distill.tool_rows import Tools
from gemma_trainer.distill.verify import Verifier
from preparing import codes, lines, prep
from scripts import ASSETS

EXAMPLES = ASSETS / "examples" / "prompts"


@pytest.mark.parametrize(("name", "task"), [("prompts.jsonl", "prompts"), ("seeds.jsonl", "sft")])
@pytest.mark.parametrize("family", ["gemma3", "gemma4"])
def test_rows_validate_without_a_warning(name, task, family):
    code, document = prep("validate", EXAMPLES / name, "--task", task, "--family", family)
    assert code == 0 and not codes(document) and document["result"]["rows"] >= 8


def test_seeds_have_answers_and_are_no_prompts():
    seeds, warnings = read_seeds([EXAMPLES / "seeds.jsonl"], describe_model("gemma4", None))
    assert not warnings and all(seed.answer for seed in seeds)
    assert not {seed.prompt for seed in seeds} & {row["prompt"] for row in lines(EXAMPLES / "prompts.jsonl")}


def test_tools_are_declared_whole(tmp_path):
    tools = read_tools(EXAMPLES / "tools.json")
    row = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "tools": tools}
    assert len(tools) == 4 and Tools(tools)
    path = tmp_path / "row.jsonl"
    path.write_text(json.dumps(row))
    code, document = prep("validate", path, "--family", "gemma4")
    assert code == 0 and not codes(document)


def test_the_document_gives_passages():
    _, passages = read_passages([str(EXAMPLES / "handbook.md")])
    assert len(passages) >= 1 and all(passage.text for passage in passages)


def test_the_verifier_and_the_rubric_load():
    verifier = Verifier(f"{EXAMPLES / 'checks.py'}:short_and_ended")
    try:
        scores = [asyncio.run(verifier.score(text, {})) for text in ("Rye.", "Rye and", "word " * 200 + ".")]
    finally:
        verifier.close()
    assert [score for score, _ in scores] == [1, 0, 0]
    assert read_rubric(EXAMPLES / "rubric.md")
