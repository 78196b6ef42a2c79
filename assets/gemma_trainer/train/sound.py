"""What is told of a run whose numbers broke, or whose disk is full."""

from __future__ import annotations

import shlex
from itertools import groupby

from gemma_trainer.plan.plan import Plan
from gemma_trainer.rows.commands import changed
from gemma_trainer.rows.problems import INTERNAL, STOPPED, USAGE, Failure
from gemma_trainer.train.ranks import gathered
from gemma_trainer.train.rows import EncodedSet
from gemma_trainer.train.run_dir import RunDirectory

SLOWER = 10  # times, the learning rate to try next
NAMED = 20  # rows


def check_finite(finite, trainer, train: EncodedSet, plan: Plan, run: RunDirectory) -> None:
    """Raises Failure when `finite`, a FiniteLoss, has seen what is no number: exit 2 when what the run starts from is to
    blame, 6 when a checkpoint from before is left, else 1."""
    if finite.broken_at is None:
        return
    what, step = f"{finite.broken[0]} is no number", finite.broken_at
    if finite.at_start:
        raise _broken_start(what, trainer, train, plan, run, trained=step > 0)
    rows = told_rows(trainer, train, finite.sound + 1, step)
    raise _broken("loss-not-finite", f"{what} at step {step}{rows}", plan, run)


def check_bounded(bounded, trainer, train: EncodedSet, plan: Plan, run: RunDirectory) -> None:
    """Raises Failure when `bounded`, a BoundedLoss, has seen the loss explode: exit 6 when a checkpoint from before is left,
    else 1."""
    if bounded.broken_at is None:
        return
    (first, last), step = bounded.medians, bounded.sound + 1
    rows = told_rows(trainer, train, step, step)
    text = f"the loss went from {first:.3g} to {last:.3g} from step {step} on and stayed there until step {bounded.broken_at}"
    raise _broken("loss-exploded", text + rows.replace("rows are", f"rows at step {step} are"), plan, run)


def _broken(code: str, text: str, plan: Plan, run: RunDirectory) -> Failure:
    rate = f"{plan.learning_rate / SLOWER:g}"
    fix = f"Look at the rows; begin again with --learning-rate {rate} in another --output-dir, or with --dtype float32."
    exit_code = STOPPED if run.newest_checkpoint() else INTERNAL
    failure = Failure(exit_code, code, f"{text}; {_kept(run, 'from before')}", fix=fix, file=str(run.metrics_file))
    # The same command again would end in the same way.
    failure.next = [shlex.join(changed(plan.launch, ["--learning-rate", rate, "--output-dir", f"{run.path}-slower"]))]
    return failure


def check_room(room, run: RunDirectory) -> None:
    """Raises Failure when `room`, a DiskRoom, has found that the next checkpoint would fill the disk: exit 6 when one is
    there, else 1."""
    if room.lacking is None:
        return
    size, free = (f"{number / 2**20:,.0f} MiB" for number in room.lacking)
    text = f"the next checkpoint takes {size}, and the disk of {run.path} has {free}; it was not begun, and "
    exit_code = STOPPED if run.newest_checkpoint() else INTERNAL
    raise Failure(exit_code, "disk-full", text + _kept(run, "so far"))


def _kept(run: RunDirectory, which: str) -> str:
    checkpoint = run.newest_checkpoint()
    return f"{checkpoint} is the newest checkpoint {which}" if checkpoint else f"no checkpoint is left {which}"


def told_rows(trainer, train: EncodedSet, first: int, last: int) -> str:
    """Files and lines of the rows of these steps, of all processes: which, never what they say. "" when none is known."""
    from gemma_trainer.train.step_rows import rows_of_steps

    mine = [(row.file, row.line or row.row) for row in rows_of_steps(trainer, train, first, last)]
    found = sorted({place for theirs in gathered(mine) for place in theirs})
    if not found:
        return ""
    files = [(file, [line for _, line in rows]) for file, rows in groupby(found[:NAMED], key=lambda place: place[0])]
    lines = ", ".join(f"{file}:{','.join(map(str, numbers))}" for file, numbers in files)
    return f", whose rows are {lines}" + (f" and {len(found) - NAMED} more" if len(found) > NAMED else "")


def _broken_start(what: str, trainer, train: EncodedSet, plan: Plan, run: RunDirectory, trained: bool) -> Failure:
    """`trained`: a step has spread it over all weights that are trained, which tell nothing then."""
    import torch

    told = ((name, p) for name, p in trainer.model.named_parameters() if not (trained and p.requires_grad))
    floats = ((name, p) for name, p in told if p.is_floating_point())
    weight = next((name for name, p in floats if not torch.isfinite(p).all()), None)
    if weight:
        lora = plan.adapter and "lora_" in weight
        place, flag = (plan.adapter["path"], "--adapter") if lora else (plan.model, "--model")
        text, fix = f"{what} before anything is trained, for {weight} of {place} is none", f"Give another {flag}."
    elif trained:
        rows = told_rows(trainer, train, 1, 1)
        text, fix = f"{what} in the first step{rows}, before anything is trained", None
    else:
        text = f"{what} before anything is trained, though all weights are numbers"
        fix = _less(plan)
    return Failure(USAGE, "start-not-finite", text, fix=fix, file=str(run.metrics_file))


def _less(plan: Plan) -> str | None:
    """What of this run may be too large for its number format, None where nothing may."""
    huge = {
        "`margin` in the rows": plan.method == "rm",
        "--beta": "beta" in plan.objective,
        "--lora-alpha": plan.mode != "full" and not plan.adapter,
    }
    named = ", ".join(name for name, there in huge.items() if there)
    ways = [f"make huge values smaller: {named}"] if named else []
    ways += ["pass --dtype float32"] if plan.dtype != "float32" else []
    text = "; or ".join(ways)
    return f"{text[:1].upper()}{text[1:]}." if text else None
