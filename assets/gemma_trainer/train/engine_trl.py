"""The TRL engine: CPU, Apple GPUs, and one NVIDIA GPU. It is handed ids and labels and never renders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from datasets import Dataset
from transformers import PrinterCallback, ProgressCallback, set_seed
from trl import SFTConfig, SFTTrainer

from gemma_trainer.data.tokens import Encoded
from gemma_trainer.models.load import check_trainable, freeze_towers, lora_targets
from gemma_trainer.plan.plan import Plan

IGNORED = -100  # label that carries no loss


def as_dataset(rows: Sequence[Encoded]) -> Dataset:
    """Columns `input_ids` and `labels`, one list of int per row; labels are IGNORED where the mask is 0."""
    labels = [[i if m else IGNORED for i, m in zip(row.ids, row.mask, strict=True)] for row in rows]
    return Dataset.from_dict({"input_ids": [list(row.ids) for row in rows], "labels": labels})


def adapt(model, plan: Plan):
    """The model with what the plan trains: new LoRA layers on the language model, or all of its weights."""
    if plan.mode == "full":
        freeze_towers(model)
        return model
    from peft import LoraConfig, get_peft_model

    set_seed(plan.seed)
    config = LoraConfig(
        r=plan.lora["rank"],
        lora_alpha=plan.lora["alpha"],
        lora_dropout=plan.lora["dropout"],
        target_modules=lora_targets(model),
        task_type="CAUSAL_LM",
    )
    return get_peft_model(model, config)


def training_config(plan: Plan, output_dir: Path, report_to: str, evaluates: bool) -> SFTConfig:
    cpu = plan.device == "cpu"
    return SFTConfig(
        output_dir=str(output_dir),
        max_steps=plan.steps,
        per_device_train_batch_size=plan.micro_batch_size,
        per_device_eval_batch_size=plan.micro_batch_size,
        gradient_accumulation_steps=plan.accumulation_steps,
        learning_rate=plan.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=plan.warmup_steps,
        seed=plan.seed,
        data_seed=plan.seed,
        # TRL asks for bfloat16 everywhere; a CPU refuses it unless it is told that it is one.
        use_cpu=cpu,
        bf16=plan.autocast,
        gradient_checkpointing=plan.gradient_checkpointing,
        gradient_checkpointing_kwargs={"use_reentrant": False} if plan.gradient_checkpointing else None,
        dataloader_pin_memory=plan.device == "cuda",
        logging_steps=max(1, plan.steps // 500),
        logging_nan_inf_filter=False,  # the filter would hide a broken loss
        save_strategy="steps",
        save_steps=plan.save_steps,
        save_total_limit=2,
        eval_strategy="epoch" if evaluates else "no",
        report_to=report_to,
        disable_tqdm=True,
        # Rows come rendered, cut and masked: TRL must not touch them.
        max_length=None,
        dataset_kwargs={"skip_prepare_dataset": True},
    )


class ResumableTrainer(SFTTrainer):
    """Evaluation leaves the random state alone, so a run resumed where an evaluation lay gets the same dropout."""

    def evaluate(self, *args, **kwargs):
        with torch.random.fork_rng():
            return super().evaluate(*args, **kwargs)


def build_trainer(
    model, tokenizer, plan: Plan, train, held_out, output_dir: Path, report_to: str, callbacks
) -> SFTTrainer:
    """A trainer over encoded rows. Raises Failure (exit 5) when nothing, or a vision tower, would be trained."""
    model = adapt(model, plan)
    if plan.gradient_checkpointing:
        model.enable_input_require_grads()
    check_trainable(model)
    trainer = ResumableTrainer(
        model=model,
        args=training_config(plan, output_dir, report_to, bool(held_out)),
        train_dataset=as_dataset(train),
        eval_dataset=as_dataset(held_out) if held_out else None,
        processing_class=tokenizer,
        callbacks=list(callbacks),
    )
    # Both print to stdout, which belongs to the result.
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    return trainer


def held_out_loss(trainer: SFTTrainer) -> float | None:
    """Loss per trained token of the held-out rows, averaged over batches; None without any.

    evaluate.py averages over tokens, so the two differ a little where rows differ in length.
    """
    if trainer.eval_dataset is None:
        return None
    return trainer.evaluate()["eval_loss"]
