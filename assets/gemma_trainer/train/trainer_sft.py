"""TRL's SFTTrainer over rows that are rendered, cut and masked already."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from datasets import Dataset
from trl import SFTConfig, SFTTrainer

from gemma_trainer.data.encode import Encoded
from gemma_trainer.plan.plan import Plan
from gemma_trainer.train.engine_trl import ResumableMixin, prepare_model, settings, silenced

IGNORED = -100  # label that carries no loss


def as_dataset(rows: Sequence[Encoded]) -> Dataset:
    """Columns `input_ids` and `labels`, one list of int per row; labels are IGNORED where the mask is 0."""
    labels = [[i if m else IGNORED for i, m in zip(row.ids, row.mask, strict=True)] for row in rows]
    return Dataset.from_dict({"input_ids": [list(row.ids) for row in rows], "labels": labels})


def training_config(plan: Plan, output_dir: Path, report_to: str, evaluates: bool) -> SFTConfig:
    return SFTConfig(
        **settings(plan, output_dir, report_to, evaluates),
        # TRL must not touch the rows.
        max_length=None,
        dataset_kwargs={"skip_prepare_dataset": True},
    )


class ResumableTrainer(ResumableMixin, SFTTrainer):
    pass


def build_trainer(
    model, tokenizer, plan: Plan, train, held_out, output_dir: Path, report_to: str, callbacks
) -> SFTTrainer:
    """A trainer over encoded rows. Raises Failure (exit 5) when nothing, or a vision tower, would be trained."""
    trainer = ResumableTrainer(
        model=prepare_model(model, plan),
        args=training_config(plan, output_dir, report_to, bool(held_out)),
        train_dataset=as_dataset(train),
        eval_dataset=as_dataset(held_out) if held_out else None,
        processing_class=tokenizer,
        callbacks=list(callbacks),
    )
    return silenced(trainer)
