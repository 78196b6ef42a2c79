"""The Unsloth engine against the TRL engine: same rows, same masks, same losses, and adapters that PEFT loads."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from engine_runs import losses, make_runs, words
from gemma_trainer.plan.packages import unsloth_lack
from scripts import run, signal_after
from training import make_tiny, numbered, pair_rows, question_rows, write_rows

pytestmark = [
    pytest.mark.skipif(unsloth_lack() is not None, reason=f"Unsloth is not ready: {unsloth_lack()}"),
    pytest.mark.main_path,
    pytest.mark.slow,
]
KINDS = ["gemma3", "gemma3-vision", "gemma4", "gemma4-vision"]
RUNS = [f"{kind}_{mode}_{method}" for kind in KINDS for mode in ("lora", "qlora") for method in ("sft", "dpo")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Tiny models of each kind, rows and pairs, and every run by both engines."""
    place = tmp_path_factory.mktemp("unsloth")
    for kind in KINDS:
        make_tiny(place / kind, kind)
    write_rows(place / "sft.jsonl", numbered(question_rows(60)))
    write_rows(place / "dpo.jsonl", pair_rows(60))
    before = {path.name for path in place.iterdir()}
    for backend in ("trl", "unsloth"):
        make_runs(backend, place, RUNS)
    made = {path.name for path in place.iterdir()} - before
    assert made == {f"{name}-{backend}" for name in RUNS for backend in ("trl", "unsloth")}  # no caches beside them
    return place


def record(folder: Path, name: str) -> dict:
    return json.loads((folder / name / "run.json").read_text())


@pytest.mark.parametrize("name", RUNS)
def test_losses_are_those_of_the_trl_engine(name, folder):
    theirs, ours = (record(folder, f"{name}-{backend}") for backend in ("trl", "unsloth"))
    assert ours["status"] == "done" and ours["plan"]["backend"] == "unsloth" and "dropout" in ours["plan"]["why"]
    assert len(losses(folder, f"{name}-unsloth")) == 5
    assert ours["plan"]["data"] == theirs["plan"]["data"]  # as many trained tokens, of the same rows
    assert losses(folder, f"{name}-unsloth") == pytest.approx(losses(folder, f"{name}-trl"), abs=1e-3)
    assert losses(folder, f"{name}-unsloth")[0] > losses(folder, f"{name}-unsloth")[-1]
    for when in ("before", "after"):
        assert ours["metrics"][when]["loss"] == pytest.approx(theirs["metrics"][when]["loss"], abs=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_the_adapter_loads_with_peft_and_adapts_text_layers_only(kind, folder):
    """By evaluate.py, which knows nothing of Unsloth."""
    run_folder = f"{kind}_lora_sft-unsloth"
    measured = run("evaluate.py", "--adapter", run_folder, "--data", f"{run_folder}/eval.jsonl", "--json", cwd=folder)
    assert measured.code == 0, measured.stdout
    after = record(folder, run_folder)["metrics"]["after"]["loss"]
    assert measured.json["result"]["tuned"]["loss"] == pytest.approx(after, rel=0.05)
    files = ("adapter_config.json", "adapter_model.safetensors")
    from safetensors import safe_open

    ours, theirs = (folder / f"{kind}_lora_sft-{backend}" for backend in ("unsloth", "trl"))
    tensors = []
    for path in (ours, theirs):
        assert all((path / name).is_file() for name in files)
        with safe_open(path / files[1], framework="pt") as file:
            tensors.append({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118 - not a dict
    assert tensors[0].keys() == tensors[1].keys() and not any("tower" in name for name in tensors[0])
    for name, tensor in tensors[0].items():
        assert float((tensor - tensors[1][name]).abs().max()) < 1e-3, name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["lora", "qlora"])
def test_merged_into_its_model_it_reloads_equal(kind, mode, folder, tmp_path):
    import torch

    from gemma_trainer.models.load import load_adapter, load_model

    ids = torch.arange(10, 40)[None]

    def logits(model) -> torch.Tensor:
        with torch.no_grad():
            return model.eval()(input_ids=ids).logits

    base = logits(load_model(folder / kind, dtype="float32", device="cpu"))
    adapted = load_adapter(
        load_model(folder / kind, dtype="float32", device="cpu"), folder / f"{kind}_{mode}_sft-unsloth"
    )
    expected = logits(adapted)
    assert float((expected - base).abs().max()) > 1e-2
    adapted.merge_and_unload().save_pretrained(tmp_path / "merged")
    merged = logits(load_model(tmp_path / "merged", dtype="float32", device="cpu"))
    assert torch.allclose(merged, expected, atol=1e-4)


@pytest.mark.parametrize("method", ["sft", "dpo"])
def test_a_stopped_run_resumes_to_the_same_losses(method, folder):
    undisturbed = losses(folder, f"gemma3_lora_{method}-unsloth")
    script, *rest = words(f"gemma3_lora_{method}", "unsloth", "--output-dir", f"stopped-{method}", "--save-steps", "1")
    code, output = signal_after(folder / f"stopped-{method}", 2, signal.SIGTERM, Path(script).name, *rest, cwd=folder)
    assert code == 6, output
    done = run(Path(script).name, *rest, cwd=folder)
    assert done.code == 0, done.stdout
    assert losses(folder, f"stopped-{method}") == pytest.approx(undisturbed, abs=1e-5)


def test_dpo_goes_on_from_an_sft_adapter_as_the_trl_engine_does(folder):
    values = []
    for backend in ("trl", "unsloth"):
        script, *rest = words("gemma4-vision_lora_dpo", backend, "--adapter", "gemma4-vision_lora_sft-trl")
        rest += ["--output-dir", f"from-sft-{backend}"]
        done = run(Path(script).name, *rest, cwd=folder)
        assert done.code == 0, done.stdout
        values.append(losses(folder, f"from-sft-{backend}"))
    assert values[0] == pytest.approx(values[1], abs=1e-3) and values[0][0] == pytest.approx(0.6931, abs=1e-3)


def test_packed_rows_train_as_in_the_trl_engine(folder):
    values = []
    for backend in ("trl", "unsloth"):
        script, *rest = words("gemma4-vision_lora_sft", backend, "--packing", "--max-length", "100")
        done = run(Path(script).name, *rest, "--output-dir", f"packed-{backend}", cwd=folder)
        assert done.code == 0, done.stdout
        values.append(losses(folder, f"packed-{backend}"))
    assert values[0] == pytest.approx(values[1], abs=1e-3) and values[0] != losses(folder, "gemma4-vision_lora_sft-trl")


def test_weights_that_a_checkpoint_lacks_are_refused(folder, tmp_path):
    """Unsloth loads such a model without a word, and its random weights would be trained on."""
    from safetensors.torch import load_file, save_file

    broken = tmp_path / "broken"
    broken.mkdir()
    for file in (folder / "gemma3").iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    tensors = load_file(broken / "model.safetensors")
    tensors.pop(next(name for name in tensors if name.endswith("q_proj.weight")))
    save_file(tensors, broken / "model.safetensors", metadata={"format": "pt"})
    data = ("--data", folder / "sft.jsonl", "--output-dir", tmp_path / "run", "--json")
    done = run("sft_train.py", "--model", broken, "--backend", "unsloth", *data)
    assert done.code == 5 and done.codes >= {"weights-missing"}


def test_it_is_imported_before_what_it_changes_and_only_where_the_plan_chose_it(folder):
    probe = (
        "import sys, runpy\n"
        "class Order:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name in ('unsloth', 'transformers', 'trl', 'peft'): print(name, file=sys.stderr)\n"
        "sys.meta_path.insert(0, Order())\n"
        "sys.argv = sys.argv[1:]; sys.path.insert(0, sys.argv[0].rsplit('/', 1)[0])\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    for backend, first in (("unsloth", "unsloth"), ("trl", "transformers")):
        more = ("--output-dir", f"order-{backend}", "--max-steps", "1")
        command = [sys.executable, "-c", probe, *words("gemma3_lora_sft", backend, *more)]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-2000:]
        order = [line for line in done.stderr.splitlines() if line in ("unsloth", "transformers", "trl", "peft")]
        assert order[0] == first and (("unsloth" in order) == (backend == "unsloth"))
        json.loads(done.stdout)  # what Unsloth prints is not in the result
