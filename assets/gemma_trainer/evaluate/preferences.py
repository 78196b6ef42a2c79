"""What a policy prefers, and how far it has moved from its reference, on encoded pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch.nn.functional import logsigmoid
from torch.nn.utils.rnn import pad_sequence

SLICE = 256  # tokens whose scores over the whole vocabulary are in memory at a time


@dataclass
class Preferences:
    """[pairs, 2], chosen first: sums over the tokens of each answer. `kl` is None where the reference is not at hand."""

    logps: torch.Tensor
    reference: torch.Tensor
    tokens: torch.Tensor
    kl: torch.Tensor | None

    def summary(self, beta: float) -> dict[str, float]:
        """Means over the pairs, in nats; `kl` over the tokens. Equal rewards, as before the first step, count half."""
        rewards = beta * (self.logps - self.reference)
        margins = rewards[:, 0] - rewards[:, 1]
        means = {
            "rewards/accuracies": (margins > 0).double() + 0.5 * (margins == 0),
            "rewards/margins": margins,
            "rewards/chosen": rewards[:, 0],
            "rewards/rejected": rewards[:, 1],
            "logps/chosen": self.logps[:, 0],
            "logps/rejected": self.logps[:, 1],
        }
        summary = {name: float(values.mean()) for name, values in means.items()}
        if self.kl is not None:
            summary["kl"] = float(self.kl.sum() / self.tokens.sum())
        return summary

    def loss(self, loss: str, beta: float, label_smoothing: float, sft_weight: float) -> torch.Tensor:
        """Mean over the pairs of `pair_losses`, plus `sft_weight` x the negative log-likelihood per chosen token."""
        losses = pair_losses(loss, beta, label_smoothing, self.logps - self.reference, self.tokens)
        likelihood = self.logps[:, 0].sum() / self.tokens[:, 0].sum()
        return losses.mean() - sft_weight * likelihood


def pair_losses(kind: str, beta: float, label_smoothing: float, ratios: torch.Tensor, tokens: torch.Tensor):
    """[pairs], from the log-ratios [pairs, 2] of policy to reference, as TRL computes them.

    sigmoid: Rafailov et al. 2023, eq. 7. hinge: Zhao et al. 2023. ipo: Azar et al. 2023, eq. 17, over means per token as
    its authors do. robust: Chowdhury et al. 2024, of which `label_smoothing` is the share of flipped labels.
    """
    if kind == "ipo":
        means = ratios / tokens
        return (means[:, 0] - means[:, 1] - 1 / (2 * beta)) ** 2
    margins = beta * (ratios[:, 0] - ratios[:, 1])
    if kind == "hinge":
        return torch.relu(1 - margins)
    if kind == "robust":
        right, flipped = -logsigmoid(margins), -logsigmoid(-margins)
        return ((1 - label_smoothing) * right - label_smoothing * flipped) / (1 - 2 * label_smoothing)
    return -logsigmoid(margins)


def pad_pairs(ids: list[torch.Tensor], masks: list[torch.Tensor], pad_id: int) -> dict[str, torch.Tensor]:
    """A batch of chosen sequences, then the rejected ones, padded on the right."""
    return {
        "input_ids": pad_sequence(ids, batch_first=True, padding_value=pad_id),
        "attention_mask": pad_sequence([torch.ones_like(row) for row in ids], batch_first=True),
        "completion_mask": pad_sequence(masks, batch_first=True),
    }


@torch.no_grad()
def measure_preferences(
    policy, reference: Callable[[], AbstractContextManager], batches: Iterable[dict]
) -> Preferences:
    """Run the policy and the model that `reference()` gives over batches of [chosen answers, rejected answers].

    Where it gives None the batches hold the reference's log-probabilities. Scores over the vocabulary are made for
    answer tokens alone, SLICE at a time.
    """
    parts: dict[str, list[torch.Tensor]] = {"logps": [], "reference": [], "tokens": [], "kl": []}
    for batch in batches:
        answers = batch["completion_mask"][:, 1:].bool()
        states = _answer_states(policy, batch, answers)
        with reference() as model:
            other = None if model is None else (model, _answer_states(model, batch, answers))
        tokens = _compare(policy, states, other, batch["input_ids"][:, 1:][answers])
        logps, theirs, kl = (_sums(values, answers) for values in tokens)
        if other is None:
            theirs = torch.cat([batch["ref_chosen_logps"], batch["ref_rejected_logps"]]).cpu().double()
        sums = {"logps": logps, "reference": theirs, "tokens": answers.sum(1).cpu(), "kl": kl}
        for name, value in sums.items():
            parts[name].append(torch.stack(value.chunk(2), dim=1))
        known = other is not None
    joined = {name: torch.cat(values) for name, values in parts.items()}
    return Preferences(**{**joined, "kl": joined["kl"] if known else None})


def _sums(values: torch.Tensor, answers: torch.Tensor) -> torch.Tensor:
    """[rows] on the CPU, in float64, of which Apple's GPUs have none."""
    rows = answers.cpu().nonzero()[:, 0]
    return torch.zeros(len(answers), dtype=torch.float64).index_add_(0, rows, values.cpu().double())


def _answer_states(model, batch: dict, answers: torch.Tensor) -> torch.Tensor:
    """[answer tokens, hidden]: the states that predict them."""
    states = bare(model).base_model(
        input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], use_cache=False
    )
    return states.last_hidden_state[:, :-1][answers]


def _compare(policy, states, other: tuple | None, targets: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """(log-probability, the reference's, KL of the policy to the reference), each [answer tokens]."""
    logps, theirs, divergence = (torch.zeros(len(targets), device=targets.device) for _ in range(3))
    for start in range(0, len(targets), SLICE):
        part = slice(start, start + SLICE)
        scores = _log_softmax(policy, states[part])
        logps[part] = scores.gather(1, targets[part, None])[:, 0]
        if other is not None:
            model, their_states = other
            reference = _log_softmax(model, their_states[part])
            theirs[part] = reference.gather(1, targets[part, None])[:, 0]
            divergence[part] = (scores.exp() * (scores - reference)).sum(1)
    return logps, theirs, divergence


def _log_softmax(model, states: torch.Tensor) -> torch.Tensor:
    model = bare(model)
    scores = model.get_output_embeddings()(states).float()
    cap = soft_cap(model)
    if cap:
        scores = cap * torch.tanh(scores / cap)
    return scores.log_softmax(-1)


def soft_cap(model) -> float | None:
    """Within which a model's own configuration keeps its logits."""
    return getattr(model.config.get_text_config(), "final_logit_softcapping", None)


def bare(model):
    """The causal language model inside PEFT's wrapper, adapters included."""
    return model.get_base_model() if hasattr(model, "peft_config") else model
