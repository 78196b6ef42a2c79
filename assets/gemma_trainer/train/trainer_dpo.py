"""TRL's DPOTrainer over pairs that are rendered, cut and masked already."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from datasets import Dataset
from transformers import set_seed
from trl import DPOConfig, DPOTrainer
from trl.trainer.utils import use_adapter

from gemma_trainer.evaluate.preferences import Preferences, measure_preferences, pad_pairs
from gemma_trainer.models.load import check_trainable
from gemma_trainer.plan.plan import Plan
from gemma_trainer.train.batches import LENGTH, MeanOfPairsMixin
from gemma_trainer.train.engine_trl import lora_config, prepare_model, report, settings, silenced
from gemma_trainer.train.head import IGNORED, add_head
from gemma_trainer.train.pairs import SIDES, EncodedPair
from gemma_trainer.train.sharded import outer_whole

REFERENCE = "ref"  # TRL's name for its frozen copy of a starting adapter


def as_dataset(pairs: Sequence[EncodedPair]) -> Dataset:
    """Columns `chosen_ids`, `chosen_mask`, `rejected_ids`, `rejected_mask`: prompt and answer, one list of int per row;
    and the length of the pair."""
    columns = {f"{side}_ids": [list(getattr(pair, side).ids) for pair in pairs] for side in SIDES}
    columns[LENGTH] = [pair.length for pair in pairs]
    return Dataset.from_dict(columns | {f"{side}_mask": [list(getattr(p, side).mask) for p in pairs] for side in SIDES})


@dataclass
class PairCollator:
    """Batches as TRL's DPO takes them: chosen sequences, then the rejected ones, padded on the right.

    TRL's own collator trains all that follows the prompt, results of tools too.
    """

    pad_id: int

    def __call__(self, pairs: Sequence[dict]) -> dict[str, torch.Tensor]:
        ids, masks = (
            [torch.tensor(pair[f"{side}_{what}"]) for side in SIDES for pair in pairs] for what in ("ids", "mask")
        )
        batch = pad_pairs(ids, masks, self.pad_id)
        computed = [f"ref_{side}_logps" for side in SIDES if f"ref_{side}_logps" in pairs[0]]
        return batch | {name: torch.tensor([pair[name] for pair in pairs]) for name in computed}


def answer_logps(model, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """[sequences]: the log-probability of each answer."""
    labels = batch["input_ids"].masked_fill(batch["completion_mask"] == 0, IGNORED)
    ids, attention = batch["input_ids"], batch["attention_mask"]
    return model(input_ids=ids, attention_mask=attention, labels=labels, scored=True).by_row()


class AnswerLoss(DPOTrainer):
    """Scores the tokens of answers and no others, in the policy and in its reference."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        logps, tokens = answer_logps(model, inputs), inputs["completion_mask"][:, 1:].sum(1)
        if "ref_chosen_logps" in inputs:
            theirs = torch.cat([inputs["ref_chosen_logps"], inputs["ref_rejected_logps"]])
        else:
            with torch.no_grad(), self.reference() as reference:
                theirs = answer_logps(reference, inputs)
        pairs = Preferences(*(torch.stack(each.chunk(2), dim=1) for each in (logps, theirs, tokens)), kl=None)
        self._note(pairs)
        return pairs.loss(**self.loss_of)

    def _note(self, pairs: Preferences) -> None:
        """Means over the pairs of all processes, for the trainer's log."""
        mine = Preferences(pairs.logps.detach().cpu(), pairs.reference.cpu(), pairs.tokens.cpu(), kl=None)
        means, count = mine.summary(self.objective["beta"]), len(mine.logps)
        sums = torch.tensor([count, *(count * mean for mean in means.values())], device=self.args.device)
        count, *sums = self.accelerator.reduce(sums, "sum").tolist()
        for name, total in zip(means, sums, strict=True):
            self._metrics["train"][name].append(total / count)

    def compute_ref_log_probs(self, model, inputs):
        with torch.no_grad(), self.reference(), self.accelerator.autocast():
            return answer_logps(model, inputs).chunk(2)


class PreferenceTrainer(MeanOfPairsMixin, DPOTrainer):
    """Evaluates pair by pair, with the distance to the reference. Nothing random is drawn for it, so a resumed run goes
    on as an undisturbed one."""

    def __init__(self, *args, objective: dict, **kwargs):
        self.objective = objective
        self.loss_of = {name: objective[name] for name in ("loss", "beta", "label_smoothing", "sft_weight")}
        super().__init__(*args, **kwargs)

    def _prepare_dataset(self, dataset, *args):
        return dataset  # TRL would render and tokenize

    @contextmanager
    def reference(self) -> Iterator:
        """The model that the run started from; None where only its log-probabilities are kept."""
        adapters = getattr(self.model, "peft_config", None)
        if adapters is None:
            yield self.ref_model
            return
        with use_adapter(self.model, REFERENCE if REFERENCE in adapters else None):
            yield self.model

    def held_out(self) -> Iterator[dict[str, torch.Tensor]]:
        rows, size = self.eval_dataset, self.args.per_device_eval_batch_size
        for start in range(0, len(rows), size):
            batch = self.data_collator(rows.select(range(start, min(start + size, len(rows)))).to_list())
            yield {name: value.to(self.args.device) for name, value in batch.items()}

    def evaluate(self, *args, **kwargs) -> dict[str, float]:
        self.model.eval()
        with self.compute_loss_context_manager(), outer_whole(self.model):
            measured = measure_preferences(self.model, self.reference, self.held_out())
        summary = {"loss": float(measured.loss(**self.loss_of)), **measured.summary(self.objective["beta"])}
        return report(self, summary)


class AnswerTrainer(PreferenceTrainer, AnswerLoss):
    pass


def training_config(plan: Plan, output_dir: Path, report_to: str, evaluates: bool) -> DPOConfig:
    objective = plan.objective
    sft = objective["sft_weight"]
    return DPOConfig(
        **settings(plan, output_dir, report_to, evaluates),
        loss_type=[objective["loss"], *(["sft"] if sft else [])],
        loss_weights=[1.0, *([sft] if sft else [])],
        beta=objective["beta"],
        label_smoothing=objective["label_smoothing"],
        precompute_ref_log_probs=objective["precompute_ref"],
        precompute_ref_batch_size=plan.micro_batch_size,
        max_length=None,  # pairs are cut already
        remove_unused_columns=False,
        # Noise in the policy alone would be taken for a difference to the reference.
        disable_dropout=not (plan.lora and plan.lora["dropout"]),
    )


def build_trainer(
    model, tokenizer, plan: Plan, train, held_out, output_dir: Path, report_to: str, callbacks
) -> DPOTrainer:
    """A trainer over encoded pairs. Raises Failure (exit 5) when nothing, or a vision tower, would be trained.

    The reference is new adapters switched off, a frozen copy of a starting adapter (and of Unsloth's new ones, which
    change nothing), or, where all weights are trained, a frozen copy of the model unless its log-probabilities are
    computed before.
    """
    reference, new_layers = None, None
    if plan.lora and not plan.adapter and plan.backend == "trl":
        new_layers = lora_config(model, plan)  # TRL puts them on; layers that are there already it would copy
        set_seed(plan.seed)
    else:
        model = prepare_model(model, plan)
    if plan.mode == "full" and not plan.objective["precompute_ref"]:
        reference = copy.deepcopy(model).requires_grad_(False)
    if plan.backend == "trl":  # Unsloth has a head of its own
        for each in filter(None, (model, reference)):
            add_head(each)
    rows = as_dataset(train)
    if plan.objective["sft_weight"]:  # that loss is one per token of a micro batch, which must be one of chance then
        rows = rows.remove_columns(LENGTH)
    trainer = (AnswerTrainer if plan.backend == "trl" else PreferenceTrainer)(
        model=model,
        ref_model=reference,
        args=training_config(plan, output_dir, report_to, bool(held_out)),
        data_collator=PairCollator(tokenizer.pad_token_id),
        train_dataset=rows,
        eval_dataset=as_dataset(held_out) if held_out else None,
        processing_class=tokenizer,
        callbacks=list(callbacks),
        peft_config=new_layers,
        objective=plan.objective,
    )
    check_trainable(trainer.model)
    if plan.lora:  # in checkpoints and the result, the reference would be a second adapter
        trainer.model.save_pretrained = partial(trainer.model.save_pretrained, selected_adapters=["default"])
    return silenced(trainer)
