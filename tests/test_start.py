"""What --model and --adapter may name, and what a run then starts from."""

import json

import pytest

from gemma_trainer.rows.problems import Failure
from gemma_trainer.train.start import find_start


@pytest.fixture
def place(tmp_path):
    """A model, a finished adapter run on it with a checkpoint, and a finished run of all weights."""

    def write(folder, status=None, **files):
        (tmp_path / folder).mkdir(parents=True)
        if status:
            files["run.json"] = json.dumps({"status": status, "plan": {"method": "sft"}})
        for name, text in files.items():
            (tmp_path / folder / name.replace("_json", ".json")).write_text(text)

    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 8}
    config["base_model_name_or_path"] = str(tmp_path / "base")
    adapter = {"adapter_config.json": json.dumps(config), "adapter_model.safetensors": "weights"}
    write("base", **{"config.json": "{}", "tokenizer.json": "{}"})
    write("run", "done", **adapter, **{"tokenizer.json": "{}"})
    write("run/checkpoints/checkpoint-2", **adapter)
    write("full", "done", **{"config.json": "{}"})
    write("half", "stopped", **adapter)
    write("empty", **{"adapter_config.json": json.dumps(config)})
    write("moved", **adapter | {"adapter_config.json": json.dumps({**config, "base_model_name_or_path": "/no/base"})})
    write("broken", **adapter | {"adapter_config.json": "{"})
    write("reward", **adapter | {"adapter_config.json": json.dumps({**config, "task_type": "SEQ_CLS"})})
    write("rewards", "done", **{"config.json": json.dumps({"architectures": ["Gemma3TextForSequenceClassification"]})})
    write("prompts", **adapter | {"adapter_config.json": json.dumps({**config, "peft_type": "PROMPT_TUNING"})})
    return tmp_path


@pytest.mark.parametrize(
    "model, adapter, base, on_it, files, tuned",
    [
        ("base", None, "base", None, "base", False),
        ("full", None, "full", None, "full", True),
        (None, "full", "full", None, "full", True),
        ("run", None, "base", "run", "run", True),
        (None, "run", "base", "run", "run", True),
        ("full", "run", "full", "run", "run", True),
        (None, "run/checkpoints/checkpoint-2", "base", "run/checkpoints/checkpoint-2", "base", True),
    ],
)
def test_runs_adapters_and_models_are_told_apart(model, adapter, base, on_it, files, tuned, place, monkeypatch):
    monkeypatch.chdir(place)
    start = find_start(model, adapter)
    assert (start.model, start.files, start.tuned) == (str(place / base), str(place / files), tuned)
    if on_it is None:
        assert start.adapter is None
    else:
        assert {**start.adapter, "hash": ""} == {"path": str(place / on_it), "hash": "", "rank": 4, "alpha": 8}


def test_a_hub_id_stays_one():
    start = find_start("google/gemma-3-270m-it", None)
    assert start == ("google/gemma-3-270m-it", None, "google/gemma-3-270m-it") and not start.tuned


def test_the_hash_is_of_the_content(place):
    before = find_start(None, str(place / "run")).adapter["hash"]
    (place / "run" / "README.md").write_text("a note")
    assert find_start(None, str(place / "run")).adapter["hash"] == before
    (place / "run" / "adapter_model.safetensors").write_text("weightz")
    assert find_start(None, str(place / "run")).adapter["hash"] != before


@pytest.mark.parametrize(
    "model, adapter, code",
    [
        (None, "half", "run-unfinished"),
        ("half", None, "run-unfinished"),
        (None, "empty", "adapter-unreadable"),
        (None, "base/tokenizer.json", "adapter-unreadable"),
        (None, "nowhere", "adapter-unreadable"),
        (None, "reward", "reward-model-given"),
        ("reward", None, "reward-model-given"),
        (None, "rewards", "reward-model-given"),
        ("rewards", None, "reward-model-given"),
        ("rewards", "run", "reward-model-given"),
        (None, "prompts", "adapter-unreadable"),
        ("run", "run", "usage"),
        (None, "moved", "model-not-found"),
        ("base", "broken", "adapter-unreadable"),
        (None, "broken", "adapter-unreadable"),
    ],
)
def test_what_cannot_be_started_from_is_refused(model, adapter, code, place, monkeypatch):
    monkeypatch.chdir(place)
    with pytest.raises(Failure) as failure:
        find_start(model, adapter)
    assert (failure.value.exit_code, failure.value.problem.code) == (2, code)
