"""assets/configs: every preset plans on the hardware that it names, for what it says that it costs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from gemma_trainer.families.checkpoints import find_checkpoint
from scripts import ASSETS, run

QUICK = {
    "gemma4-e2b_sft_1x16g",
    "gemma3-1b_dpo_1x16g",
    "gemma3-4b_rm_1x24g",
    "gemma3-1b_sft-full_1x24g",
    "gemma3-270m_sft_cpu",
}
PRESETS = sorted((ASSETS / "configs").glob("*_*.yaml"))
PLAN = json.loads((ASSETS / "schemas" / "plan.json").read_text())
CASES = [pytest.param(each, id=each.stem, marks=[] if each.stem in QUICK else pytest.mark.slow) for each in PRESETS]
LONG = "word " * 17_000


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> dict[str, Path]:
    """{method: rows of which one is longer than any preset takes}."""
    folder = tmp_path_factory.mktemp("rows")
    answers, pairs = [], []
    for i in range(20):
        asked = [{"role": "user", "content": f"How many boats are in harbour {i}?"}]
        said = [{"role": "assistant", "content": f"There are {i} boats. " + LONG * (i == 0)}]
        answers.append({"messages": asked + said})
        pairs.append({"prompt": asked, "chosen": said, "rejected": [{"role": "assistant", "content": "Many."}]})
    files = {"sft": folder / "rows.jsonl", "dpo": folder / "pairs.jsonl", "rm": folder / "pairs.jsonl"}
    for method, lines in (("sft", answers), ("dpo", pairs)):
        files[method].write_text("".join(json.dumps(line) + "\n" for line in lines))
    return files


def header(preset: Path) -> dict[str, str]:
    lines = [line for line in preset.read_text("utf-8").splitlines() if line.startswith("#")]
    return dict(re.split(r"\s{2,}", line[2:], maxsplit=1) for line in lines[1:])


def plan(preset: Path, rows: dict[str, Path], hardware: str, *words: object) -> dict:
    """What the preset's script plans for rows as long as they may be."""
    method = re.split("[-_.]", preset.name.split("_", 1)[1])[0]
    fixed = ("--config", preset, "--data", rows[method], "--eval-fraction", 0, "--overlong", "truncate")
    done = run(f"{method}_train.py", *fixed, "--plan", "--emulate", hardware, "--json", *words, HF_HUB_OFFLINE="1")
    assert done.code == 0, done.stdout
    return done.json["result"]["plan"]


def test_there_are_presets_for_the_commonest_models_and_methods():
    names = [preset.name for preset in PRESETS]
    assert len(names) >= 12 and {"gemma4-e2b_sft_1x16g.yaml", "gemma3-270m_sft_cpu.yaml"} <= set(names)
    for method in ("sft", "dpo", "rm"):
        assert any(f"_{method}" in name for name in names)


@pytest.mark.parametrize("preset", CASES)
def test_a_preset_fits_and_costs_what_it_says(preset, rows):
    told, values = header(preset), yaml.safe_load(preset.read_text("utf-8"))
    found = plan(preset, rows, told["hardware"])
    jsonschema.validate(found, PLAN)
    memory, length = found["memory"], values["max-length"]
    assert memory["fits"] and memory["memory_gib"]["total"] <= memory["budget_gib"]
    assert (found["mode"], found["max_length"], found["data"]["longest"]) == (values["mode"], length, length)
    said = re.fullmatch(r"(\S+) GiB with texts of (\S+) tokens and (\d+) (?:row|pair)s? a pass; a run may take (\S+)", told["predicted"])  # fmt: skip
    assert said[2] == f"{length:,}" and int(said[3]) == found["micro_batch_size"]
    assert (said[1], said[4]) == (f"{memory['memory_gib']['total']:.1f}", f"{memory['budget_gib']:.1f}")
    assert (
        f"--config assets/configs/{preset.name} " in told["run"] and f"assets/{found['method']}_train.py" in told["run"]
    )
    name = find_checkpoint(values["model"]).name.lower()
    assert preset.name.startswith(re.sub("^gemma-", "gemma", name))


@pytest.mark.parametrize("preset", [case for case in CASES if " fits" in header(case.values[0])["change"]])
def test_what_a_preset_says_may_be_changed(preset, rows):
    """`key: value` on the line of changes."""
    told = header(preset)
    changes = re.findall(r"`([a-z-]+): (\S+?)`", told["change"])
    card = "1xRTX4080-16G" if "16 GiB" in told["change"] or "smaller" in told["change"] else told["hardware"]
    known = {"mode", "max-length", "learning-rate"}
    words = [word for key, value in changes for word in (f"--{key}", value)]
    found = plan(preset, rows, card, *words)
    assert found["memory"]["fits"]
    assert found["data"]["longest"] == found["max_length"] and dict(changes).keys() <= known
    if "one row" in told["change"]:
        assert found["micro_batch_size"] == 1
