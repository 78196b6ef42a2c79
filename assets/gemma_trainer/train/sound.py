"""What is told of a run whose numbers broke."""

from __future__ import annotations

import shlex

from gemma_trainer.plan.plan import Plan
from gemma_trainer.rows.commands import changed
from gemma_trainer.rows.problems import INTERNAL, STOPPED, USAGE, Failure
from gemma_trainer.train.run_dir import RunDirectory

SLOWER = 10  # times, the learning rate to try next


def check_finite(finite, model, plan: Plan, run: RunDirectory) -> None:
    """Raises Failure when `finite`, a FiniteLoss, has seen what is no number: exit 2 when what the run starts from is to
    blame, 6 when a checkpoint from before is left, else 1."""
    if finite.broken_at is None:
        return
    what = f"{finite.broken[0]} is no number"
    if finite.at_start:
        raise _broken_start(what, model, plan, run, trained=finite.broken_at > 0)
    checkpoint = run.newest_checkpoint()
    kept = f"{checkpoint} is the newest checkpoint from before" if checkpoint else "no checkpoint is left from before"
    text, rate = f"{what} at step {finite.broken_at}; {kept}", f"{plan.learning_rate / SLOWER:g}"
    fix = f"Begin again with --learning-rate {rate} in another --output-dir, or with --dtype float32."
    code = STOPPED if checkpoint else INTERNAL
    failure = Failure(code, "loss-not-finite", text, fix=fix, file=str(run.metrics_file))
    # The same command again would end in the same way.
    failure.next = [shlex.join(changed(plan.launch, ["--learning-rate", rate, "--output-dir", f"{run.path}-slower"]))]
    raise failure


def _broken_start(what: str, model, plan: Plan, run: RunDirectory, trained: bool) -> Failure:
    """`trained`: a step has spread it over all weights that are trained, which tell nothing then."""
    import torch

    told = ((name, p) for name, p in model.named_parameters() if not (trained and p.requires_grad))
    floats = ((name, p) for name, p in told if p.is_floating_point())
    weight = next((name for name, p in floats if not torch.isfinite(p).all()), None)
    if weight:
        lora = plan.adapter and "lora_" in weight
        place, flag = (plan.adapter["path"], "--adapter") if lora else (plan.model, "--model")
        text, fix = f"{what} before anything is trained, for {weight} of {place} is none", f"Give another {flag}."
    elif trained:
        text, fix = f"{what} in the first step, before anything is trained", None
    else:
        text = f"{what} before anything is trained, though all weights are numbers"
        fix = "Make huge values smaller: `margin` in the rows, --beta; or pass --dtype float32."
    return Failure(USAGE, "start-not-finite", text, fix=fix, file=str(run.metrics_file))
