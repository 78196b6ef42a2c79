"""dpo_train.py as a user runs it: where it starts from, what it leaves, refusals and warnings, kill and resume."""

import hashlib
import json
import math
import shutil
import signal

import jsonschema
import pytest

from scripts import ASSETS, run, signal_after
from training import make_tiny, pair_rows, question_rows, write_rows

EXAMPLE = ASSETS / "examples" / "preferences"
pytestmark = pytest.mark.slow
FAST = ("--learning-rate", "0.003", "--max-steps", "4", "--eval-fraction", "0.2", "--save-steps", "2")
LOG2 = pytest.approx(math.log(2), abs=1e-6)


def contents(folder):
    """{file: hash} of all files in a folder."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a tiny model, pairs, and SFT runs of an adapter and of all weights."""
    folder = tmp_path_factory.mktemp("place")
    make_tiny(folder / "tiny")
    write_rows(folder / "pairs.jsonl", pair_rows(60))
    rows = question_rows(60)
    for number, row in enumerate(rows):
        row["messages"][0]["content"] += f" {number}"
    write_rows(folder / "rows.jsonl", rows)
    for mode, rate in (("lora", "0.02"), ("full", "0.005")):
        fixed = ("--model", "tiny", "--data", "rows.jsonl", "--output-dir", f"sft-{mode}", "--mode", mode)
        done = run("sft_train.py", *fixed, "--max-steps", "6", "--learning-rate", rate, "--json", cwd=folder)
        assert done.code == 0, done.stdout
    return folder


def train(place, name, *words):
    return run("dpo_train.py", "--data", "pairs.jsonl", "--output-dir", name, *words, "--json", cwd=place)


def logged(folder, key="loss"):
    """{step: value} of metrics.jsonl."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line[key] for line in lines if key in line}


@pytest.fixture(scope="module")
def finished(place):
    before = contents(place / "sft-lora")
    done = train(place, "dpo", "--adapter", "sft-lora", *FAST)
    assert done.code == 0, done.stdout
    return place / "dpo", done, before


@pytest.mark.main_path
def test_a_run_from_an_sft_run_leaves_everything_it_promises(finished, place):
    folder, done, before = finished
    assert contents(place / "sft-lora") == before  # the start stays as it is, to the byte
    assert logged(folder)[1] == LOG2
    adapters = [str(path.relative_to(folder)) for path in folder.rglob("adapter_config.json")]
    assert sorted(adapters) == [f"{where}adapter_config.json" for where in ("", "checkpoints/checkpoint-2/", "checkpoints/checkpoint-4/")]  # fmt: skip
    names = {path.name for path in folder.iterdir()}
    assert names >= {"run.json", "metrics.jsonl", "loss.png", "README.md", "eval.jsonl", "tokenizer.json", "chat_template.jinja"}  # fmt: skip
    record = json.loads((folder / "run.json").read_text())
    jsonschema.validate(record, json.loads((ASSETS / "schemas" / "run.json").read_text()))
    jsonschema.validate(done.json, json.loads((ASSETS / "schemas" / "report.json").read_text()))
    metrics, plan = record["metrics"], record["plan"]
    assert metrics["before"] == {"loss": LOG2, "reward_accuracy": 0.5, "reward_margin": 0.0, "kl": 0.0} | {
        key: metrics["before"][key] for key in ("chosen_logp", "rejected_logp")
    }
    assert metrics["after"]["reward_margin"] > 0 and metrics["after"]["kl"] > 0
    assert plan["adapter"]["path"] == str((place / "sft-lora").resolve()) and plan["lora"]["rank"] == 16
    assert plan["objective"]["reference"] == "the starting adapter, a frozen copy of it"
    assert plan["data"]["answer_tokens"]["chosen"] < plan["data"]["answer_tokens"]["rejected"]
    card = (folder / "README.md").read_text()
    assert "KL to the reference" in card and "a frozen copy of it" in card and "beta: 0.1" in card
    for key in ("rewards/accuracies", "rewards/margins", "logps/chosen", "logps/rejected"):
        assert list(logged(folder, key)) == [1, 2, 3, 4]
    assert "chosen, " in done.stderr and "rejected, " in done.stderr and "«" in done.stderr


@pytest.mark.main_path
def test_peft_and_evaluate_read_the_run(finished, place):
    from peft import AutoPeftModelForCausalLM

    folder, done, _ = finished
    model = AutoPeftModelForCausalLM.from_pretrained(folder)
    assert list(model.peft_config) == ["default"]
    measured = run("evaluate.py", "--adapter", folder, "--data", folder / "eval.jsonl", "--metric", "reward-accuracy", "--json", cwd=place)  # fmt: skip
    assert measured.code == 0, measured.stdout
    after = done.json["result"]["metrics"]["after"]
    assert measured.json["result"]["tuned"]["reward_margin"] == pytest.approx(after["reward_margin"], abs=1e-4)
    assert len(done.json["next"]) == 2 and all("evaluate.py" in line for line in done.json["next"])


STARTS = {
    "model": ("--model", "tiny"),
    "full-run": ("--adapter", "sft-full"),
    "all-weights-of-an-adapter": ("--adapter", "sft-lora", "--mode", "full"),
    "all-weights-precomputed": ("--model", "sft-full", "--mode", "full", "--precompute-ref"),
    "qlora": ("--model", "tiny", "--mode", "qlora"),
    "qlora-of-an-adapter": ("--adapter", "sft-lora", "--mode", "qlora"),
    "ipo-with-sft": ("--adapter", "sft-lora", "--loss-type", "ipo", "--sft-weight", "0.2"),
}


@pytest.mark.parametrize("start", STARTS)
def test_every_start_trains_and_measures_against_itself(start, place):
    done = train(place, start, *STARTS[start], *FAST)
    assert done.code == 0, done.stdout
    result = done.json["result"]
    adapter, objective = result["plan"]["adapter"], result["plan"]["objective"]
    assert (adapter is not None) == ("sft-lora" in STARTS[start])
    if objective["loss"] == "sigmoid":
        # Continued layers are rounded to bfloat16 on 4-bit weights, their frozen copy is not.
        tolerance = 2e-3 if start == "qlora-of-an-adapter" else 1e-6
        assert logged(place / start)[1] == pytest.approx(math.log(2), abs=tolerance)
    assert result["metrics"]["after"]["reward_margin"] > 0
    assert (result["metrics"]["after"]["kl"] is None) == objective["precompute_ref"]
    full = result["plan"]["mode"] == "full"
    assert (place / start / ("model.safetensors" if full else "adapter_model.safetensors")).exists()


@pytest.mark.main_path
def test_the_plan_names_the_reference_and_refusals_come_before_training(place):
    done = train(place, "unused", "--adapter", "sft-lora", "--plan")
    plan = done.json["result"]["plan"]
    jsonschema.validate(plan, json.loads((ASSETS / "schemas" / "plan.json").read_text()))
    assert plan["learning_rate"] == 1e-5 and plan["objective"]["beta"] == 0.1 and plan["epochs"] == 1
    shown = run("dpo_train.py", "--data", "pairs.jsonl", "--adapter", "sft-lora", "--plan", cwd=place).stdout
    assert "the starting adapter, a frozen copy of it" in shown
    (place / "half").mkdir(exist_ok=True)
    (place / "half" / "run.json").write_text(json.dumps({"status": "running"}))
    for words, code, exit_code in [
        (("--adapter", "half"), "run-unfinished", 2),
        (("--adapter", "tiny-not-there"), "adapter-unreadable", 2),
        (("--adapter", "sft-lora", "--model", "sft-lora"), "usage", 2),
        (("--adapter", "sft-lora", "--lora-rank", "4"), "usage", 2),
        (("--model", "tiny", "--label-smoothing", "0.1"), "usage", 2),
        ((), "usage", 2),
    ]:
        refused = train(place, "unused", *words)
        assert (refused.code, refused.json["errors"][0]["code"]) == (exit_code, code), refused.stdout
    assert not (place / "unused").exists()


def test_warnings_are_told_where_they_are_real(place, tmp_path):
    quiet = train(place, "unused", "--model", "tiny", "--plan")
    assert not quiet.codes & {"start-untuned", "beta-small"}
    base = tmp_path / "base"
    shutil.copytree(place / "tiny", base)
    (base / "chat_template.jinja").unlink()
    told = train(place, "unused", "--model", base, "--beta", "0.001", "--plan")
    assert {"start-untuned", "beta-small", "template-missing"} <= told.codes


def test_layouts_of_one_content_train_alike(place, tmp_path):
    rows = pair_rows(20)
    plain = [{name: row[name][0]["content"] for name in ("prompt", "chosen", "rejected")} for row in rows]
    whole = [{side: row["prompt"] + row[side] for side in ("chosen", "rejected")} for row in rows]
    facts = []
    for name, layout in (("canonical", rows), ("plain", plain), ("whole", whole)):
        write_rows(tmp_path / f"{name}.jsonl", layout)
        done = run("dpo_train.py", "--model", "tiny", "--data", tmp_path / f"{name}.jsonl", "--plan", "--json", cwd=place)  # fmt: skip
        assert done.code == 0, done.stdout
        facts.append({k: v for k, v in done.json["result"]["plan"]["data"].items() if k != "data_hash"})
    assert facts[0] == facts[1] == facts[2]


LONG = ("--max-steps", "20", "--save-steps", "3", "--eval-fraction", "0.2", "--micro-batch-size", "8", "--learning-rate", "0.003")  # fmt: skip
RESUMED = {
    "adapter": ("--adapter", "sft-lora", *LONG),
    "new": ("--model", "tiny", "--lora-dropout", "0.1", *LONG),
    "full": ("--model", "tiny", "--mode", "full", "--precompute-ref", *LONG),
}


@pytest.mark.parametrize("how", RESUMED)
def test_a_killed_run_resumes_to_the_same_losses(how, place):
    whole, words = place / f"whole-{how}", RESUMED[how]
    assert train(place, whole.name, *words).code == 0
    for step in (4, 11):
        name = f"killed-{how}-{step}"
        fixed = ("--data", "pairs.jsonl", "--output-dir", name, "--json")
        code, _ = signal_after(place / name, step, signal.SIGKILL, "dpo_train.py", *fixed, *words, cwd=place)
        assert code == -signal.SIGKILL and json.loads((place / name / "run.json").read_text())["status"] == "running"
        assert train(place, name, *words).code == 0
        for key in ("loss", "rewards/margins", "eval_loss", "eval_kl"):
            assert logged(place / name, key) == pytest.approx(logged(whole, key), abs=1e-6)
        file = "model.safetensors" if how == "full" else "adapter_model.safetensors"
        assert (place / name / file).read_bytes() == (whole / file).read_bytes()


def test_another_starting_adapter_is_another_run(place):
    words = ("--adapter", "copy", *LONG)
    shutil.copytree(place / "sft-lora", place / "copy")
    fixed = ("--data", "pairs.jsonl", "--output-dir", "moved", "--json")
    signal_after(place / "moved", 4, signal.SIGKILL, "dpo_train.py", *fixed, *words, cwd=place)
    other = place / "sft-lora" / "checkpoints" / "checkpoint-5"
    other = other if other.exists() else max((place / "sft-lora" / "checkpoints").iterdir())
    weights = (place / "copy" / "adapter_model.safetensors").read_bytes()
    (place / "copy" / "adapter_model.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    refused = train(place, "moved", *words)
    assert refused.code == 2 and refused.codes == {"resume-mismatch"}
    assert "plan.adapter.hash" in refused.json["errors"][0]["message"]


@pytest.mark.parametrize("kind", ["gemma3", "gemma4"])
def test_the_example_is_learned(kind, tmp_path):
    rows = [json.loads(line) for line in (EXAMPLE / "train.jsonl").open(encoding="utf-8")]
    texts = [message["content"] for row in rows for name in ("prompt", "chosen", "rejected") for message in row[name]]
    make_tiny(tmp_path / "tiny", kind, texts=texts)
    write_rows(tmp_path / "answers.jsonl", [{"messages": row["prompt"] + row[("chosen", "rejected")[at % 2]]} for at, row in enumerate(rows)])  # fmt: skip
    sft = ("--model", "tiny", "--data", "answers.jsonl", "--output-dir", "sft", "--mode", "full")
    assert run("sft_train.py", *sft, "--learning-rate", "0.005", "--epochs", "1", cwd=tmp_path).code == 0
    data = ("--data", EXAMPLE / "train.jsonl", "--eval-data", EXAMPLE / "eval.jsonl", "--learning-rate", "0.0005")
    done = run("dpo_train.py", "--model", "sft", *data, "--output-dir", "dpo", "--json", cwd=tmp_path)
    assert done.code == 0, done.stdout
    metrics = done.json["result"]["metrics"]
    assert metrics["before"]["reward_accuracy"] == 0.5 and metrics["after"]["reward_accuracy"] >= 0.9
    assert metrics["after"]["loss"] < 0.6


def test_the_demo_learns_to_prefer(tmp_path):
    done = run("dpo_train.py", "--demo", "--max-steps", "40", "--json", cwd=tmp_path)
    assert done.code == 0, done.stdout
    result = done.json["result"]
    assert result["before"]["reward_accuracy"] == 0.5 and result["after"]["reward_accuracy"] >= 0.9
    assert json.loads((tmp_path / "runs" / "demo-dpo" / "run.json").read_text())["status"] == "done"
    again = run("dpo_train.py", "--demo", "--plan", "--json", cwd=tmp_path)
    assert again.code == 0 and again.json["result"]["plan"]["method"] == "dpo"
