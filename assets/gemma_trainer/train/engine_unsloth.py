"""Unsloth's models under the trainers of the TRL engine: they get our rows and masks, and never its templates or masks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from gemma_trainer.models.resolve import cache_root
from gemma_trainer.plan.plan import Plan
from gemma_trainer.rows.problems import UNSUPPORTED, USAGE, Failure


def import_first() -> None:
    """Import Unsloth, which changes transformers, TRL and PEFT and so has to come before them."""
    # Code that it generates would otherwise lie in the working directory.
    os.environ.setdefault("UNSLOTH_COMPILE_LOCATION", str(cache_root() / "unsloth"))
    # Batches stay those of the TRL engine, padded.
    os.environ.setdefault("UNSLOTH_DISABLE_AUTO_PADDING_FREE", "1")
    os.environ.setdefault("UNSLOTH_DISABLE_STATISTICS", "1")  # it would ask the hub for a file
    import unsloth  # noqa: F401


def load_model(plan: Plan, source: str, trust_remote_code: bool):
    """As models.load.load_model. The weights are those of `source`: never Unsloth's own copy of a model of that name."""
    import torch
    from transformers import AutoConfig
    from unsloth import FastModel

    from gemma_trainer.models.load import check_loading

    quantize = plan.mode == "qlora"
    options = {}
    try:
        config = AutoConfig.from_pretrained(source, trust_remote_code=trust_remote_code)
        if config.model_type == "gemma2" and plan.device == "cpu":
            options["attn_implementation"] = "eager"  # sdpa cannot soft-cap attention scores
        with loading_info() as info:
            model, _ = FastModel.from_pretrained(
                source,
                max_seq_length=plan.max_length,
                dtype=getattr(torch, plan.dtype),
                load_in_4bit=quantize,
                use_exact_model_name=True,
                use_gradient_checkpointing=_checkpointing(plan),
                trust_remote_code=trust_remote_code,
                **options,
            )
    except Exception as error:  # a damaged config or tensor file surfaces as anything
        reason = next(iter(str(error).splitlines()), type(error).__name__)[:300]
        raise Failure(USAGE, "model-unreadable", f"{source} cannot be loaded by Unsloth: {reason}") from error
    check_loading(source, info)
    if quantize and not getattr(model, "is_loaded_in_4bit", False):  # it falls back without an error
        text = f"Unsloth could not load {source} in 4 bits on this machine"
        raise Failure(UNSUPPORTED, "backend-unsupported", text, fix="Pass --backend trl.")
    model.accepts_loss_kwargs = True  # as models.load has it
    return model


@contextmanager
def loading_info() -> Iterator[dict]:
    """Collects what transformers found missing in checkpoints that are loaded meanwhile; Unsloth does not ask."""
    from transformers import PreTrainedModel

    original, found = PreTrainedModel.from_pretrained, {"missing_keys": set(), "mismatched_keys": set()}

    @classmethod
    def recording(cls, *args, **kwargs):
        model, info = original.__func__(cls, *args, **{**kwargs, "output_loading_info": True})
        for keys, seen in found.items():
            seen.update(info[keys])
        return (model, info) if kwargs.get("output_loading_info") else model

    PreTrainedModel.from_pretrained = recording
    try:
        yield found
    finally:
        PreTrainedModel.from_pretrained = original


def new_layers(model, plan: Plan):
    """The model with new LoRA layers on its language model."""
    from unsloth import FastModel

    from gemma_trainer.models.load import lora_targets

    return FastModel.get_peft_model(
        model,
        r=plan.lora["rank"],
        lora_alpha=plan.lora["alpha"],
        lora_dropout=0.0,
        target_modules=lora_targets(model),
        use_gradient_checkpointing=_checkpointing(plan),
        random_state=plan.seed,
    )


def _checkpointing(plan: Plan) -> bool | str:
    """On a GPU Unsloth's own, which keeps activations in main memory meanwhile."""
    return "unsloth" if plan.gradient_checkpointing and plan.device == "cuda" else plan.gradient_checkpointing
