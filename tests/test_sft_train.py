"""sft_train.py as a user runs it: plan, run directory, refusals, kill and resume."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path

import jsonschema
import pytest

from scripts import ASSETS, command, run, signal_after
from training import make_place, numbered, question_rows, write_rows

CASES = Path(__file__).parent / "cases"
pytestmark = [pytest.mark.slow, pytest.mark.main_path]
FAST = ("--max-steps", "6", "--learning-rate", "0.01", "--eval-fraction", "0.2", "--save-steps", "2")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a tiny model and rows, where runs may be left."""
    return make_place(tmp_path_factory.mktemp("place"), 60)


def train(place, name, *words, **environment):
    fixed = ("--model", "tiny", "--data", "rows.jsonl", "--output-dir", name, "--json")
    return run("sft_train.py", *fixed, *words, cwd=place, **environment)


def losses(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


def schema(name):
    return json.loads((ASSETS / "schemas" / f"{name}.json").read_text())


@pytest.fixture(scope="module")
def finished(place):
    """An undisturbed LoRA run."""
    done = train(place, "lora", *FAST)
    assert done.code == 0, done.stdout
    return place / "lora", done


def test_a_run_leaves_everything_it_promises(finished):
    folder, done = finished
    names = {path.name for path in folder.iterdir()}
    promised = (
        "run.json metrics.jsonl loss.png adapter_model.safetensors adapter_config.json checkpoints README.md eval.jsonl"
    )
    assert names >= {*promised.split(), "tokenizer.json", "chat_template.jinja", "generation_config.json"}
    record = json.loads((folder / "run.json").read_text())
    jsonschema.validate(record, schema("run"))
    assert record["status"] == "done" and record["metrics"]["after"]["loss"] < record["metrics"]["before"]["loss"]
    assert record["metrics"]["reopened"]["effect"] > 0
    assert list(losses(folder)) == [1, 2, 3, 4, 5, 6]
    assert (folder / "loss.png").read_bytes()[:4] == b"\x89PNG"
    assert "held-out loss" in (folder / "README.md").read_text()
    jsonschema.validate(done.json, schema("report"))
    assert "evaluate.py" in done.json["next"][0]


def test_a_run_prints_one_masked_sample(finished):
    assert "<start_of_turn>model\n«SELECT" in finished[1].stderr and "<end_of_turn>»" in finished[1].stderr


def test_the_adapter_loads_in_plain_peft(finished):
    from peft import AutoPeftModelForCausalLM

    model = AutoPeftModelForCausalLM.from_pretrained(finished[0])
    assert any("lora_B" in name and p.abs().sum() > 0 for name, p in model.named_parameters())


@pytest.mark.parametrize("mode", ["full", "qlora"])
def test_other_modes_train_and_verify(mode, place):
    done = train(place, mode, *FAST, "--mode", mode, "--learning-rate", "0.003")
    assert done.code == 0, done.stdout
    metrics = done.json["result"]["metrics"]
    assert metrics["after"]["loss"] < metrics["before"]["loss"]
    assert (place / mode / ("model.safetensors" if mode == "full" else "adapter_model.safetensors")).exists()


def test_evaluate_reads_the_run(finished, place):
    folder, _ = finished
    done = run(
        "evaluate.py", "--adapter", folder, "--data", folder / "eval.jsonl", "--compare-base", "--json", cwd=place
    )
    assert done.code == 0, done.stdout
    result = done.json["result"]
    recorded = json.loads((folder / "run.json").read_text())["metrics"]
    assert result["tuned"]["loss"] == pytest.approx(recorded["after"]["loss"], abs=1e-4)
    assert result["base"]["loss"] == pytest.approx(recorded["before"]["loss"], abs=1e-4)
    assert set(result["tuned"]) == {"exact_match", "similarity", "loss"}


def kill_after(place, name, step, *words, number=signal.SIGKILL):
    """Start a run and send it a signal once it has logged `step`."""
    fixed = ("--model", "tiny", "--data", "rows.jsonl", "--output-dir", name, "--json")
    return signal_after(place / name, step, number, "sft_train.py", *fixed, *words, cwd=place)


DROPOUT = (*FAST[2:], "--max-steps", "30", "--lora-dropout", "0.1", "--micro-batch-size", "4")


@pytest.fixture(scope="module")
def undisturbed(place):
    assert train(place, "whole", *DROPOUT).code == 0
    return place / "whole"


@pytest.mark.parametrize("step", [3, 7, 10, 14])  # the last whole checkpoint is mid-epoch, or at the end of one
def test_a_killed_run_resumes_to_the_same_losses(step, place, undisturbed):
    name = f"killed-{step}"
    code, _ = kill_after(place, name, step, *DROPOUT)
    assert code == -signal.SIGKILL and json.loads((place / name / "run.json").read_text())["status"] == "running"
    assert train(place, name, *DROPOUT).code == 0
    assert losses(place / name) == pytest.approx(losses(undisturbed), abs=1e-6)
    a, b = ((p / "adapter_model.safetensors").read_bytes() for p in (place / name, undisturbed))
    assert a == b


def test_a_checkpoint_cut_by_the_kill_is_not_used(place, undisturbed):
    kill_after(place, "cut", 5, *DROPOUT)
    newest = max((place / "cut" / "checkpoints").glob("checkpoint-*"), key=lambda p: int(p.name.split("-")[1]))
    half = newest.with_name("checkpoint-29")
    half.mkdir()
    (half / "optimizer.pt").write_bytes((newest / "optimizer.pt").read_bytes()[:100])
    spelled = ("--model", place / "tiny", "--data", "./rows.jsonl")  # the same files
    assert train(place, "cut", *DROPOUT, *spelled).code == 0
    assert losses(place / "cut") == pytest.approx(losses(undisturbed), abs=1e-6)


@pytest.mark.parametrize("words", [(), ("--overwrite", "--resume", "never"), ("--config", "anew.yaml")])
def test_sigterm_saves_and_exits_6_and_the_next_command_goes_on(words, place, undisturbed):
    """Also where the command itself would begin anew, or be refused."""
    (place / "anew.yaml").write_text("overwrite: true\n")
    if words:
        shutil.rmtree(place / "stopped")
    code, output = kill_after(place, "stopped", 4, *DROPOUT, *words, number=signal.SIGTERM)
    assert code == 6, output
    told = json.loads(output)
    assert told["errors"][0]["code"] == "stopped" and told["result"]["step"] >= 4
    assert (told["result"]["run"], told["result"]["status"]) == ("stopped", "stopped")
    assert "sft_train.py" in told["next"][0] and "--max-steps 30" in told["next"][0]
    assert json.loads((place / "stopped" / "run.json").read_text())["status"] == "stopped"
    more = run("sft_train.py", *shlex.split(told["next"][0])[2:], cwd=place)
    assert more.code == 0 and "resuming from" in more.stderr
    assert losses(place / "stopped") == pytest.approx(losses(undisturbed), abs=1e-6)


def test_resuming_with_other_settings_or_data_is_refused_in_words(place):
    kill_after(place, "changed", 3, *DROPOUT)
    other = train(place, "changed", *DROPOUT, "--learning-rate", "0.5")
    assert other.code == 2 and "--learning-rate was 0.01, is 0.5" in other.json["errors"][0]["message"]
    rows = (place / "rows.jsonl").read_text()
    try:
        (place / "rows.jsonl").write_text(rows.replace("users", "user s"))
        data = train(place, "changed", *DROPOUT)
    finally:
        (place / "rows.jsonl").write_text(rows)
    assert data.code == 2 and data.json["errors"][0]["code"] == "resume-mismatch"


def test_a_finished_run_is_never_overwritten_unasked(finished, place):
    before = (finished[0] / "run.json").read_bytes()
    again = train(place, "lora", *FAST)
    assert again.code == 2 and again.codes == {"output-exists"}
    assert (finished[0] / "run.json").read_bytes() == before


def test_a_folder_that_is_no_run_is_never_removed(place):
    (place / "notes").mkdir()
    (place / "notes" / "keep.txt").write_text("mine")
    for words in ((), ("--overwrite",)):
        assert train(place, "notes", *FAST, *words).codes == {"output-exists"}
    assert (place / "notes" / "keep.txt").read_text() == "mine"


def test_plan_says_everything_and_imports_nothing_heavy(place):
    probe = "import sys, runpy; sys.argv = sys.argv[1:]; sys.path.insert(0, sys.argv[0].rsplit('/', 1)[0])\n"
    probe += "try: runpy.run_path(sys.argv[0], run_name='__main__')\nexcept SystemExit: pass\n"
    probe += "print(sorted({'torch', 'transformers', 'datasets', 'trl'} & set(sys.modules)), file=sys.stderr)"
    words = [str(ASSETS / "sft_train.py"), "--model", "tiny", "--data", "rows.jsonl", "--plan", "--json"]
    import sys

    done = subprocess.run([sys.executable, "-c", probe, *words], cwd=place, capture_output=True, text=True)
    assert done.stderr.strip().endswith("[]"), done.stderr
    plan = json.loads(done.stdout)["result"]["plan"]
    jsonschema.validate(plan, schema("plan"))
    assert plan["micro_batch_size"] * plan["accumulation_steps"] == plan["effective_batch_size"] == 16
    assert plan["steps"] == 3 * -(-plan["data"]["train_rows"] // 16)
    assert not (place / "runs").exists()


@pytest.mark.parametrize(
    "rows, code",
    [
        ([{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": ""}]}], "content-empty"),
        ([{"messages": [{"role": "user", "content": "a"}, {"role": "narrator", "content": "b"}]}], "role-unknown"),
    ],
)
def test_refused_rows_end_the_run_before_it_starts(rows, code, place, tmp_path):
    (tmp_path / "bad.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = run("sft_train.py", "--model", "tiny", "--data", tmp_path / "bad.jsonl", "--json", cwd=place)
    assert done.code == 3 and done.json["errors"][0]["code"] == "data-refused"
    assert done.json["errors"][1]["line"] == 1


def test_rows_without_a_trained_token_end_the_run(place, tmp_path):
    row = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "weight": 0}]}
    (tmp_path / "none.jsonl").write_text(json.dumps(row) + "\n")
    done = run("sft_train.py", "--model", "tiny", "--data", tmp_path / "none.jsonl", "--json", cwd=place)
    assert done.code == 3 and not done.json["ok"]


@pytest.mark.parametrize("overlong, left", [("drop", 30), ("truncate", 60)])
def test_overlong_rows_are_counted(overlong, left, place, tmp_path):
    rows = question_rows(60)
    for row in rows[::2]:
        row["messages"][1]["content"] += " name" * 200
    write_rows(tmp_path / "long.jsonl", numbered(rows))
    words = ("--max-length", "100", "--overlong", overlong, "--eval-fraction", "0", "--plan", "--json")
    done = run("sft_train.py", "--model", "tiny", "--data", tmp_path / "long.jsonl", *words, cwd=place)
    assert done.json["result"]["plan"]["data"]["train_rows"] == left
    assert "rows-overlong" in done.codes
    words = ("--max-length", "100", "--overlong", "error", "--plan", "--json")
    refused = run("sft_train.py", "--model", "tiny", "--data", tmp_path / "long.jsonl", *words, cwd=place)
    assert refused.code == 3 and refused.json["errors"][0]["line"] == 1


def test_two_runs_never_share_a_directory(place):
    fixed = ("--model", "tiny", "--data", "rows.jsonl", "--output-dir", "shared", "--json")
    first = subprocess.Popen(
        command("sft_train.py", *fixed, *DROPOUT), cwd=place, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    while not (place / "shared" / ".lock").exists():
        time.sleep(0.01)
    time.sleep(0.2)
    second = train(place, "shared", *DROPOUT, "--overwrite")
    assert second.code == 2 and second.codes == {"run-in-use"}
    assert first.wait(timeout=300) == 0 and json.loads(first.stdout.read())["ok"]


def damaged(place, name, change):
    """A copy of the tiny model with one thing wrong."""
    folder = place / name
    shutil.copytree(place / "tiny", folder)
    change(folder)
    return folder


def change_config(folder, **values):
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


@pytest.mark.parametrize(
    "name, change, code",
    [
        ("cut", lambda f: os.truncate(f / "model.safetensors", 5000), "model-unreadable"),
        ("config", lambda f: (f / "config.json").write_text('{"model_type": "gemma3_text",'), "tokenizer-unreadable"),
        ("bare", lambda f: (f / "tokenizer.json").unlink(), "tokenizer-not-found"),
        ("shape", lambda f: change_config(f, intermediate_size=77), "model-unreadable"),
        ("layers", lambda f: change_config(f, num_hidden_layers=3), "model-unreadable"),
        ("llama", lambda f: (f / "config.json").write_text('{"model_type": "llama"}'), "family-unknown"),
    ],
)
def test_a_damaged_or_foreign_model_is_told_in_plain_words(name, change, code, place):
    folder = damaged(place, f"model-{name}", change)
    words = ("--model", folder, "--data", "rows.jsonl", "--output-dir", f"run-{name}", "--json")
    done = run("sft_train.py", *words, cwd=place)
    assert done.code == 2 and done.json["errors"][0]["code"] == code, done.stdout


def test_an_output_directory_that_is_a_file_is_told(place):
    (place / "file").write_text("mine")
    for name in ("file", "file/inside"):
        assert train(place, name, *FAST).codes == {"output-unwritable"}


def test_a_full_disk_ends_the_run_resumable(tmp_path, monkeypatch):
    from gemma_trainer.train import run as training

    monkeypatch.setattr(training.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 100})())
    failure = training.as_failure(OSError(28, "No space left on device"), tmp_path)
    assert failure.exit_code == 6 and failure.problem.code == "disk-full"


def test_who_loses_a_peer_says_so(tmp_path, monkeypatch):
    from gemma_trainer.train import run as training

    lost = RuntimeError("[pair.cc:553] Connection closed by peer [127.0.0.1]:52364.")
    assert training.as_failure(lost, tmp_path).problem.code == "internal"  # in one process
    for name, value in {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    failure = training.as_failure(lost, tmp_path)
    assert (failure.problem.code, failure.exit_code) == ("process-lost", 1)  # 6 with a checkpoint


def test_rows_with_pictures_are_refused_in_plain_words(place, tmp_path):
    (tmp_path / "dot.png").write_bytes((CASES / "media" / "dot.png").read_bytes())
    content = [{"type": "image", "path": "dot.png"}, {"type": "text", "text": "What is it?"}]
    row = {"messages": [{"role": "user", "content": content}, {"role": "assistant", "content": "A dot."}]}
    (tmp_path / "seen.jsonl").write_text(json.dumps(row) + "\n")
    done = run("sft_train.py", "--model", "tiny", "--data", tmp_path / "seen.jsonl", "--plan", "--json", cwd=place)
    assert done.code == 5 and done.json["errors"][0]["code"] == "media-unsupported", done.stdout
    assert done.json["errors"][0]["line"] == 1


TOKENS = {"input_ids": [2, 7, 8, 9], "labels": [-100, -100, 8, 9]}


@pytest.mark.parametrize("more", [{}, {"text": "a"}, {"attention_mask": [1, 1, 1, 1]}], ids=lambda more: "".join(more))
@pytest.mark.parametrize("before", [0, 20], ids=["alone", "behind messages"])
@pytest.mark.parametrize("side", ["--data", "--eval-data"])
def test_rows_of_token_ids_are_refused_in_plain_words(more, before, side, place, tmp_path):
    write_rows(tmp_path / "ids.jsonl", numbered(question_rows(before)))
    with (tmp_path / "ids.jsonl").open("a") as file:
        file.write(json.dumps({**TOKENS, **more}) + "\n")
    data = {"--data": "rows.jsonl", side: tmp_path / "ids.jsonl"}
    words = [word for pair in data.items() for word in pair]
    done = run("sft_train.py", "--model", "tiny", *words, "--plan", "--json", cwd=place)
    problem = done.json["errors"][0]
    assert (done.code, problem["code"], problem["line"]) == (5, "tokens-not-text", before + 1), done.stdout
    assert "rows it was made of" in problem["fix"]


def test_rows_of_token_ids_are_not_measured_in_silence(place, tmp_path):
    write_rows(tmp_path / "ids.jsonl", numbered(question_rows(3)))
    with (tmp_path / "ids.jsonl").open("a") as file:
        file.write(json.dumps(TOKENS) + "\n")
    done = run("evaluate.py", "--model", "tiny", "--data", tmp_path / "ids.jsonl", "--json", cwd=place)
    assert done.code == 5 and done.json["errors"][0]["code"] == "tokens-not-text", done.stdout


def test_a_family_that_does_not_fit_the_model_is_refused(place):
    done = train(place, "misfit", *FAST, "--family", "gemma4", "--plan")
    assert done.code == 2 and done.codes == {"family-unknown"}


def test_answers_are_written_to_be_read_and_never_over_the_data(finished, place):
    folder, _ = finished
    data = folder / "eval.jsonl"
    before = data.read_bytes()
    words = ("--adapter", folder, "--data", data, "--metric", "exact", "--compare-base", "--json")
    refused = run("evaluate.py", *words, "--output", data, "--overwrite", cwd=place)
    assert refused.code == 2 and data.read_bytes() == before
    done = run("evaluate.py", *words, "--output", "new/answers.jsonl", cwd=place)
    assert done.code == 0, done.stdout
    lines = [json.loads(line) for line in (place / "new" / "answers.jsonl").read_text().splitlines()]
    assert len(lines) == done.json["result"]["rows"]
    assert lines[0]["row"] == 1 and lines[0]["messages"][-1]["role"] == "user"
    assert {"prediction", "target", "exact_match"} <= lines[0].keys() and "prediction" in lines[0]["base"]


def test_rows_from_stdin_are_read_once(place):
    words = ("--model", "tiny", "--plan", "--json", "--data")
    with (place / "rows.jsonl").open() as rows:
        piped = subprocess.run(
            command("sft_train.py", *words, "-"), cwd=place, stdin=rows, capture_output=True, text=True
        )
    named = run("sft_train.py", *words, "rows.jsonl", cwd=place)
    plans = [json.loads(text)["result"]["plan"]["data"] for text in (piped.stdout, named.stdout)]
    assert plans[0] == plans[1]
