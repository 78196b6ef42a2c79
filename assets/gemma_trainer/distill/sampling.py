"""Sampled answers of a model to a batch of requests, each with a temperature, a top_p and a seed of its own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

from gemma_trainer.data.encode import RowTokenizer
from gemma_trainer.distill.request import Request
from gemma_trainer.evaluate.generate import left_pad
from gemma_trainer.rows.problems import UNSUPPORTED, Failure


class Generator:
    """`stopped` ends what is being written at its next token."""

    def __init__(self, model, tokenizer: RowTokenizer, stops: Sequence[str]):
        backend = tokenizer.backend
        self.model = model
        self.stop_ids = [token for token in map(backend.token_to_id, stops) if token is not None]
        self.pad = backend.token_to_id("<pad>") or 0
        self.most: int | None = None  # rows that memory has room for, once that is known
        self.stopped = False

    def write(self, prompts: list[list[int]], requests: list[Request]) -> list[tuple[list[int], bool]]:
        """(ids of the answer without the stop token, whether it came to one) of each. Halves batches that do not fit.

        Raises Failure (exit 5) where a single prompt does not.
        """
        size = self.most or len(prompts)
        try:
            return [
                written
                for start in range(0, len(prompts), size)
                for written in self._write(prompts[start : start + size], requests[start : start + size])
            ]
        except torch.OutOfMemoryError:
            if size == 1:
                raise Failure(UNSUPPORTED, "does-not-fit", "one prompt and its answer do not fit into memory") from None
            self.most = size // 2
        torch.cuda.empty_cache()
        return self.write(prompts, requests)

    @torch.inference_mode()
    def _write(self, prompts: list[list[int]], requests: list[Request]) -> list[tuple[list[int], bool]]:
        device = self.model.device
        ids = left_pad(prompts, self.pad, device)
        limits = [request.sampling.max_tokens for request in requests]
        output = self.model.generate(
            input_ids=ids,
            attention_mask=left_pad([[1] * len(prompt) for prompt in prompts], 0, device),
            do_sample=False,  # Draw has sampled
            top_k=None,
            top_p=None,
            temperature=None,
            max_new_tokens=max(limits),
            eos_token_id=self.stop_ids,
            pad_token_id=self.pad,
            logits_processor=LogitsProcessorList([Draw(requests, device)]),
            stopping_criteria=StoppingCriteriaList([_Stop(self)]),
        )
        written = output[:, ids.shape[1] :].tolist()
        return [self._until_stop(new[:limit]) for new, limit in zip(written, limits, strict=True)]

    def _until_stop(self, ids: list[int]) -> tuple[list[int], bool]:
        end = next((at for at, token in enumerate(ids) if token in self.stop_ids), None)
        return (ids, False) if end is None else (ids[:end], True)


class Draw(LogitsProcessor):
    """Leaves one token of each row: the most likely one at temperature 0, else one drawn from the nucleus.

    Every row draws from a generator of its own, so that its answer does not depend on the rest of the batch: the
    largest p / e with exponential e is distributed as p.
    """

    def __init__(self, requests: list[Request], device):
        sampling = [request.sampling for request in requests]
        self.greedy = torch.tensor([[s.temperature == 0] for s in sampling], device=device)
        self.temperature = torch.tensor([[s.temperature or 1.0] for s in sampling], device=device)
        self.top_p = torch.tensor([[s.top_p] for s in sampling], device=device)
        self.generators = [torch.Generator(device).manual_seed(request.seed) for request in requests]

    def __call__(self, input_ids, scores):
        likely, tokens = (scores.float() / self.temperature).softmax(-1).sort(descending=True)
        likely = likely.masked_fill(likely.cumsum(-1) - likely >= self.top_p, 0)
        noise = torch.empty_like(likely)
        for row, generator in zip(noise, self.generators, strict=True):
            row.exponential_(generator=generator)
        rank = (likely / noise).argmax(-1, keepdim=True).masked_fill(self.greedy, 0)
        return torch.full_like(scores, -torch.inf).scatter_(1, tokens.gather(1, rank), 0.0)


class _Stop(StoppingCriteria):
    def __init__(self, generator: Generator):
        self.generator = generator

    def __call__(self, input_ids, scores, **kwargs):
        return torch.full((len(input_ids),), self.generator.stopped, device=input_ids.device, dtype=torch.bool)
