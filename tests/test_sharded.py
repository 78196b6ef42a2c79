"""A model that is split among processes trains, is measured, saved and checked as one in a single process.

accelerate has no FSDP on a CPU, so torch's own splits it here; tests/gpu runs accelerate's preset.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gemma_trainer.rows.problems import Failure
from training import make_plan, make_tiny

HERE = Path(__file__).parent
PATHS = {"PYTHONPATH": os.pathsep.join([str(HERE.parent / "assets"), str(HERE)])}
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


def split_run(processes: int, *words: object) -> dict:
    line = [sys.executable, *(TORCHRUN if processes > 1 else ()), HERE / "splitting.py", *words]
    done = subprocess.run([*map(str, line)], capture_output=True, text=True, env={**os.environ, **PATHS}, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, mode", [("gemma3", "lora"), ("gemma3", "full"), ("gemma4", "lora"), ("gemma4-vision", "lora")]
)
def test_two_parts_train_as_one(kind, mode, tmp_path):
    from safetensors.torch import load_file

    make_tiny(tmp_path / "tiny", kind)
    whole, parts = (split_run(n, tmp_path / "tiny", mode, tmp_path / f"out-{n}") for n in (1, 2))
    assert whole["losses"][0] > whole["losses"][-1]
    assert parts["losses"] == pytest.approx(whole["losses"], abs=1e-4)
    assert parts["measured"] == pytest.approx(whole["measured"], rel=1e-3, abs=1e-5)
    assert parts["after"] == pytest.approx(whole["after"], abs=1e-4)
    name = "adapter_model.safetensors" if mode == "lora" else "model.safetensors"
    one, two = (load_file(tmp_path / f"out-{n}" / name) for n in (1, 2))
    assert one.keys() == two.keys() and max(float((one[key] - two[key]).abs().max()) for key in one) < 1e-3


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """(model, its weights, folder that they are saved in)."""
    from gemma_trainer.models.load import load_model, load_tokenizer_files
    from gemma_trainer.train.engine_trl import prepare_model
    from gemma_trainer.train.save import save_result
    from gemma_trainer.train.sharded import gathered_weights

    folder = tmp_path_factory.mktemp("saved")
    tiny = make_tiny(folder / "tiny")
    model = prepare_model(load_model(str(tiny.path), dtype="float32", device="cpu"), make_plan(tiny.path, mode="lora"))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data += 0.01
    (folder / "run").mkdir()
    weights = gathered_weights(model)
    save_result(model, load_tokenizer_files(str(tiny.path), None), folder / "run", tiny.stop_ids, weights)
    return model, weights, folder / "run"


def test_what_was_gathered_is_what_peft_opens(saved):
    from peft import AutoPeftModelForCausalLM

    _, weights, folder = saved
    opened = dict(AutoPeftModelForCausalLM.from_pretrained(folder).named_parameters())
    assert weights and all(torch.equal(opened[name], tensor) for name, tensor in weights.items())


@pytest.mark.parametrize("fault", ["changed", "lost", "nan", "untrained"])
def test_a_saved_file_that_differs_is_found(fault, saved):
    from safetensors.torch import load_file, save_file

    from gemma_trainer.train.sharded import verify_weights

    model, weights, folder = saved
    assert verify_weights(model, weights, folder) == {"max_difference": 0.0}
    file = folder / "adapter_model.safetensors"
    before, tensors = file.read_bytes(), load_file(file)
    name = next(name for name in tensors if "lora_B" in name)
    if fault == "lost":
        del tensors[name]
    elif fault == "untrained":
        tensors = {key: torch.zeros_like(each) if "lora_B" in key else each for key, each in tensors.items()}
        weights = {key: torch.zeros_like(each) if "lora_B" in key else each for key, each in weights.items()}
    else:
        tensors[name][0, 0] = float("nan") if fault == "nan" else tensors[name][0, 0] + 1e-6
    save_file(tensors, file)
    try:
        with pytest.raises(Failure) as caught:
            verify_weights(model, weights, folder)
    finally:
        file.write_bytes(before)
    assert caught.value.problem.code == "saved-model-differs"


def test_four_bit_weights_that_fsdp_splits_are_stored_as_floats(tmp_path):
    import bitsandbytes

    from gemma_trainer.models.load import load_model

    tiny = make_tiny(tmp_path / "tiny")
    for split, storage in ((True, torch.float32), (False, torch.uint8)):
        model = load_model(str(tiny.path), dtype="float32", device="cpu", quantize=True, split=split)
        layers = [module for module in model.modules() if isinstance(module, bitsandbytes.nn.Linear4bit)]
        assert layers and {layer.weight.dtype for layer in layers} == {storage}
