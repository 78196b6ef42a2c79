"""Adapters that do not go with a model are told from their files, and again by the loading."""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from gemma_trainer.models.fingerprint import fingerprint
from gemma_trainer.models.load import load_adapter, load_model, lora_targets
from gemma_trainer.models.reward import load_base
from gemma_trainer.rows.problems import Failure
from gemma_trainer.train.adapter_fit import check_fit, other_base
from gemma_trainer.train.start import find_start
from training import make_tiny

KINDS = ["gemma3", "gemma3-vision", "gemma3n", "gemma4"]
WEIGHTS = "adapter_model.safetensors"


def make_adapter(model, folder):
    """New layers on all linear ones of the language model, saved as PEFT saves them."""
    from peft import LoraConfig, get_peft_model

    base = load_model(str(model), dtype="float32", device="cpu")
    config = LoraConfig(r=4, lora_alpha=8, target_modules=lora_targets(base), task_type="CAUSAL_LM")
    get_peft_model(base, config).save_pretrained(folder, save_embedding_layers=False)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("place")
    make_tiny(folder / "model")
    make_tiny(folder / "other", hidden_size=32)
    make_adapter(folder / "model", folder / "adapter")
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_the_adapter_of_every_architecture_fits(kind, tmp_path):
    make_tiny(tmp_path / "model", kind)
    make_adapter(tmp_path / "model", tmp_path / "adapter")
    check_fit(tmp_path / "adapter", str(tmp_path / "model"))
    tensors = load_file(tmp_path / "adapter" / WEIGHTS)
    first = sorted(tensors)[0]
    save_file({name: tensor for name, tensor in tensors.items() if name != first}, tmp_path / "adapter" / WEIGHTS)
    with pytest.raises(Failure, match="is missing"):
        check_fit(tmp_path / "adapter", str(tmp_path / "model"))


def one_less(tensors):
    return {name: tensor for name, tensor in tensors.items() if name != sorted(tensors)[3]}


def no_layer(tensors):
    return {name: tensor for name, tensor in tensors.items() if "layers.1.mlp.up_proj" not in name}


def wider(tensors):
    return {name: tensor.repeat(1, 2) if "lora_A" in name else tensor for name, tensor in tensors.items()}


def deeper(tensors):
    return {name.replace("layers.1.", "layers.7."): tensor for name, tensor in tensors.items()}


def change(place, folder, of_tensors=dict, **config):
    shutil.copytree(place / "adapter", folder)
    save_file({k: v.contiguous() for k, v in of_tensors(load_file(folder / WEIGHTS)).items()}, folder / WEIGHTS)
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))
    return folder


@pytest.mark.parametrize(
    "tensors, config, said",
    [
        (one_less, {}, "layers.0.mlp.gate_proj.lora_B.weight"),
        (no_layer, {}, "layers.1.mlp.up_proj.lora_A.weight"),
        (wider, {}, "layers.0.mlp.down_proj"),
        (deeper, {}, "layers.7"),
        (dict, {"r": 2}, "layers.0.mlp.down_proj.lora_A.weight has rank 4"),
        (lambda tensors: {"a": tensors[sorted(tensors)[0]]}, {}, "holds no LoRA layers"),
    ],
)
def test_what_does_not_fit_is_told_with_the_first_weight(tensors, config, said, place, tmp_path):
    folder = change(place, tmp_path / "adapter", tensors, **config)
    with pytest.raises(Failure) as failure:
        check_fit(folder, str(place / "model"))
    assert (failure.value.exit_code, failure.value.problem.code) == (2, "adapter-unreadable")
    assert said in failure.value.problem.message


def test_another_model_s_adapter_and_a_cut_one_are_told(place, tmp_path):
    with pytest.raises(Failure, match="the model's is"):
        check_fit(place / "adapter", str(place / "other"))
    folder = change(place, tmp_path / "adapter")
    whole = (folder / WEIGHTS).read_bytes()
    for size in (0, 5, 100, len(whole) - 1):
        (folder / WEIGHTS).write_bytes(whole[:size])
        with pytest.raises(Failure, match="is damaged"):
            check_fit(folder, str(place / "model"))


def test_layers_that_nobody_asked_for_are_not_missed(place, tmp_path):
    def some(tensors):
        return {name: tensor for name, tensor in tensors.items() if "layers.0." in name and "q_proj" in name}

    for at, config in enumerate(({"layers_to_transform": [0], "target_modules": ["q_proj"]}, {"target_modules": r".*layers\.0\..*q_proj"})):  # fmt: skip
        check_fit(change(place, tmp_path / str(at), some, **config), str(place / "model"))


@pytest.mark.parametrize("tensors, config, said", [(no_layer, {}, "lacks 2 weights"), (wider, {}, "size mismatch for base_model"), (dict, {"r": 2}, "size mismatch for base_model")])  # fmt: skip
@pytest.mark.parametrize("how", ["chat", "another", "reward"])
def test_loading_tells_the_first_weight_too(tensors, config, said, how, place, tmp_path):
    from gemma_trainer.train.trainer_rm import from_adapter

    folder = str(change(place, tmp_path / "adapter", tensors, **config))
    options = {"dtype": "float32", "device": "cpu"}
    with pytest.raises(Failure) as failure:
        if how == "reward":
            from_adapter(load_base(str(place / "model"), **options), folder)
        else:
            model = load_model(str(place / "model"), **options)
            model = load_adapter(model, str(place / "adapter")) if how == "another" else model
            load_adapter(model, folder, name="more")
    assert failure.value.problem.code == "adapter-unreadable" and said in failure.value.problem.message


def test_a_base_with_other_content_is_told(place, tmp_path):
    copy, tuned = tmp_path / "copy", tmp_path / "tuned"
    for folder in (copy, tuned):
        shutil.copytree(place / "model", folder)
    weights = load_file(tuned / "model.safetensors")
    save_file({name: tensor + 0.01 for name, tensor in weights.items()}, tuned / "model.safetensors")
    assert other_base(place / "adapter", str(place / "model")) is None
    assert other_base(place / "adapter", str(copy)) is None
    assert other_base(place / "adapter", str(tuned)).code == "adapter-other-base"
    hub = change(place, tmp_path / "hub", base_model_name_or_path="google/gemma-3-270m-it")
    for model, told in [("google/gemma-3-270m-it", False), ("google/gemma-3-270m", True), ("/models/gemma-3-270m-it", False), ("/models/gemma-3-1b-it", True)]:  # fmt: skip
        assert (other_base(hub, model) is not None) == told


@pytest.mark.parametrize(
    "change",
    [[1], "x", None, 5, {}, {"base_model_name_or_path": 5}, {"base_model_name_or_path": None}, {"r": "x"}, {"r": -1},
     {"r": True}, {"lora_alpha": [1]}, {"lora_alpha": 0}, {"target_modules": 5}, {"target_modules": [5]}, {"target_modules": "("},
     {"peft_type": []}],
    ids=str,
)  # fmt: skip
def test_a_config_that_no_adapter_has_is_told(change, place, tmp_path):
    folder = tmp_path / "adapter"
    shutil.copytree(place / "adapter", folder)
    file = folder / "adapter_config.json"
    told = {**json.loads(file.read_text()), **change} if isinstance(change, dict) and change else change
    file.write_text(json.dumps(told))
    with pytest.raises(Failure) as failure:
        start = find_start(None, str(folder))
        check_fit(Path(start.adapter["path"]), start.model)
    assert (failure.value.exit_code, failure.value.problem.code) == (2, "adapter-unreadable")


@pytest.mark.parametrize("method", ["stat", "open"])  # of a folder that may not be entered, of files in it
def test_what_may_not_be_read_is_told_as_what_it_is(method, place, monkeypatch):
    def refuse(path, *args, **kwargs):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, method, refuse)
    calls = {
        "model-unreadable": lambda: find_start(str(place / "model"), None) and fingerprint(str(place / "model")),
        "adapter-unreadable": lambda: find_start(None, str(place / "adapter")),
    }
    for code, call in calls.items():
        with pytest.raises(Failure) as failure:
            call()
        assert (failure.value.exit_code, failure.value.problem.code) == (2, code)
