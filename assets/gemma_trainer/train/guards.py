"""What watches a running loop: records each step, marks whole checkpoints, stops on signals, on a broken loss and before a
disk is full."""

from __future__ import annotations

import math
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable
from statistics import median

from transformers import TrainerCallback

from gemma_trainer.cli import STOPS
from gemma_trainer.plan.processes import is_first
from gemma_trainer.rows.problems import INTERNAL, Failure
from gemma_trainer.train.checkpoints import size_of, step_of
from gemma_trainer.train.ranks import gathered, largest, say
from gemma_trainer.train.run_dir import RunDirectory
from gemma_trainer.train.voice import STOPPING

EPOCH_END = 1e-6  # share of an epoch
FIRST, LAST = 5, 10  # logged losses: of the beginning, and of now
EXPLODED = 2  # times the loss of the beginning
LEAST = 1.0  # a loss under this one has not exploded
SPARE = 64 * 2**20  # bytes that a checkpoint takes beside weights and optimizer, tokenizer first of all
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
        if sys.stderr.isatty() and self.bar is None:
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

    def __init__(self, run: RunDirectory):
        self.run = run

    def on_save(self, args, state, control, **kwargs):
        largest(0)  # each process has written its part
        if is_first():
            self.run.mark_complete(state.global_step)


class StopOnSignal(TrainerCallback):
    """SIGTERM, SIGINT and SIGUSR1 finish the step, save a checkpoint and end the loop; a second signal ends the process.

    What comes within AGAIN seconds is the same one: schedulers send it to every process, and launchers pass it on.
    """

    AGAIN = 2.0

    def __init__(self):
        self.received = 0  # the signal, in every process once a step has ended
        self._since = 0.0
        self._before: dict = {}

    def __enter__(self) -> StopOnSignal:
        self._before = {number: signal.signal(number, self._receive) for number in STOPS}
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
        STOPPING.set()
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


class EveryLayerLearns(TrainerCallback):
    """Ends the run when the first step gives a LoRA layer no gradient: it would stay as new, and the others would hide it."""

    seen = False

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        if self.seen:
            return
        self.seen = True
        trained = ((name, p) for name, p in model.named_parameters() if p.requires_grad and "lora_" in name)
        cut = [name for name, p in trained if p.grad is None]
        if cut:
            text = f"{len(cut)} LoRA layers get no gradient (first: {cut[0]})"
            raise Failure(INTERNAL, "adapter-untrained", text)


class LossWatch(TrainerCallback):
    """Ends the loop once its loss is of no use. The checkpoints that may hold what broke it go: those after the last step
    that was seen to be sound."""

    def __init__(self, run: RunDirectory, logged: Iterable[str] = ()):
        self.run, self.kept = run, kept_keys(logged)
        self.broken_at: int | None = None
        self.sound = 0

    def on_train_begin(self, args, state, control, **kwargs):
        self.sound = state.global_step

    def stop(self, state, control) -> None:
        self.broken_at = state.global_step
        if is_first():
            self.run.drop_checkpoints(min(self.sound, self.broken_at - 1))
        control.should_save = control.should_evaluate = False
        control.should_training_stop = True

    def on_epoch_end(self, args, state, control, **kwargs):
        if self.broken_at is not None:
            control.should_evaluate = False


class FiniteLoss(LossWatch):
    """At the first loss, gradient or measure that is no number: every later step would only spread it."""

    broken: tuple[str, ...] = ()  # keys of the log

    @property
    def at_start(self) -> bool:
        """Whether it was so before anything was trained."""
        return self.broken_at == 0 or (self.broken_at == 1 and "loss" in self.broken)

    def on_log(self, args, state, control, logs=None, **kwargs):
        if self.broken_at is not None:
            return
        values = {key: logs[key] for key in self.kept if logs.get(key) is not None}
        broken = tuple(key for key, value in values.items() if not math.isfinite(value))
        if broken:
            self.broken = broken
            self.stop(state, control)
        else:
            self.sound = state.global_step


class BoundedLoss(LossWatch):
    """When the loss has exploded: each of the LAST logged losses is over all of the FIRST, over EXPLODED times their
    median and over LEAST. Noise lifts single losses, not ten in a row; what forgets stays under where it began."""

    def __init__(self, run: RunDirectory):
        super().__init__(run)
        self.losses: list[tuple[int, float]] = []  # (step, loss) since the run began

    @property
    def medians(self) -> tuple[float, float]:
        """Of the first and of the last losses."""
        losses = [loss for _, loss in self.losses]
        return median(losses[:FIRST]), median(losses[-LAST:])

    def on_train_begin(self, args, state, control, **kwargs):
        super().on_train_begin(args, state, control)
        self.losses = [(line["step"], line["loss"]) for line in self.run.metrics() if "loss" in line]

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" not in logs or self.broken_at is not None:
            return
        self.losses.append((state.global_step, logs["loss"]))
        if len(self.losses) < FIRST + LAST:
            return
        first, last = ([loss for _, loss in part] for part in (self.losses[:FIRST], self.losses[-LAST:]))
        self.sound = self.losses[-LAST - 1][0]
        if min(last) > max(EXPLODED * median(first), *first, LEAST):
            self.stop(state, control)


class DiskRoom(TrainerCallback):
    """Ends the loop before a checkpoint that the disk cannot take. Add it last: others ask for checkpoints."""

    def __init__(self, run: RunDirectory):
        self.run = run
        self.lacking: tuple[int, int] | None = None  # bytes that it takes, and those that are free

    def on_step_end(self, args, state, control, model=None, optimizer=None, **kwargs):
        if not control.should_save:
            return
        if is_first():
            self.lacking = self._lacking(model, optimizer)
        if largest(int(self.lacking is not None)):
            self.lacking = self.lacking or (0, 0)  # the first process knows
            control.should_save = control.should_evaluate = False
            control.should_training_stop = True

    def _lacking(self, model, optimizer) -> tuple[int, int] | None:
        newest = self.run.newest_checkpoint()
        size = size_of(newest) if newest else _checkpoint_size(model, optimizer)
        if self._free() < size + SPARE and newest:
            self.run.drop_checkpoints(before=step_of(newest))
        free = self._free()
        return None if free >= size + SPARE else (size + SPARE, free)

    def _free(self) -> int:
        return shutil.disk_usage(self.run.path).free

    def on_epoch_end(self, args, state, control, **kwargs):
        if self.lacking:
            control.should_evaluate = False


def _checkpoint_size(model, optimizer) -> int:
    """Bytes of what is trained, of a whole model where all of it is, and of the optimizer's state."""
    weights = [p for p in model.parameters() if p.requires_grad or not hasattr(model, "peft_config")]
    states = [value for state in optimizer.state.values() for value in state.values() if hasattr(value, "numel")]
    return sum(tensor.numel() * tensor.element_size() for tensor in [*weights, *states])
