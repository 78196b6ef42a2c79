"""Log-probabilities of the trained tokens, without the logits of all: those of 2,048 tokens over Gemma's 262,144 words take
2 GiB, and their gradient as much again.

TRL's head is two to three times slower on a CPU, where it scores masked tokens too, and that of TRL 1.14 is not for DPO.
"""

from __future__ import annotations

import types
from functools import wraps
from typing import NamedTuple

import torch
from torch.distributed.tensor import DTensor
from trl.trainer.utils import maybe_gather_lm_head_ctx

from gemma_trainer.evaluate.preferences import bare, soft_cap
from gemma_trainer.plan.memory import SCORES_AT_A_TIME

IGNORED = -100  # label that carries no loss
WORDS_AT_A_TIME = 2**14  # of the gradient of a head in another number format


class Scores(NamedTuple):
    """Of the trained tokens of a batch, row after row. Entry [row, at] of `trained` stands for token at + 1."""

    logps: torch.Tensor  # [trained tokens]
    best: torch.Tensor  # [trained tokens], whether no word is likelier
    trained: torch.Tensor  # [rows, length - 1], bool

    def by_row(self) -> torch.Tensor:
        """[rows]: the sums of `logps`."""
        rows = self.trained.nonzero()[:, 0]
        return self.logps.new_zeros(len(self.trained)).index_add(0, rows, self.logps)


def add_head(model) -> None:
    """Make `model(..., labels=labels, scored=True)` give Scores, also through PEFT, DDP and FSDP; other calls stay as they
    are. A copy of the model needs a head of its own."""
    model = bare(model)
    whole = model.forward
    cap = soft_cap(model)

    @wraps(type(model).forward)
    def forward(self, *args, scored: bool = False, labels=None, **kwargs):
        if not scored:
            return whole(*args, **kwargs, **({} if labels is None else {"labels": labels}))
        states = self.base_model(*args, **kwargs, use_cache=False).last_hidden_state
        targets = labels[:, 1:]
        trained = targets != IGNORED
        weight = self.get_output_embeddings().weight
        whole_weight = weight.full_tensor() if isinstance(weight, DTensor) else weight
        with maybe_gather_lm_head_ctx(whole_weight, None):
            logps, best = _TrainedTokens.apply(states[:, :-1][trained], whole_weight, targets[trained], cap)
        return Scores(logps, best, trained)

    model.forward = types.MethodType(forward, model)


class _TrainedTokens(torch.autograd.Function):
    """(log-probability of the target, whether it is the likeliest word) of each state, some states at a time.

    Where the head is frozen, as under adapters, the gradient of every state is computed along with its score, and logits
    are computed once. A trained head computes them again in the backward pass.
    """

    @staticmethod
    def forward(ctx, states, weight, targets, cap):
        needs_states, needs_weight = ctx.needs_input_grad[:2]
        ctx.dtype = _computes_in(weight)
        at_once, frozen = weight.to(ctx.dtype), needs_states and not needs_weight
        logps = torch.empty(len(targets), device=states.device)
        best = torch.empty(len(targets), dtype=torch.bool, device=states.device)
        gradients = torch.empty_like(states, dtype=ctx.dtype) if frozen else None
        for part in _slices(len(targets), len(weight)):
            logps[part], best[part], slope = _score(states[part], at_once, targets[part], cap, frozen)
            if frozen:
                torch.mm(slope, at_once, out=gradients[part])
        ctx.cap = cap
        ctx.save_for_backward(states, weight, targets, gradients)
        ctx.mark_non_differentiable(best)
        return logps, best

    @staticmethod
    def backward(ctx, upstream, _):
        states, weight, targets, known = ctx.saved_tensors
        if known is not None:
            return (known * upstream[:, None]).to(states.dtype), None, None, None
        with maybe_gather_lm_head_ctx(weight, None):
            at_once = weight.to(ctx.dtype)
            of_states, of_weight = torch.empty_like(states), torch.zeros_like(weight)
            for part in _slices(len(targets), len(weight)):
                slope = _score(states[part], at_once, targets[part], ctx.cap, True)[2]
                slope.mul_(upstream[part, None])
                of_states[part] = slope @ at_once
                _add_product(of_weight, slope, states[part].to(ctx.dtype))
        return of_states, of_weight, None, None


def _computes_in(weight: torch.Tensor) -> torch.dtype:
    kind = weight.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype


def _slices(tokens: int, words: int) -> list[slice]:
    size = max(1, SCORES_AT_A_TIME // words)
    return [slice(start, start + size) for start in range(0, tokens, size)]


def _score(states, weight, targets, cap: float | None, slopes: bool) -> tuple:
    """(log-probability, whether the likeliest, its derivative by the logits [tokens, words] if asked for)."""
    logits = (states.to(weight.dtype) @ weight.T).float()
    capped = None
    if cap:
        logits.div_(cap).tanh_()
        capped = logits.clone() if slopes else None
        logits.mul_(cap)
    chosen = logits.gather(1, targets[:, None])
    most = logits.amax(1, keepdim=True)
    total = logits.sub_(most).exp_().sum(1, keepdim=True)
    logps = (chosen - most - total.log())[:, 0]
    if not slopes:
        return logps, (chosen >= most)[:, 0], None
    slope = logits.div_(-total).scatter_add_(1, targets[:, None], torch.ones_like(chosen))
    if cap:
        slope.mul_(capped.square_().neg_().add_(1))
    return logps, (chosen >= most)[:, 0], slope.to(weight.dtype)


def _add_product(total: torch.Tensor, slope: torch.Tensor, states: torch.Tensor) -> None:
    """Add slope.T @ states, some words at a time where it is of another type: the product is as large as the head."""
    if total.dtype == slope.dtype:
        total.addmm_(slope.T, states)
        return
    for rows, part in zip(total.split(WORDS_AT_A_TIME), slope.split(WORDS_AT_A_TIME, dim=1), strict=True):
        rows.add_(part.T @ states)
