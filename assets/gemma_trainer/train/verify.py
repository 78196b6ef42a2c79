"""Reopen what was saved and compare it with what was trained, before a run calls itself done."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import safe_open

from gemma_trainer.rows.problems import INTERNAL, USAGE, Failure

REOPENED = "reopened"
UNFELT = 1e-3  # a weight of lora_B that rounding may hide


def verify_adapter(model, directory: Path, ids: list[int]) -> dict:
    """Load the saved adapter beside the trained one and compare the logits of one row.

    Returns {"max_difference", "effect"}: the largest logit difference between saved and trained adapter, and
    between adapter and bare base. Raises Failure (exit 1) when tensors are missing, not finite or of no effect,
    or when the logits differ by more than the rounding of the saved dtype explains; exit 2 when steps were too small for
    any effect.
    """
    tensors = _read_tensors(directory / "adapter_model.safetensors")
    expected = {name for name, p in model.named_parameters() if p.requires_grad}
    if len(tensors) != len(expected):
        raise _broken(f"the saved adapter holds {len(tensors)} tensors, {len(expected)} were trained")
    bad = next((name for name, tensor in tensors.items() if not torch.isfinite(tensor).all()), None)
    if bad:
        raise _broken(f"{bad} of the saved adapter is not finite")
    model.eval()
    batch = torch.tensor([ids], device=next(model.parameters()).device)
    active = model.active_adapter
    trained = _logits(model, batch)
    model.load_adapter(str(directory), adapter_name=REOPENED)
    try:
        model.set_adapter(REOPENED)
        saved = _logits(model, batch)
    finally:
        model.set_adapter(active)
        model.delete_adapter(REOPENED)
    with model.disable_adapter():
        base = _logits(model, batch)
    difference, effect = _largest(saved, trained), _largest(trained, base)
    # bfloat16 keeps 8 bits: TRL trains LoRA in it on 4-bit weights, and PEFT reopens it in float32.
    coarse = any(tensor.dtype == torch.bfloat16 for tensor in tensors.values()) or trained.dtype != torch.float32
    if difference > (0.02 if coarse else 1e-4) * max(1.0, float(trained.abs().max())):
        raise _broken(
            f"the saved adapter gives other logits than the trained one (largest difference {difference:.3g})"
        )
    if effect == 0.0:
        raise _without_effect(max(float(tensor.abs().max()) for name, tensor in tensors.items() if "lora_B" in name))
    return {"max_difference": difference, "effect": effect}


def verify_model(model, directory: Path, ids: list[int], reopen: Callable) -> dict:
    """Load the saved full model and compare the logits of one row. Returns {"max_difference"}; raises Failure (exit 1).

    `reopen(directory, dtype)` gives it on the CPU.
    """
    parameter = next(model.parameters())
    dtype = str(parameter.dtype).removeprefix("torch.")
    reopened = reopen(directory, dtype).eval()
    batch = torch.tensor([ids])
    model.eval()
    difference = _largest(_logits(reopened, batch), _logits(model, batch.to(parameter.device)).cpu())
    tolerance = 1e-4 if parameter.device.type == "cpu" and dtype == "float32" else 0.1
    if not difference <= tolerance * max(1.0, float(_logits(reopened, batch).abs().max())):
        raise _broken(f"the saved model gives other logits than the trained one (largest difference {difference:.3g})")
    return {"max_difference": difference}


def _read_tensors(path: Path) -> dict[str, torch.Tensor]:
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict


@torch.no_grad()
def _logits(model, batch: torch.Tensor) -> torch.Tensor:
    return model(input_ids=batch, use_cache=False).logits


def _largest(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.float() - b.float()).abs().max())


def _without_effect(largest: float) -> Failure:
    """`largest`: of lora_B, which began as zeros."""
    text = "the adapter changes nothing: base and tuned logits are equal"
    if largest > UNFELT:
        return _broken(text)
    text += f", for training moved no weight by more than {largest:.2g}"
    return Failure(
        USAGE, "adapter-untrained", text, fix="Pass a larger --learning-rate or more steps, and --overwrite."
    )


def _broken(message: str) -> Failure:
    return Failure(INTERNAL, "saved-model-differs", message, fix="Keep the run directory and report this.")
