"""rm_train.py as a user runs it: learning, run directory, reload by public libraries, kill and resume, evaluate.py."""

import json
import re
import signal

import jsonschema
import pytest

from scripts import ASSETS, run, signal_after
from training import make_tiny, write_rows

EXAMPLE = ASSETS / "examples" / "preferences"
pytestmark = pytest.mark.slow
KINDS = ("gemma3", "gemma4", "gemma4-vision", "gemma3n")
FAST = ("--epochs", "2", "--learning-rate", "0.006", "--save-steps", "10")


def read_rows(path):
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with tiny models and pairs, where runs may be left."""
    folder = tmp_path_factory.mktemp("place")
    train, held_out = read_rows(EXAMPLE / "train.jsonl")[:400], read_rows(EXAMPLE / "eval.jsonl")[:60]
    texts = [row[side][0]["content"] for row in train for side in ("prompt", "chosen", "rejected")]
    for kind in KINDS:
        make_tiny(folder / kind, kind, texts=texts)
    write_rows(folder / "pairs.jsonl", train)
    write_rows(folder / "held_out.jsonl", held_out)
    return folder


def train(place, name, *words, model="gemma3"):
    fixed = ("--data", "pairs.jsonl", "--eval-data", "held_out.jsonl", "--output-dir", name, "--json")
    return run("rm_train.py", *(("--model", model) if model else ()), *fixed, *words, cwd=place)


def evaluate(place, name, *words):
    output = f"{name}-scores.jsonl"
    done = run("evaluate.py", *words, "--data", "held_out.jsonl", "--compare-base", "--output", output, "--json", cwd=place)  # fmt: skip
    assert done.code == 0, done.stdout
    return done.json["result"], read_rows(place / output)


def conversation(row, side="chosen"):
    return [*row["prompt"], *row[side]]


def scores_of_card(folder, rows):
    """What the code of the model card prints, for each chosen answer."""
    card = (folder / "README.md").read_text()
    code = re.search(r"```python\n(.*?)```", card, re.S).group(1).replace("PATH_OF_THIS_FOLDER", str(folder))
    assert "gemma_trainer" not in code and len(code.splitlines()) < 20
    asked = re.search(r"^conversation = .*$", code, re.M).group()
    loaded, scored = code.split(asked)
    names: dict = {}
    exec(loaded, names)
    told: list[str] = []
    names["print"] = lambda value: told.append(value)
    for row in rows:
        names["conversation"] = conversation(row)
        exec(scored, names)
    return told


BOTH = [pytest.param(kind, marks=pytest.mark.main_path) for kind in ("gemma3", "gemma4-vision")]  # sets of versions


@pytest.mark.parametrize("kind", [*BOTH, "gemma4", "gemma3n"])
def test_preferences_are_learned_and_come_back_from_the_folder(kind, place):
    from gemma_trainer.models.reward import load_reward_model

    done = train(place, f"lora-{kind}", *FAST, model=kind)
    assert done.code == 0, done.stdout
    folder, result = place / f"lora-{kind}", done.json["result"]
    record = json.loads((folder / "run.json").read_text())
    jsonschema.validate(record, json.loads((ASSETS / "schemas" / "run.json").read_text()))
    assert record["status"] == "done" and record["metrics"]["reopened"]["effect"] > 0
    metrics = result["metrics"]
    assert metrics["before"]["reward_accuracy"] == 0.5 and metrics["after"]["reward_accuracy"] >= 0.9

    measured, lines = evaluate(place, f"lora-{kind}", "--adapter", folder)
    assert measured["base"] == {"reward_accuracy": 0.5, "reward_margin": 0.0}
    assert measured["tuned"] == pytest.approx({key: metrics["after"][key] for key in measured["tuned"]}, abs=1e-5)
    rows = read_rows(place / "held_out.jsonl")
    expected = [line["chosen_reward"] for line in lines]
    rewards = load_reward_model(folder)
    assert rewards.score([conversation(row) for row in rows]) == pytest.approx(expected, abs=1e-5)
    assert rewards.score([conversation(row) for row in rows[:9]], batch_size=1) == pytest.approx(expected[:9], abs=1e-5)
    assert scores_of_card(folder, rows[:9]) == pytest.approx(expected[:9], abs=1e-5)
    told = folder / "README.md"
    assert "reward accuracy" in told.read_text() and "evaluate.py" in done.json["next"][0]


@pytest.mark.parametrize("kind, mode, dtype", [("gemma3", "full", "float32"), ("gemma4-vision", "full", "bfloat16"), ("gemma4-vision", "qlora", "float32"), ("gemma3", "lora", "bfloat16")])  # fmt: skip
def test_other_modes_come_back_from_the_folder(kind, mode, dtype, place, monkeypatch):
    import bitsandbytes

    from gemma_trainer.models.reward import load_reward_model

    # The layers of a tiny model are too narrow for the kernels of CPUs that compute in bfloat16.
    monkeypatch.setattr(bitsandbytes.nn.modules, "has_avx512bf16", lambda: False)
    name = f"{mode}-{dtype}-{kind}"
    done = train(place, name, "--mode", mode, "--dtype", dtype, "--max-steps", "12", *FAST[2:], model=kind)
    assert done.code == 0, done.stdout
    folder, after = place / name, done.json["result"]["metrics"]["after"]
    measured, lines = evaluate(place, name, "--model" if mode == "full" else "--adapter", folder)
    coarse = 0.05 if dtype == "bfloat16" else 1e-5  # batches of other shapes round in another way
    assert after["reward_accuracy"] > 0.6
    assert measured["tuned"] == pytest.approx({key: after[key] for key in measured["tuned"]}, abs=coarse)
    rows = read_rows(place / "held_out.jsonl")[:9]
    alone = load_reward_model(folder).score([conversation(row) for row in rows], batch_size=1)
    assert scores_of_card(folder, rows) == pytest.approx(alone, abs=1e-5)
    assert alone == pytest.approx([line["chosen_reward"] for line in lines[:9]], abs=coarse)


DROPOUT = ("--max-steps", "24", "--learning-rate", "0.003", "--save-steps", "4", "--lora-dropout", "0.1", "--micro-batch-size", "4")  # fmt: skip


def losses(folder):
    return {line["step"]: line["loss"] for line in read_rows(folder / "metrics.jsonl") if "loss" in line}


@pytest.fixture(scope="module")
def undisturbed(place):
    assert train(place, "whole", *DROPOUT).code == 0
    return place / "whole"


@pytest.mark.parametrize("step, number", [(6, signal.SIGKILL), (13, signal.SIGKILL), (9, signal.SIGTERM)])
def test_a_stopped_run_resumes_to_the_same_losses(step, number, place, undisturbed):
    name = f"stopped-{step}"
    fixed = ("--model", "gemma3", "--data", "pairs.jsonl", "--eval-data", "held_out.jsonl", "--output-dir", name)
    code, _ = signal_after(place / name, step, number, "rm_train.py", *fixed, "--json", *DROPOUT, cwd=place)
    assert code == (6 if number == signal.SIGTERM else -number)
    assert train(place, name, *DROPOUT).code == 0
    assert losses(place / name) == pytest.approx(losses(undisturbed), abs=1e-6)
    a, b = ((folder / "adapter_model.safetensors").read_bytes() for folder in (place / name, undisturbed))
    assert a == b


@pytest.fixture(scope="module")
def sft(place):
    """A short LoRA run of sft_train.py."""
    rows = [{"messages": conversation(row)} for row in read_rows(place / "pairs.jsonl")[:60]]
    write_rows(place / "chats.jsonl", rows)
    words = (
        "--model",
        "gemma4",
        "--data",
        "chats.jsonl",
        "--output-dir",
        "sft",
        "--max-steps",
        "4",
        "--lora-rank",
        "4",
    )
    assert run("sft_train.py", *words, "--learning-rate", "0.01", "--json", cwd=place).code == 0
    return place / "sft"


def test_it_starts_from_an_sft_run(place, sft):
    before = {path.name: path.read_bytes() for path in sft.iterdir() if path.is_file()}
    done = train(place, "on-sft", "--adapter", "sft", *FAST, model=None)
    assert done.code == 0, done.stdout
    plan = done.json["result"]["plan"]
    assert plan["lora"]["rank"] == 4 and plan["adapter"]["path"] == str(sft)
    assert done.json["result"]["metrics"]["after"]["reward_accuracy"] > 0.7
    assert before == {path.name: path.read_bytes() for path in sft.iterdir() if path.is_file()}
    measured, _ = evaluate(place, "on-sft", "--adapter", place / "on-sft")
    assert measured["tuned"]["reward_accuracy"] == done.json["result"]["metrics"]["after"]["reward_accuracy"]


@pytest.mark.parametrize(
    "name, words",
    [
        ("dpo", ("--model", "gemma4")),
        ("dpo-full", ("--model", "gemma3", "--mode", "full")),
        ("dpo-sft", ("--adapter", "sft")),
        ("dpo-full-sft", ("--adapter", "sft", "--mode", "full")),
    ],
)
def test_evaluate_measures_the_implicit_rewards_of_dpo_runs(name, words, place, sft):
    """Against the reference that the run had: its base, or the SFT adapter that it started from."""
    fixed = ("--data", "pairs.jsonl", "--eval-data", "held_out.jsonl", "--output-dir", name, "--max-steps", "8")
    done = run("dpo_train.py", *words, *fixed, "--learning-rate", "0.003", "--json", cwd=place)
    assert done.code == 0, done.stdout
    measured, lines = evaluate(place, name, "--model" if "full" in name else "--adapter", name, "--metric", "reward-accuracy")  # fmt: skip
    after = done.json["result"]["metrics"]["after"]
    assert measured["tuned"] == pytest.approx({key: after[key] for key in measured["tuned"]}, abs=1e-4)
    assert measured["rewards"] == "implicit" and {"chosen_reward", "rejected_reward", "base"} <= lines[0].keys()


@pytest.mark.parametrize(
    "words, code, problem",
    [
        (("--metric", "exact"), 2, "usage"),
        (("--metric", "exact", "reward-accuracy"), 2, "usage"),
        (("--data", "chats-only.jsonl"), 3, "data-refused"),
    ],
)
def test_evaluate_refuses_what_a_reward_model_cannot_give(words, code, problem, place, undisturbed):
    write_rows(place / "chats-only.jsonl", [{"messages": [{"role": "user", "content": "a"}]}])
    done = run("evaluate.py", "--adapter", undisturbed, "--data", "held_out.jsonl", *words, "--json", cwd=place)
    assert done.code == code and done.json["errors"][0]["code"] == problem, done.stdout


def test_evaluate_refuses_rewards_of_a_plain_model(place):
    words = ("--model", "gemma3", "--data", "held_out.jsonl", "--metric", "reward-accuracy", "--json")
    done = run("evaluate.py", *words, cwd=place)
    assert done.code == 2 and done.codes == {"reward-model-expected"}


def test_plan_and_margins(place):
    rows = [{**row, "margin": 0.5} for row in read_rows(place / "pairs.jsonl")]
    write_rows(place / "margins.jsonl", rows)
    words = ("--model", "gemma3", "--data", "margins.jsonl", "--plan", "--json")
    plan = run("rm_train.py", *words, cwd=place).json["result"]["plan"]
    jsonschema.validate(plan, json.loads((ASSETS / "schemas" / "plan.json").read_text()))
    assert (plan["method"], plan["learning_rate"], plan["epochs"]) == ("rm", 1e-4, 1.0)
    write_rows(place / "margins.jsonl", [*rows[:9], read_rows(place / "pairs.jsonl")[10]])
    assert "margin-missing" in run("rm_train.py", *words, cwd=place).codes


def test_the_demo_learns_to_score(tmp_path):
    done = run("rm_train.py", "--demo", "--max-steps", "40", "--json", cwd=tmp_path)
    assert done.code == 0, done.stdout
    result = done.json["result"]
    assert result["before"]["reward_accuracy"] == 0.5 and result["after"]["reward_accuracy"] >= 0.9
