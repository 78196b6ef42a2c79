"""TRL's SFTTrainer over rows that are rendered, cut and masked already."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from datasets import Dataset
from trl import SFTConfig, SFTTrainer

from gemma_trainer.data.encode import Encoded
from gemma_trainer.plan.plan import Plan
from gemma_trainer.train.engine_trl import ResumableMixin, prepare_model, settings, silenced
from gemma_trainer.train.head import IGNORED, add_head


def as_dataset(rows: Sequence[Encoded]) -> Dataset:
    """Columns `input_ids` and `labels`, one list of int per row; labels are IGNORED where the mask is 0."""
    labels = [[i if m else IGNORED for i, m in zip(row.ids, row.mask, strict=True)] for row in rows]
    return Dataset.from_dict({"input_ids": [list(row.ids) for row in rows], "labels": labels})


def training_config(plan: Plan, output_dir: Path, report_to: str, evaluates: bool) -> SFTConfig:
    return SFTConfig(
        **settings(plan, output_dir, report_to, evaluates),
        loss_type="nll",  # TRL 1.14 would replace the model's forward pass
        # TRL must not touch the rows.
        max_length=None,
        dataset_kwargs={"skip_prepare_dataset": True},
    )


class TokenLoss(SFTTrainer):
    """Its loss is the mean over the trained tokens of a step, in all processes; no others are scored."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        scores = model(**inputs, scored=True)
        tokens = len(scores.logps) if num_items_in_batch is None else num_items_in_batch
        # The tokens of all processes are counted, and DDP averages the gradients.
        shares = 1 if num_items_in_batch is None else self.accelerator.num_processes
        loss = -scores.logps.sum() * shares / torch.as_tensor(tokens).clamp(min=1)
        counts = torch.stack([scores.best.sum(), scores.trained.sum()])
        right, trained = self.accelerator.reduce(counts, "sum").tolist()
        mode = "train" if self.model.training else "eval"
        self._metrics[mode]["mean_token_accuracy"].append(right / max(trained, 1))
        return (loss, scores) if return_outputs else loss

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            return self.compute_loss(model, inputs), None, None


class ResumableTrainer(ResumableMixin, SFTTrainer):
    pass


class TokenTrainer(ResumableTrainer, TokenLoss):
    pass


def build_trainer(
    model, tokenizer, plan: Plan, train, held_out, output_dir: Path, report_to: str, callbacks
) -> SFTTrainer:
    """A trainer over encoded rows. Raises Failure (exit 5) when nothing, or a vision tower, would be trained."""
    if plan.backend == "trl":  # Unsloth has a head of its own
        add_head(model)
    trainer = (TokenTrainer if plan.backend == "trl" else ResumableTrainer)(
        model=prepare_model(model, plan),
        args=training_config(plan, output_dir, report_to, bool(held_out)),
        train_dataset=as_dataset(train),
        eval_dataset=as_dataset(held_out) if held_out else None,
        processing_class=tokenizer,
        callbacks=list(callbacks),
    )
    return silenced(trainer)
