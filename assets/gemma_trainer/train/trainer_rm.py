"""TRL's RewardTrainer over pairs that are rendered and cut already."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from datasets import Dataset
from transformers import set_seed
from trl import RewardConfig, RewardTrainer

from gemma_trainer.evaluate.rewards import measure_rewards, score_pairs
from gemma_trainer.models.load import adapter_errors, freeze_towers, require_keys
from gemma_trainer.models.reward import HEAD, keep_float
from gemma_trainer.plan.plan import Plan
from gemma_trainer.rows.problems import USAGE, Failure
from gemma_trainer.train.batches import LENGTH, MeanOfPairsMixin
from gemma_trainer.train.engine_trl import lora_config, prepare_model, report, settings, silenced
from gemma_trainer.train.pairs import EncodedPair


def as_dataset(pairs: Sequence[EncodedPair]) -> Dataset:
    """Columns `chosen_ids` and `rejected_ids`, the length of the pair, and `margin` where the rows have one."""
    columns = {
        "chosen_ids": [list(pair.chosen.ids) for pair in pairs],
        "rejected_ids": [list(pair.rejected.ids) for pair in pairs],
        LENGTH: [pair.length for pair in pairs],
    }
    if pairs[0].margin is not None:
        columns["margin"] = [float(pair.margin) for pair in pairs]
    return Dataset.from_dict(columns)


def adapt(model, plan: Plan):
    """The model with what the plan trains beside the head: LoRA layers, or all of its weights.

    A starting adapter's layers are trained further in the new adapter. Where all weights are trained it is merged into
    them first. Raises Failure (exit 2) when it does not fit.
    """
    set_seed(plan.seed)
    if plan.mode != "full":
        keep_float(model)
        return (
            from_adapter(model, plan.adapter["path"]) if plan.adapter else with_layers(model, lora_config(model, plan))
        )
    if plan.adapter:
        model = from_adapter(model, plan.adapter["path"]).merge_and_unload().requires_grad_(True)
    freeze_towers(model)
    return model


def with_layers(model, config):
    """The model with new LoRA layers, and a head that is saved with them."""
    from peft import get_peft_model

    config.task_type, config.modules_to_save, config.inference_mode = "SEQ_CLS", [HEAD], False
    return get_peft_model(model, config)


def from_adapter(model, path: str):
    """The model with a copy of the layers of a causal model's adapter, as PEFT would put them on that model."""
    from peft import LoraConfig, load_peft_weights, set_peft_model_state_dict

    head = model.get_submodule(HEAD).weight.detach().clone()
    with adapter_errors(path):
        adapted = with_layers(model, LoraConfig.from_pretrained(path))
        weights = load_peft_weights(path, device="cpu") | {f"base_model.model.{HEAD}.weight": head}
        loaded = set_peft_model_state_dict(adapted, weights)
        require_keys(path, [key for key in loaded.missing_keys if "lora_" in key])
    unknown = loaded.unexpected_keys
    if unknown:
        text = f"{path} holds {len(unknown)} weights that a reward model has no place for (first: {unknown[0]})"
        raise Failure(USAGE, "adapter-unreadable", text, fix="Merge it into its model, and start from that.")
    return adapted


def training_config(plan: Plan, output_dir: Path, report_to: str, evaluates: bool) -> RewardConfig:
    return RewardConfig(
        **settings(plan, output_dir, report_to, evaluates),
        max_length=None,  # pairs are cut already
        center_rewards_coefficient=plan.objective["center_coefficient"] or None,
        disable_dropout=not (plan.lora and plan.lora["dropout"]),  # that of a starting adapter, --lora-dropout is kept
    )


class ResumableTrainer(MeanOfPairsMixin, RewardTrainer):
    """Evaluates pair by pair. TRL averages over batches, in which a last batch of one pair weighs as much as a full one.

    Nothing random is drawn for it, so a resumed run goes on as an undisturbed one.
    """

    def __init__(self, *args, held_out: Sequence[EncodedPair], **kwargs):
        self.held_out = held_out
        super().__init__(*args, **kwargs)

    def evaluate(self, *args, **kwargs) -> dict[str, float]:
        self.model.eval()
        scores = score_pairs(self.model, self.held_out, self.args.per_device_eval_batch_size)
        margins = [pair.margin or 0.0 for pair in self.held_out]
        measured = measure_rewards(scores, margins, self.args.center_rewards_coefficient or 0.0)
        return report(self, measured)


def build_trainer(
    model, tokenizer, plan: Plan, train, held_out, output_dir: Path, report_to: str, callbacks
) -> RewardTrainer:
    """A trainer over encoded pairs. Raises Failure (exit 5) when nothing, or a vision tower, would be trained."""
    trainer = ResumableTrainer(
        model=prepare_model(model, plan, adapt),
        args=training_config(plan, output_dir, report_to, bool(held_out)),
        train_dataset=as_dataset(train),
        eval_dataset=as_dataset(held_out) if held_out else None,
        held_out=held_out,
        processing_class=tokenizer,
        callbacks=list(callbacks),
    )
    # TRL has just put adapter and head of 4-bit weights into bfloat16; PEFT opens the saved ones in float32, which scores
    # in another way.
    for parameter in trainer.model.parameters():
        if parameter.requires_grad and plan.mode == "qlora":
            parameter.data = parameter.data.float()
    return silenced(trainer)
