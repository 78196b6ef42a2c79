"""Which rows of the data a step was made of."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import islice

from accelerate import skip_first_batches

from gemma_trainer.data.options import Row
from gemma_trainer.train.rows import EncodedSet

WIDTH = 8  # bytes of a token id


def rows_of_steps(trainer, train: EncodedSet, first: int, last: int) -> list[Row]:
    """The rows that this process took in the steps from `first` to `last`, counted from 1. They are drawn again as a resumed
    run would draw them, and known by their tokens: a row that stands twice in the data is named twice."""
    sequences = [_bytes(ids) for batch in _batches(trainer, first, last) for ids in batch["input_ids"].tolist()]
    ends = {
        _bytes([i])
        for i in (trainer.processing_class.pad_token_id, trainer.processing_class.bos_token_id)
        if i is not None
    }
    texts = ((source, _texts(row)) for row, source in zip(train.rows, train.sources, strict=True))
    return [
        source for source, each in texts if any(_holds(sequence, text, ends) for text in each for sequence in sequences)
    ]


def _batches(trainer, first: int, last: int) -> Iterator[dict]:
    accumulation = trainer.args.gradient_accumulation_steps
    loader = trainer.get_train_dataloader()
    per_epoch = -(-len(loader) // accumulation)
    for epoch in range((first - 1) // per_epoch, (last - 1) // per_epoch + 1):
        begin = max(first - 1 - epoch * per_epoch, 0) * accumulation
        end = min(last - epoch * per_epoch, per_epoch) * accumulation
        left = skip_first_batches(loader, begin)
        # As Trainer does: accelerate passes the epoch to some of them only.
        for each in (loader, left, getattr(getattr(left, "batch_sampler", None), "batch_sampler", None)):
            if hasattr(each, "set_epoch"):
                each.set_epoch(epoch)
        yield from islice(left, end - begin)


def _texts(row) -> list[bytes]:
    """Of a conversation, or of both sides of a pair."""
    sides = [row] if hasattr(row, "ids") else [row.chosen, row.rejected]
    return [_bytes(side.ids) for side in sides]


def _bytes(ids: list[int]) -> bytes:
    return array("q", ids).tobytes()


def _holds(sequence: bytes, text: bytes, ends: set[bytes]) -> bool:
    """Whether a text stands in a sequence of the batch, as a whole: at its end, or before padding or another text."""
    at = sequence.find(text)
    while at >= 0:
        after = sequence[at + len(text) :][:WIDTH]
        if at % WIDTH == 0 and (not after or after in ends):
            return True
        at = sequence.find(text, at + 1)
    return False
