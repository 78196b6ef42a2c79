"""When memory runs out: what is told, and how a run goes on with fewer rows a pass and the same rows a step."""

from __future__ import annotations

import gc
import shlex
from dataclasses import replace
from pathlib import Path

from gemma_trainer.plan.fit import ways_down, with_micro
from gemma_trainer.plan.plan import Plan
from gemma_trainer.rows.commands import changed
from gemma_trainer.rows.problems import UNSUPPORTED, Failure, Problem, is_out_of_memory
from gemma_trainer.train.checkpoints import step_of
from gemma_trainer.train.prepared import Prepared
from gemma_trainer.train.ranks import say
from gemma_trainer.train.run_dir import RunDirectory


def out_of_memory(error: BaseException, prepared: Prepared, run: RunDirectory) -> Failure:
    """Exit 5, with the ways that take less; those that change the result need another run directory."""
    prepared = shrunk(prepared, run.fitting("training"))
    plan, ways = prepared.plan, ways_down(prepared.fit)
    text = f"memory ran out ({type(error).__name__}) with {plan.micro_batch_size} rows a pass in {plan.mode}; "
    text += f"{prepared.fit.estimate.total / 2**30:.1f} GiB were predicted"
    failure = Failure(UNSUPPORTED, "out-of-memory", text, fix="; or ".join(map(str, ways)) or None)
    for way in ways:
        more = [] if way.change.startswith("--micro") else ["--output-dir", f"{run.path}-smaller"]
        failure.next.append(shlex.join(changed(plan.launch, [*way.change.split(), *more])))
    return failure


def shrunk(prepared: Prepared, micro: int | None) -> Prepared:
    """The plan with at most `micro` rows a pass, as memory ran out with more; None: as it is."""
    plan = prepared.plan
    if micro is None or micro >= plan.micro_batch_size:
        return prepared
    found = with_micro(prepared.fit, micro, "memory ran out with more rows a pass")
    accumulation = plan.effective_batch_size // micro // plan.processes
    plan = replace(plan, micro_batch_size=micro, accumulation_steps=accumulation, memory=found.memory())
    return replace(prepared, fit=found, plan=replace(plan, why={**plan.why, "batch": found.why["batch"]}))


def halved(micro: int, share: int) -> int:
    """The next smaller rows a pass by which a process's `share` of a step can be divided."""
    return next(n for n in range(micro // 2, 0, -1) if share % n == 0)


def recovered(run: RunDirectory) -> list[Problem]:
    """A warning for each time that memory ran out in this run."""
    texts = (
        f"memory ran out after step {event['step']}: {event['passes']} went from {event['from']} to {event['to']} rows a pass"
        for event in run.record.get("events", [])
    )
    return [Problem("memory-recovered", text) for text in texts]


class Recovery:
    """Goes on where memory ran out in a pass of training, from the last step, or of evaluation. In one process only: others
    would wait for this one in the middle of a step."""

    def __init__(self, trainer, plan: Plan, run: RunDirectory):
        self.trainer, self.plan, self.run = trainer, plan, run
        self.passing = False  # a pass of training has begun and did not end
        self._step, self._evaluate = trainer.training_step, trainer.evaluate
        trainer.training_step, trainer.evaluate = self._watched, self._evaluated
        fitting = run.fitting("evaluation")
        if fitting:
            trainer.args.per_device_eval_batch_size = min(fitting, trainer.args.per_device_eval_batch_size)

    def run_loop(self, loop, checkpoint: Path | None) -> None:
        """`loop(trainer, checkpoint, steps)` until it ends without running out of memory."""
        while not self._ends(loop, checkpoint):
            checkpoint = self._shrink()

    def _ends(self, loop, checkpoint: Path | None) -> bool:
        """False where it is to be tried again; the error, which holds what the pass had computed, is gone then."""
        try:
            loop(self.trainer, checkpoint, self.plan.steps)
        except Exception as error:
            smaller = self.trainer.args.per_device_train_batch_size > 1
            if self.passing and smaller and is_out_of_memory(error):
                return False
            raise
        return True

    def _watched(self, *args, **kwargs):
        self.passing = True
        loss = self._step(*args, **kwargs)
        self.passing = False
        return loss

    def _shrink(self) -> Path | None:
        """Half the rows a pass. Gives the checkpoint of the last whole step: a pass changes gradients alone, and those go."""
        trainer, args = self.trainer, self.trainer.args
        step, rows = trainer.state.global_step, args.per_device_train_batch_size
        share = rows * args.gradient_accumulation_steps
        micro = halved(rows, share)
        say(f"memory ran out with {rows} rows a pass; going on after step {step} with {micro}")
        self.passing = False
        trainer.model.zero_grad()
        _free()
        checkpoint = self._kept(step)
        self.run.shrunk("training", step, rows, micro)
        args.per_device_train_batch_size = trainer._train_batch_size = micro
        args.gradient_accumulation_steps = share // micro
        trainer.optimizer = None  # comes back from the checkpoint
        trainer._metrics["train"].clear()  # of the unfinished step
        # accelerate prepares a model once, and the second loop prepares it again.
        trainer.accelerator.free_memory()
        trainer.model._is_accelerate_prepared = False
        _free()
        return checkpoint

    def _kept(self, step: int) -> Path | None:
        if step == 0:
            return None
        newest = self.run.newest_checkpoint()
        if newest and step_of(newest) == step:
            return newest
        self.trainer._save_checkpoint(self.trainer.model, None)
        return self.run.mark_complete(step)

    def _evaluated(self, *args, **kwargs):
        """The measures, with half the rows a pass until they fit."""
        settings = self.trainer.args
        while True:
            try:
                return self._evaluate(*args, **kwargs)
            except Exception as error:
                rows = settings.per_device_eval_batch_size
                if rows == 1 or not is_out_of_memory(error):
                    raise
            _free()
            self.trainer._metrics["eval"].clear()
            settings.per_device_eval_batch_size = halved(rows, rows)
            self.run.shrunk("evaluation", self.trainer.state.global_step, rows, settings.per_device_eval_batch_size)


def _free() -> None:
    import torch

    gc.collect()
    for device in (torch.cuda, torch.mps):
        if device.is_available():
            device.empty_cache()
