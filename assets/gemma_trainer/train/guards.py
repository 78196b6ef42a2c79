"""What watches a running loop: records each step, marks whole checkpoints, stops on signals and on a broken loss."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from transformers import TrainerCallback

from gemma_trainer.plan.processes import is_first
from gemma_trainer.rows.problems import INTERNAL, Failure
from gemma_trainer.train.ranks import gathered, largest, say
from gemma_trainer.train.run_dir import RunDirectory, mark_complete

EPOCH_END = 1e-6  # share of an epoch
KEPT = ("loss", "eval_loss", "learning_rate", "grad_norm", "epoch")  # of every method


def kept_keys(logged: Iterable[str]) -> tuple[str, ...]:
    """Keys of the trainer's log that are looked at, with the method's own."""
    return (*KEPT, *(f"{side}{name}" for name in logged for side in ("", "eval_")))


class Recorder(TrainerCallback):
    """Appends every log line to metrics.jsonl and shows progress on stderr."""

    def __init__(self, run: RunDirectory, steps: int, logged: Iterable[str] = ()):
        self.run, self.steps = run, steps
        self.kept = kept_keys(logged)
        self.bar = None

    def on_train_begin(self, args, state, control, **kwargs):
        if sys.stderr.isatty():
            from tqdm import tqdm

            self.bar = tqdm(total=self.steps, initial=state.global_step, unit="step", file=sys.stderr)

    def on_log(self, args, state, control, logs=None, **kwargs):
        line = {key: logs[key] for key in self.kept if key in logs}
        if not line.keys() & {"loss", "eval_loss"}:
            return
        self.run.log({"step": state.global_step, **line})
        loss = line.get("loss", line.get("eval_loss"))
        name = "loss" if "loss" in line else "held-out loss"
        if self.bar is not None:
            self.bar.update(state.global_step - self.bar.n)
            self.bar.set_postfix_str(f"{name} {loss:.4f}")
        elif state.global_step % max(1, self.steps // 20) == 0:
            print(f"step {state.global_step}/{self.steps}  {name} {loss:.4f}", file=sys.stderr, flush=True)

    def on_train_end(self, args, state, control, **kwargs):
        if self.bar is not None:
            self.bar.close()


class Checkpoints(TrainerCallback):
    """Marks a checkpoint as whole, so that a run killed while writing one resumes from the one before."""

    def on_save(self, args, state, control, **kwargs):
        largest(0)  # each process has written its part
        if is_first():
            mark_complete(Path(args.output_dir) / f"checkpoint-{state.global_step}", state.global_step)


class StopOnSignal(TrainerCallback):
    """SIGTERM and SIGINT finish the step, save a checkpoint and end the loop; a second signal ends the process.

    What comes within AGAIN seconds is the same one: schedulers send it to every process, and launchers pass it on.
    """

    SIGNALS = (signal.SIGTERM, signal.SIGINT)
    AGAIN = 2.0

    def __init__(self):
        self.received = 0  # the signal, in every process once a step has ended
        self._since = 0.0
        self._before: dict = {}

    def __enter__(self) -> StopOnSignal:
        self._before = {number: signal.signal(number, self._receive) for number in self.SIGNALS}
        return self

    def __exit__(self, *exc) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number, frame) -> None:
        if self.received:
            if time.monotonic() - self._since > self.AGAIN:
                signal.signal(number, self._before[number])
                os.kill(os.getpid(), number)
            return
        self.received, self._since = number, time.monotonic()
        say("stopping after this step; the checkpoint will be resumable")

    def on_step_end(self, args, state, control, **kwargs):
        anywhere = largest(self.received)  # all leave after the same step
        if anywhere and not self.received:
            self.received, self._since = anywhere, time.monotonic()
        if self.received and state.global_step < state.max_steps:
            control.should_save = control.should_training_stop = True

    def on_epoch_end(self, args, state, control, **kwargs):
        """The loop ends its epoch where it stops; the resumed run measures at the real end."""
        if self.received and abs(state.epoch - round(state.epoch)) > EPOCH_END:
            control.should_evaluate = False


class OneModel(TrainerCallback):
    """Ends the run when the processes do not train one model: without DDP around it each would learn from its own rows."""

    def __init__(self):
        self.seen = False

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if self.seen or args.world_size == 1:
            return
        self.seen = True
        sums = [float(p.detach().double().sum()) for p in model.parameters() if p.requires_grad]
        if any(theirs != sums for theirs in gathered(sums)):
            raise Failure(INTERNAL, "processes-differ", "the processes have different weights after a step")


class FiniteLoss(TrainerCallback):
    """Ends the loop at the first loss, gradient or measure that is no number: every later step would only spread it.

    The checkpoints that may hold it go: those after the last step that was seen to be sound.
    """

    def __init__(self, run: RunDirectory, logged: Iterable[str] = ()):
        self.run, self.kept = run, kept_keys(logged)
        self.broken_at: int | None = None
        self.broken: list[str] = []  # keys of the log
        self.sound = 0

    @property
    def at_start(self) -> bool:
        """Whether it was so before anything was trained."""
        return self.broken_at == 0 or (self.broken_at == 1 and "loss" in self.broken)

    def on_train_begin(self, args, state, control, **kwargs):
        self.sound = state.global_step

    def on_log(self, args, state, control, logs=None, **kwargs):
        values = {key: logs[key] for key in self.kept if logs.get(key) is not None}
        broken = [key for key, value in values.items() if not math.isfinite(value)]
        if not broken:
            self.sound = state.global_step
        elif self.broken_at is None:
            self.broken_at, self.broken = state.global_step, broken
            if is_first():
                self.run.drop_checkpoints(min(self.sound, self.broken_at - 1))
            control.should_save = control.should_evaluate = False
            control.should_training_stop = True

    def on_epoch_end(self, args, state, control, **kwargs):
        if self.broken_at is not None:
            control.should_evaluate = False
