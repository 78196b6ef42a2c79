"""The size of the model that is asked for: from the catalogue, or from the files of a folder. Weights are not read."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path

from gemma_trainer.families.checkpoints import Checkpoint, find_checkpoint, nearest
from gemma_trainer.families.shape import Shape, read_shape
from gemma_trainer.models.load import TOWERS, adapter_base
from gemma_trainer.models.resolve import HUB_ID
from gemma_trainer.models.tensors import read_headers
from gemma_trainer.plan.adapter import is_adapter
from gemma_trainer.rows.problems import USAGE, Failure

TOKEN_BYTES = 127  # of tokenizer.json for each word of the vocabulary, in Gemma 3's


@dataclass(frozen=True)
class ModelSize:
    """`encoders`: parameters that only images and sound reach, None when nothing tells. `checkpoint` is the released
    one of that name, whose licence applies."""

    name: str
    shape: Shape
    encoders: int | None
    checkpoint: Checkpoint | None = None
    tokenizer: int = 0  # bytes of tokenizer.json


def size_of(reference: str, config: dict | None = None) -> ModelSize:
    """Of a hub id of the catalogue, a local folder (a run or adapter too), or any model whose `config` is given.

    Raises Failure (exit 2) for what is neither, and for files that tell no Gemma of known size.
    """
    path = Path(reference).expanduser()
    if path.is_dir():
        return _of_folder(path, config)
    known = find_checkpoint(reference) if not path.exists() else None
    if config and config.get("model_type") and _tells_size(config):
        shape = _shape(reference, config)
        encoders = known.encoders if known else None if "text_config" in config else 0
        return ModelSize(reference, shape, encoders, known, TOKEN_BYTES * shape.vocabulary)
    if known:
        own = (each for each in known.ids if each.lower().endswith(f"/{reference.lower()}"))
        name = reference if "/" in reference else next(own, known.ids[0])
        return released(known, name)
    raise _unknown(reference)


def released(checkpoint: Checkpoint, name: str | None = None) -> ModelSize:
    tokenizer = TOKEN_BYTES * checkpoint.shape.vocabulary
    return ModelSize(name or checkpoint.ids[0], checkpoint.shape, checkpoint.encoders, checkpoint, tokenizer)


def _of_folder(path: Path, config: dict | None) -> ModelSize:
    if is_adapter(path):
        return size_of(adapter_base(path))
    if not config:
        try:
            config = json.loads((path / "config.json").read_text("utf-8"))
        except (OSError, ValueError):
            raise Failure(USAGE, "model-unreadable", f"{path} holds no readable config.json") from None
    if not isinstance(config, dict) or not _tells_size(config):
        raise Failure(USAGE, "model-unreadable", f"the config.json of {path} names no layers and widths")
    file = path / "tokenizer.json"
    tokenizer = file.stat().st_size if file.is_file() else 0
    return ModelSize(str(path), _shape(str(path), config), encoders_in(path, config), tokenizer=tokenizer)


def _tells_size(config: dict) -> bool:
    text = config.get("text_config") or config
    return isinstance(text, dict) and {"num_hidden_layers", "hidden_size"} <= text.keys()


def _shape(name: str, config: dict) -> Shape:
    try:
        return read_shape(config)
    except (ValueError, KeyError, TypeError) as error:
        raise Failure(USAGE, "family-unknown", f"{name} is {error}, not a Gemma that can be tuned here") from None


def encoders_in(folder: Path, config: dict) -> int | None:
    """Parameters of encoders, counted in the headers of the weight files; None when there are none to read."""
    if "text_config" not in config:
        return 0
    found = read_headers(folder)
    encoders = (tensor for name, tensor in found.items() if re.search(TOWERS, name))
    return sum(math.prod(tensor.shape) for tensor in encoders) if found else None


def _unknown(reference: str) -> Failure:
    near = nearest(reference)
    hint = f"Did you mean {near}?" if near else "Download it, or give a folder that holds its config.json."
    if HUB_ID.fullmatch(reference) and not reference.endswith(".gguf"):
        return Failure(USAGE, "model-not-found", f"{reference} is no released Gemma that is known here", fix=hint)
    if reference.endswith(".gguf"):
        return Failure(
            USAGE,
            "model-not-found",
            f"the size of {reference} is told only when it is unpacked",
            fix="Give the hub id of the model it was made from.",
        )
    return Failure(USAGE, "model-not-found", f"{reference} is no local folder and no released Gemma", fix=hint)
