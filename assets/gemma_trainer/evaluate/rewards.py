"""How well rewards tell chosen from rejected answers."""

from __future__ import annotations

import math
from collections.abc import Sequence


def score_pairs(model, pairs: Sequence, batch_size: int) -> list[tuple[float, float]]:
    """(reward of chosen, reward of rejected) of each encoded pair."""
    from gemma_trainer.models.reward import score_ids

    scores = score_ids(model, [side.ids for pair in pairs for side in pair[:2]], 2 * batch_size)
    return list(zip(scores[::2], scores[1::2], strict=True))


def measure_rewards(scores: Sequence[tuple[float, float]], margins: Sequence[float], center: float = 0.0) -> dict:
    """Means over the pairs.

    `loss`: -log sigmoid(chosen - rejected - margin) + center x (chosen + rejected)^2 (Bradley and Terry; Touvron et al.
    2023, section 3.2.2; Eisenstein et al. 2023). `accuracy`: share of pairs in which chosen has the higher reward, equal
    rewards as half a pair: a model that tells nothing apart has 0.5.
    """
    count = len(scores)
    losses = [
        softplus(rejected + margin - chosen) + center * (chosen + rejected) ** 2
        for (chosen, rejected), margin in zip(scores, margins, strict=True)
    ]
    return {
        "loss": sum(losses) / count,
        "accuracy": sum((chosen > rejected) + (chosen == rejected) / 2 for chosen, rejected in scores) / count,
        "margin": sum(chosen - rejected for chosen, rejected in scores) / count,
        "mean_reward": sum(chosen + rejected for chosen, rejected in scores) / (2 * count),
    }


def softplus(x: float) -> float:
    """log(1 + e^x) without overflow."""
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))
