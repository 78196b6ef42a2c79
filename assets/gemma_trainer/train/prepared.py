"""What stands before anything heavy is imported: plan, fit, encoded rows."""

from __future__ import annotations

from dataclasses import dataclass, field

from gemma_trainer.data.encode import RowTokenizer
from gemma_trainer.data.render import Renderer
from gemma_trainer.plan.fit import Fit
from gemma_trainer.plan.plan import Plan
from gemma_trainer.rows.problems import Problem
from gemma_trainer.train.rows import EncodedSet


@dataclass
class Prepared:
    """What a training script needs: the plan and whether it fits, the rows of both sides, and what renders and encodes
    more of them."""

    plan: Plan
    fit: Fit
    renderer: Renderer
    tokenizer: RowTokenizer
    train: EncodedSet
    held_out: EncodedSet
    plain_template: str | None  # chat template to save, when the model came without one
    files: str  # where tokenizer and template lie
    warnings: list[Problem] = field(default_factory=list)
