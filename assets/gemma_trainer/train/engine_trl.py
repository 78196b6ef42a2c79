"""What all TRL trainers share: what is trained, the settings, the random state. They are handed ids and never render."""

from __future__ import annotations

from pathlib import Path

from transformers import PrinterCallback, ProgressCallback, Trainer, set_seed

from gemma_trainer.models.load import check_trainable, freeze_towers, load_adapter, lora_targets
from gemma_trainer.plan.plan import Plan


def adapt(model, plan: Plan):
    """The model with what the plan trains: LoRA layers on the language model, new or those of the starting adapter, or all
    of its weights, with a starting adapter merged into them."""
    if plan.adapter:
        adapted = load_adapter(model, plan.adapter["path"], trainable=True)
        adapted.active_peft_config.base_model_name_or_path = model.name_or_path
        if plan.mode != "full":
            return adapted
        model = adapted.merge_and_unload().requires_grad_(True)
    if plan.mode == "full":
        freeze_towers(model)
        return model
    if plan.backend == "unsloth":
        from gemma_trainer.train.engine_unsloth import new_layers

        return new_layers(model, plan)
    from peft import get_peft_model

    set_seed(plan.seed)
    return get_peft_model(model, lora_config(model, plan))


def lora_config(model, plan: Plan):
    """A peft.LoraConfig for new layers on the language model."""
    from peft import LoraConfig

    return LoraConfig(
        r=plan.lora["rank"],
        lora_alpha=plan.lora["alpha"],
        lora_dropout=plan.lora["dropout"],
        target_modules=lora_targets(model),
        task_type="CAUSAL_LM",
    )


def prepare_model(model, plan: Plan, adapt=adapt):
    """The model with what is trained. Raises Failure (exit 5) when nothing, or a vision tower, would be."""
    model = adapt(model, plan)
    if plan.gradient_checkpointing:
        model.enable_input_require_grads()
    check_trainable(model)
    return model


def settings(plan: Plan, output_dir: Path, report_to: str, evaluates: bool) -> dict:
    """The fields of transformers.TrainingArguments for a plan."""
    cpu = plan.device == "cpu"
    return {
        "output_dir": str(output_dir),
        "max_steps": plan.steps,
        "per_device_train_batch_size": plan.micro_batch_size,
        "per_device_eval_batch_size": plan.micro_batch_size,
        "gradient_accumulation_steps": plan.accumulation_steps,
        "learning_rate": plan.learning_rate,
        "lr_scheduler_type": "cosine",
        "warmup_steps": plan.warmup_steps,
        "seed": plan.seed,
        "data_seed": plan.seed,
        # TRL asks for bfloat16 everywhere; a CPU refuses it unless it is told that it is one.
        "use_cpu": cpu,
        "bf16": plan.autocast,
        "gradient_checkpointing": plan.gradient_checkpointing,
        "gradient_checkpointing_kwargs": {"use_reentrant": False} if plan.gradient_checkpointing else None,
        "dataloader_pin_memory": plan.device == "cuda",
        "logging_steps": max(1, plan.steps // 500),
        "logging_nan_inf_filter": False,  # the filter would hide a broken loss
        "save_strategy": "steps",
        "save_steps": plan.save_steps,
        "save_total_limit": 2,
        "eval_strategy": "epoch" if evaluates else "no",
        "report_to": report_to,
        "disable_tqdm": True,
    }


def report(trainer: Trainer, measures: dict[str, float]) -> dict[str, float]:
    """Log held-out measures and tell the callbacks, as Trainer.evaluate does. Gives them under the names of the log."""
    metrics = {f"eval_{name}": value for name, value in measures.items()}
    trainer.log(dict(metrics))
    trainer.control = trainer.callback_handler.on_evaluate(trainer.args, trainer.state, trainer.control, metrics)
    return metrics


def silenced(trainer: Trainer) -> Trainer:
    """Without the callbacks that print to stdout, which belongs to the result."""
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    return trainer
