"""TRL's SFTTrainer over rows that are rendered, cut and masked already."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from datasets import Dataset
from trl import SFTConfig, SFTTrainer
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from gemma_trainer.data.encode import Encoded
from gemma_trainer.plan.plan import Plan
from gemma_trainer.rows.problems import UNSUPPORTED, Failure
from gemma_trainer.train.batches import LENGTH, SharedRowsMixin
from gemma_trainer.train.engine_trl import prepare_model, report, settings, silenced
from gemma_trainer.train.head import IGNORED, add_head
from gemma_trainer.train.packing import pack

PROBED = 16  # tokens of a row


def as_dataset(rows: Sequence[Encoded]) -> Dataset:
    """Columns `input_ids` and `labels`, one list of int per row, and its length; labels are IGNORED where the mask is 0."""
    labels = [[i if m else IGNORED for i, m in zip(row.ids, row.mask, strict=True)] for row in rows]
    ids = [list(row.ids) for row in rows]
    return Dataset.from_dict({"input_ids": ids, "labels": labels, LENGTH: [len(row.ids) for row in rows]})


def as_packed_dataset(rows: Sequence[Encoded], max_length: int) -> Dataset:
    """As `as_dataset`, of sequences of several rows; `seq_lengths` are the lengths of these."""
    sequences = [[rows[row] for row in sequence] for sequence in pack([len(row.ids) for row in rows], max_length)]
    lengths = [[len(row.ids) for row in sequence] for sequence in sequences]
    return as_dataset([joined(sequence) for sequence in sequences]).add_column("seq_lengths", lengths)


def joined(rows: Sequence[Encoded]) -> Encoded:
    """Rows behind one another. The first token of each carries no loss: the row before must not predict it."""
    ids = [i for row in rows for i in row.ids]
    return Encoded(ids, [m for row in rows for m in (0, *row.mask[1:])])


class PackedCollator(DataCollatorForLanguageModeling):
    """Batches of sequences whose position ids begin anew with each of their rows. transformers keeps rows apart by them
    where no mask is given; padding counts as rows of one token."""

    def torch_call(self, sequences: list[dict]) -> dict[str, torch.Tensor]:
        batch = super().torch_call(sequences)
        if "seq_lengths" in sequences[0]:  # held-out rows are not packed
            del batch["attention_mask"]
        return batch


@torch.no_grad()
def check_parted(model) -> None:
    """Raises Failure (exit 5) when what stands before a packed row changes what the model says of it."""
    row = torch.arange(10, 10 + PROBED)
    ids = torch.stack([torch.cat([row + PROBED, row]), torch.cat([row + 2 * PROBED, row])]).to(model.device)
    positions = torch.arange(PROBED).repeat(2, 2).to(model.device)
    training = model.training
    logits = model.eval()(input_ids=ids, position_ids=positions, use_cache=False).logits[:, PROBED:].float()
    model.train(training)
    difference, scale = float((logits[0] - logits[1]).abs().max()), float(logits.abs().max())
    if difference > 1e-3 * scale:
        text = f"rows packed into one sequence see each other in this model (logits differ by {difference:.3g})"
        raise Failure(UNSUPPORTED, "packing-leaks", text, fix="Drop --packing.")


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


class HeldOutMixin(SharedRowsMixin):
    """The held-out loss is the mean over all trained tokens, however rows are cut into batches and shared by processes; the
    library's is the mean of the means of batches. Nothing random is drawn for it, so a resumed run goes on as an
    undisturbed one."""

    def evaluate(self, *args, **kwargs) -> dict[str, float]:
        self.model.eval()
        with torch.no_grad(), torch.random.fork_rng(), self.compute_loss_context_manager():
            sums = torch.tensor([self._sums(batch, first) for batch, first in self._held_out()]).sum(0)
        total, tokens = self.accelerator.reduce(sums.to(self.args.device), "sum").tolist()
        return report(self, {"loss": total / tokens})

    def _held_out(self) -> Iterator[tuple[dict, bool]]:
        """(batch of this process, whether its rows come for the first time: some fill the last round of all processes)."""
        loader, processes, rank = self.get_eval_dataloader(), self.args.world_size, self.args.process_index
        left = len(self.eval_dataset) % (processes * self.args.per_device_eval_batch_size)
        for at, batch in enumerate(loader, start=1):
            yield self._prepare_inputs(batch), at < len(loader) or not 0 < left <= rank

    def _sums(self, batch: dict, first: bool) -> tuple[float, float]:
        """(sum of the losses of trained tokens, their number)."""
        tokens = int((batch["labels"][:, 1:] != IGNORED).sum())
        scale = torch.tensor(tokens * self.args.world_size, device=self.args.device)
        loss = float(self.compute_loss(self.model, batch, num_items_in_batch=scale))
        return (loss * tokens, float(tokens)) if first else (0.0, 0.0)


class HostedTrainer(HeldOutMixin, SFTTrainer):
    """With the head that the model brings."""


class TokenTrainer(HeldOutMixin, TokenLoss):
    """With the head of head.py."""


def build_trainer(
    model, tokenizer, plan: Plan, train, held_out, output_dir: Path, report_to: str, callbacks
) -> SFTTrainer:
    """A trainer over encoded rows. Raises Failure (exit 5) when nothing, or a vision tower, would be trained, or when packed
    rows would see each other."""
    own_head = plan.backend == "trl"  # Unsloth has another
    if own_head:
        add_head(model)
    model = prepare_model(model, plan)
    if plan.packing and plan.parallel != "fsdp":  # a model that is to be split is not on its devices yet
        check_parted(model)
    trainer = (TokenTrainer if own_head else HostedTrainer)(
        model=model,
        args=training_config(plan, output_dir, report_to, bool(held_out)),
        train_dataset=as_packed_dataset(train, plan.max_length) if plan.packing else as_dataset(train),
        eval_dataset=as_dataset(held_out) if held_out else None,
        processing_class=tokenizer,
        callbacks=list(callbacks),
    )
    if plan.packing:
        longest = max((len(row.ids) for row in held_out), default=1)
        trainer.args.per_device_eval_batch_size = max(1, plan.micro_batch_size * plan.max_length // longest)
        trainer.data_collator = PackedCollator(tokenizer.pad_token_id, return_position_ids=True)
    return silenced(trainer)
