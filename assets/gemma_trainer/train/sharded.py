"""Save and check a model of which each process holds a part (FSDP 2, ZeRO-3)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from peft.utils import get_peft_model_state_dict
from safetensors import safe_open

from gemma_trainer.plan.processes import is_first
from gemma_trainer.rows.problems import INTERNAL, Failure


@contextmanager
def outer_whole(model) -> Iterator[None]:
    """With what lies outside of the blocks gathered, for a pass that does not begin at the model itself."""
    if not hasattr(model, "unshard"):
        yield
        return
    model.unshard()
    try:
        yield
    finally:
        model.reshard()


def whole_weights(trainer) -> dict[str, torch.Tensor]:
    """{name: tensor in main memory} of adapters, or of a model that is trained as a whole. Every process calls it; only the
    first gets them."""
    if trainer.is_deepspeed_enabled:
        return trainer.accelerator.get_state_dict(trainer.model_wrapped)
    return gathered_weights(trainer.model)


def gathered_weights(model) -> dict[str, torch.Tensor]:
    adapted = hasattr(model, "peft_config")
    tensors = {name: p for name, p in model.named_parameters() if p.requires_grad or not adapted}
    if not adapted:
        stored = model.state_dict().keys()
        tensors |= {name: buffer for name, buffer in model.named_buffers() if name in stored}
    weights = {}
    for name, tensor in tensors.items():
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        if is_first():
            weights[name] = whole.detach().cpu().clone()
    return weights


def verify_weights(model, weights: dict[str, torch.Tensor], folder: Path) -> dict:
    """Reopen what was saved and compare every tensor with what was gathered. Returns {"max_difference"}.

    Raises Failure (exit 1) when one is missing, empty, not finite or different, or when adapters are as they began.
    """
    adapted = hasattr(model, "peft_config")
    expected = get_peft_model_state_dict(model, state_dict=weights, save_embedding_layers=False) if adapted else weights
    saved = _saved(folder, "adapter_model" if adapted else "model")
    missing = sorted(expected.keys() - saved.keys())
    if missing:
        raise _broken(f"{len(missing)} of {len(expected)} tensors were not saved (first: {missing[0]})")
    for name, tensor in expected.items():
        if not torch.isfinite(saved[name]).all() or not torch.equal(saved[name], tensor):
            raise _broken(f"{name} was not saved as it was trained")
    if adapted and not any(tensor.any() for name, tensor in saved.items() if "lora_B" in name):
        raise _broken("the adapter changes nothing: its second matrices are zero")
    return {"max_difference": 0.0}


def _saved(folder: Path, stem: str) -> dict[str, torch.Tensor]:
    tensors = {}
    for path in sorted(folder.glob(f"{stem}*.safetensors")):
        with safe_open(path, framework="pt") as file:
            tensors |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    return tensors


def _broken(message: str) -> Failure:
    return Failure(INTERNAL, "saved-model-differs", message, fix="Keep the run directory and report this.")
