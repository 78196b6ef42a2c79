"""Whether an adapter and a model go together, told by their files alone, so that a plan can say it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from gemma_trainer.models.load import TOWERS, adapter_base
from gemma_trainer.models.tensors import Tensor, read_header, read_headers
from gemma_trainer.plan.adapter import CONFIG, weights_of
from gemma_trainer.rows.problems import USAGE, Failure, Problem

LORA = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_([AB])\.weight")
LAYER = re.compile(r"(.*\b)?(layers\.\d+\..+)")
SAMPLE = 1024  # bytes of each tensor that tell two models apart
PARTIAL = ("layers_to_transform", "layers_pattern", "exclude_modules", "target_parameters")


def check_fit(folder: Path, model: str) -> None:
    """Raises Failure (exit 2) for an adapter that is damaged, lacks tensors or has other shapes than the model's layers.

    What the files of the model do not tell is left to the loading of it.
    """
    file, config = weights_of(folder), json.loads((folder / CONFIG).read_text("utf-8"))
    if file.suffix != ".safetensors":
        return
    try:
        tensors = read_header(file)
    except (OSError, ValueError) as error:
        raise _unfit(f"{file} is damaged: {error}") from None
    layers: dict[str, dict[str, tuple]] = {}
    for name, tensor in tensors.items():
        if found := LORA.fullmatch(name):
            layers.setdefault(found[1], {})[found[2]] = tensor.shape
    if not layers:
        raise _unfit(f"{file} holds no LoRA layers")
    base = _linears(Path(model))
    fault = next(_damages(layers, config), None) or next(_misfits(layers, base), None)
    if fault is None and base and (missing := _first_missing(layers, base, config, Path(model))):
        fault = f"{missing}.lora_A.weight is missing"
    if fault:
        raise _unfit(f"{folder} does not load on {model}: {fault}")


def _damages(layers: dict, config: dict) -> Iterator[str]:
    """What is wrong with the adapter itself."""
    if not _names_layers(config.get("target_modules")):
        yield f"{CONFIG} says target_modules {config['target_modules']!r}"
    uniform = not (config.get("rank_pattern") or config.get("target_parameters"))
    for name, pair in layers.items():
        lacking = {"A", "B"} - pair.keys()
        if lacking:
            yield f"{name}.lora_{lacking.pop()}.weight is missing"
        elif pair["A"][0] != pair["B"][1]:
            yield f"{name}.lora_A.weight has rank {pair['A'][0]}, its lora_B.weight {pair['B'][1]}"
        elif uniform and pair["A"][0] != config.get("r"):
            yield f"{name}.lora_A.weight has rank {pair['A'][0]}, and {CONFIG} says {config.get('r')}"


def _misfits(layers: dict, base: dict[str, tuple]) -> Iterator[str]:
    """Where the adapter's shapes are not those of the model's layers."""
    numbers = {name.split(".")[1] for name in base}
    for name, pair in layers.items():
        key = _key(name)
        if key is None or not base:
            continue
        if key.split(".")[1] not in numbers:
            yield f"the model has no {name}"
        elif key in base and (pair["B"][0], pair["A"][1]) != base[key]:
            yield f"{name} is for a layer of {pair['B'][0]} x {pair['A'][1]}, the model's is {' x '.join(map(str, base[key]))}"


def _first_missing(layers: dict, base: dict[str, tuple], config: dict, model: Path) -> str | None:
    """The first layer of the model that is named by the adapter's config, and that it has no tensors for."""
    target, shared = config.get("target_modules"), _text_config(model).get("num_kv_shared_layers")
    if shared or target == "all-linear" or any(config.get(name) for name in PARTIAL):
        return None  # not every layer that the files hold gets an adapter
    name = next(iter(name for name in layers if _key(name)), None)
    if name is None:
        return None
    prefix, have = name.removesuffix(_key(name)), {_key(name) for name in layers}
    return next((prefix + key for key in sorted(base) if key not in have and _targeted(prefix + key, target)), None)


def _names_layers(target: object) -> bool:
    """Whether it can be target_modules: names, or a regular expression."""
    if isinstance(target, str):
        try:
            return bool(re.compile(target))
        except re.error:
            return False
    return target is None or (isinstance(target, list) and all(isinstance(each, str) for each in target))


def _targeted(name: str, target: str | list[str] | None) -> bool:
    """As PEFT reads target_modules."""
    if isinstance(target, str):
        return re.fullmatch(target, name) is not None
    return any(f".{name}".endswith(f".{each}") for each in target or ())


def _linears(model: Path) -> dict[str, tuple]:
    """{"layers.0.mlp.up_proj": shape} of the language model in a folder; empty where 4-bit weights or no files tell none."""
    if not model.is_dir() or "quantization_config" in _config(model):
        return {}
    matrices = ((name, tensor) for name, tensor in read_headers(model).items() if len(tensor.shape) == 2)
    named = (
        (_key(name.removesuffix(".weight")), tensor.shape) for name, tensor in matrices if name.endswith(".weight")
    )
    return {key: shape for key, shape in named if key}


def _key(name: str) -> str | None:
    """A layer's name from its number on, which all model classes share; None outside the language model."""
    found = None if TOWERS.search(f"{name}.") else LAYER.fullmatch(name)
    return found and found[2]


def other_base(folder: Path, model: str) -> Problem | None:
    """A warning when the adapter was trained on another model than the one that is given for it."""
    base = adapter_base(folder)
    if base == model or Path(base).resolve() == Path(model).resolve():
        return None
    ours, theirs = (read_headers(Path(each)) if Path(each).is_dir() else {} for each in (model, base))
    common = [name for name in ours.keys() & theirs.keys() if _comparable(ours[name], theirs[name])]
    same = all(_sample(ours[name]) == _sample(theirs[name]) for name in common) if common else _named_alike(base, model)
    return None if same else Problem("adapter-other-base", f"{folder} was trained on {base}, and --model is {model}")


def _comparable(one: Tensor, other: Tensor) -> bool:
    return (one.shape, one.dtype) == (other.shape, other.dtype)


def _sample(tensor: Tensor) -> bytes:
    with tensor.file.open("rb") as stream:
        stream.seek(tensor.start)
        return stream.read(min(SAMPLE, tensor.end - tensor.start))


def _named_alike(one: str, other: str) -> bool:
    """A folder is called as the hub id that it was downloaded from, as far as anything tells."""
    return Path(one).name.lower() == Path(other).name.lower()


def _config(model: Path) -> dict:
    try:
        return json.loads((model / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return {}


def _text_config(model: Path) -> dict:
    config = _config(model)
    return config.get("text_config") or config


def _unfit(text: str) -> Failure:
    return Failure(USAGE, "adapter-unreadable", text)
