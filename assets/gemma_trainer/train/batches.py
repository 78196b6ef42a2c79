"""Which rows make up each micro batch of an epoch: those of a step by chance, within it by length, in equal parts for the
processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import cycle, islice

import torch
from torch.utils.data import BatchSampler, Sampler

LENGTH = "length"  # column of a data set: tokens of a row, of the longer side of a pair


class StepsByLength(Sampler[int]):
    """The rows of an epoch as random shuffling draws them, those of each optimizer step with the longest first, so that
    a micro batch holds rows of about one length and little padding. A function of seed and epoch alone, so a resumed run
    goes on with the right rows."""

    def __init__(self, lengths: Sequence[int], step: int, seed: int):
        self.lengths, self.step, self.seed, self.epoch = lengths, step, seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        chance = torch.Generator().manual_seed(self.seed + self.epoch)  # as accelerate shuffles
        drawn = torch.randperm(len(self.lengths), generator=chance).tolist()
        for start in range(0, len(drawn), self.step):
            yield from sorted(drawn[start : start + self.step], key=self.lengths.__getitem__, reverse=True)


class EvenRounds(BatchSampler):
    """The batches of an epoch, of which each process takes every n-th. The last round is cut so that each gets a part of it;
    a row comes twice only where fewer are left than processes. accelerate would fill the round with rows of its start."""

    def __init__(self, batches: BatchSampler, processes: int):
        super().__init__(batches.sampler, batches.batch_size, batches.drop_last)
        self.processes = processes

    def __len__(self) -> int:
        return self.processes * -(-super().__len__() // self.processes)

    def __iter__(self) -> Iterator[list[int]]:
        batches = super().__iter__()
        while taken := list(islice(batches, self.processes)):
            if len(taken) < self.processes:
                rows = [row for batch in taken for row in batch]
                rows = list(islice(cycle(rows), max(len(rows), self.processes)))
                taken = [rows[rank :: self.processes] for rank in range(self.processes)]
            yield from taken


class SharedRowsMixin:
    """Several processes go over the rows of an epoch, each over its part, as one process would over all. Rows of a data
    set that tells their lengths are ordered by it within a step."""

    def _get_train_sampler(self, *args):
        if LENGTH not in self.train_dataset.column_names:
            return super()._get_train_sampler(*args)
        step = self.args.train_batch_size * self.args.gradient_accumulation_steps * self.args.world_size
        return StepsByLength(list(self.train_dataset[LENGTH]), step, self.args.data_seed)

    def _get_eval_sampler(self, *args):
        if LENGTH not in self.eval_dataset.column_names:
            return super()._get_eval_sampler(*args)
        lengths = list(self.eval_dataset[LENGTH])
        return sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)

    def get_train_dataloader(self):
        return self._shared(super().get_train_dataloader())

    def get_eval_dataloader(self, *args):
        return self._shared(super().get_eval_dataloader(*args))

    def _shared(self, loader):
        if self.args.world_size > 1:
            mine = loader.batch_sampler
            mine.batch_sampler, mine.even_batches = EvenRounds(mine.batch_sampler, self.args.world_size), False
            mine.sampler = mine.batch_sampler.sampler  # accelerate tells the epoch of a resumed run to no other
            self.accelerator.gather = partial(gather_uneven, type(self.accelerator).gather, self.accelerator)
        return loader


class MeanOfPairsMixin(SharedRowsMixin):
    """The loss of a step is the mean of its pairs. TRL takes the mean of its micro batches, in which the pairs of a smaller
    last one weigh more."""

    weight_of_pair: float | None = None  # for the sum of a micro batch's pairs, in the step that is being made

    def get_batch_samples(self, *args):
        batches, items = super().get_batch_samples(*args)
        pairs = torch.tensor(sum(len(batch["input_ids"]) // 2 for batch in batches), device=self.args.device)
        all_pairs = int(self.accelerator.gather(pairs).sum())
        self.weight_of_pair = len(batches) * self.args.world_size / all_pairs
        return batches, items

    def compute_loss(self, model, inputs, *args, **kwargs):
        loss = super().compute_loss(model, inputs, *args, **kwargs)
        return loss * (len(inputs["input_ids"]) // 2 * self.weight_of_pair) if self.weight_of_pair else loss


def gather_uneven(gather: Callable, accelerator, values):
    """What accelerate's `gather` gives, also of tensors that are longer in one process than in another: TRL logs a value a
    row, and the last batches of an epoch differ in rows."""
    if not isinstance(values, torch.Tensor) or values.dim() == 0:
        return gather(accelerator, values)
    sizes = gather(accelerator, torch.tensor([len(values)], device=values.device)).tolist()
    padding = values.new_zeros(max(sizes) - len(values), *values.shape[1:])
    parts = gather(accelerator, torch.cat([values, padding])).split(max(sizes))
    return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])
