"""A training run of any method, from arguments to a verified run directory."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from argparse import Namespace
from pathlib import Path

from gemma_trainer.cli import Outcome, command, log
from gemma_trainer.models.resolve import resolve_model
from gemma_trainer.plan.fit import misfit, require_fit
from gemma_trainer.plan.hardware import share_cores
from gemma_trainer.plan.packages import installed, missing_packages, versions
from gemma_trainer.rows.commands import changed, without
from gemma_trainer.rows.problems import INTERNAL, STOPPED, UNSUPPORTED, Failure, missing
from gemma_trainer.train.method import ASSETS, HELD_OUT, Method
from gemma_trainer.train.rows import masked_sample, write_rows
from gemma_trainer.train.run_dir import RunDirectory, step_of
from gemma_trainer.train.setup import Prepared, prepare
from gemma_trainer.train.sound import check_finite
from gemma_trainer.train.sources import check_apart

DISK_FULL = 2**20  # bytes left


def run_training(method: Method, args: Namespace, argv: list[str]) -> Outcome:
    """Plan, check, train, evaluate, save, reopen. Raises Failure with the exit codes of the contract."""
    prepared = prepare(args, method, command(ASSETS / method.script, *launch_words(argv)))
    run = RunDirectory(Path(args.output_dir or Path("runs") / default_name(prepared.plan.model, method)).expanduser())
    check_apart(run.path, args, prepared.plan)
    record = {
        "command": method.script,
        "arguments": {key: value for key, value in vars(args).items() if key not in ("json", "debug", "config")},
        "plan": prepared.plan.as_dict(),
        "versions": versions(),
    }
    if args.plan:
        # Other hardware has other disks, and the plan of a demo that learns from pairs is of its untrained model.
        refusal = None if args.emulate or args.demo else run.refusal(args.resume, args.overwrite, record)
        return planned(prepared, args.emulate, refusal)
    require_fit(prepared.fit)
    require_training_packages(prepared.plan.mode, args.report_to)
    checkpoint = run.open(args.resume, args.overwrite)
    run.start(record)
    log(prepared.plan.summary())
    log(masked_sample(prepared.train, colour=sys.stderr.isatty()))
    if prepared.held_out.sources:
        write_rows(prepared.held_out.sources, run.path / HELD_OUT)
    try:
        return train(method, prepared, args, run, checkpoint)
    except (Exception, KeyboardInterrupt) as error:
        failure = as_failure(error, run.path)
        run.fail(failure)
        if failure.exit_code == STOPPED:
            failure.result = run.ended()
            failure.next = failure.next or [command(ASSETS / method.script, *argv)]
        if failure is error:
            raise
        raise failure from error


def launch_words(argv: list[str]) -> list[str]:
    """The arguments of a plan without those that make it one."""
    return [word for word in without("--emulate", argv) if word not in ("--plan", "--json")]


def planned(prepared: Prepared, emulated: str | None, refusal: Failure | None) -> Outcome:
    """The plan, with the command that runs it; or exit 5 with plans that would fit; or the `refusal` of its directory."""
    plan, found = prepared.plan, prepared.fit
    outcome = Outcome({"plan": plan.as_dict()}, warnings=prepared.warnings, next=[plan.launch], summary=plan.summary())
    if not found.fits:
        again = ["--plan", *(["--emulate", emulated] if emulated else [])]
        changes = [way.change.split() for way in found.ways if way.change.startswith("--")]
        outcome.next = [shlex.join([*changed(plan.launch, change), *again]) for change in changes]
        outcome.errors, outcome.exit_code = [misfit(found)], UNSUPPORTED
    elif refusal:
        outcome.next, outcome.errors, outcome.exit_code = [], [refusal.problem], refusal.exit_code
    return outcome


def as_failure(error: BaseException, path: Path) -> Failure:
    """What ended a run in the middle, in plain words."""
    if isinstance(error, Failure):
        return error
    if isinstance(error, KeyboardInterrupt):
        return Failure(STOPPED, "interrupted", "stopped by a signal", fix="Run the same command again.")
    text = f"{type(error).__name__}: {error}".splitlines()[0][:300]
    # A full disk reaches us as OSError, or as whatever the writer of a checkpoint made of it.
    if shutil.disk_usage(path).free < DISK_FULL:
        return Failure(STOPPED, "disk-full", f"the disk of {path} is full ({text})")
    return Failure(INTERNAL, "internal", text)


def default_name(model: str, method: Method) -> str:
    return f"{Path(model).name.removesuffix('.gguf')}-{method.name}"


def require_training_packages(mode: str, report_to: str = "none") -> None:
    """Raises Failure (exit 4) before anything heavy is imported."""
    lacking = [] if report_to == "none" or installed(report_to) else [report_to]
    lacking += missing_packages("train") + (missing_packages("train in 4 bits") if mode == "qlora" else [])
    if lacking:
        raise missing(" ".join(lacking), "training")


def train(method: Method, prepared: Prepared, args: Namespace, run: RunDirectory, checkpoint: Path | None) -> Outcome:
    plan = prepared.plan
    if len(plan.hardware["gpus"]) > 1:
        os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    share_cores()
    log("loading the training libraries and the model")
    # Heavy imports: only from here on, when the plan stands and the data is good.
    if plan.backend == "unsloth":
        from gemma_trainer.train.engine_unsloth import import_first

        import_first()
    from gemma_trainer.models.load import load_tokenizer_files, quiet_libraries

    quiet_libraries()  # before bitsandbytes is imported, which speaks while it is
    from gemma_trainer.train.guards import Checkpoints, FiniteLoss, Recorder, StopOnSignal

    source = resolve_model(plan.model)
    finite, signals = FiniteLoss(run, method.logged), StopOnSignal()
    callbacks = [Recorder(run, plan.steps, method.logged), Checkpoints(), finite, signals]
    model = method.load_model(plan, source, args.trust_remote_code)
    tokenizer = load_tokenizer_files(resolve_model(prepared.files), prepared.plain_template)
    trainer = method.build_trainer(model, tokenizer, prepared, run.checkpoints, args.report_to, callbacks)
    run.rewind_metrics(step_of(checkpoint) if checkpoint else -1)
    run.drop_incomplete_checkpoints()
    before = run.metrics_so_far.get("before") if checkpoint else None
    if before is None:
        before = method.measure(trainer)
        check_finite(finite, trainer.model, plan, run)
        run.update(metrics={"before": before})
    if checkpoint:
        log(f"resuming from {checkpoint}")
    started = time.monotonic()
    with signals:
        run_loop(trainer, checkpoint, plan.steps)
    seconds = time.monotonic() - started
    check_finite(finite, trainer.model, plan, run)
    _check_finished(trainer, plan.steps, signals)
    after = method.measured(run.metrics()[-1], plan.steps) or method.measure(trainer)
    check_finite(finite, trainer.model, plan, run)
    metrics = {"before": before, "after": after, "train_loss": run.last_loss(), "seconds": round(seconds, 1)}
    return _finish(method, prepared, run, trainer.model, tokenizer, metrics)


def run_loop(trainer, checkpoint: Path | None, steps: int) -> None:
    """Train from the checkpoint on. One of the last step is only loaded: the trainer would make one more step of it."""
    if checkpoint is None or step_of(checkpoint) < steps:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        return
    trainer._load_from_checkpoint(str(checkpoint))
    trainer.state.global_step = step_of(checkpoint)


def _check_finished(trainer, steps: int, signals) -> None:
    """Raises Failure when the loop ended before its last step."""
    done = trainer.state.global_step
    if done < steps:
        reason = f"signal {signals.received}" if signals.received is not None else "the trainer"
        raise Failure(STOPPED, "stopped", f"{reason} stopped the run after step {done} of {steps}; it is saved")


def _finish(method: Method, prepared: Prepared, run: RunDirectory, model, tokenizer, metrics: dict) -> Outcome:
    """Save, reopen, compare, describe. The run is done only after all of that."""
    from gemma_trainer.train.card import write_card
    from gemma_trainer.train.chart import draw_curves

    plan = prepared.plan
    method.save(model, tokenizer, prepared, run.path)
    metrics["reopened"] = method.verify(model, prepared, run.path)
    lines = run.metrics()
    title = f"{run.path.name}: {plan.family} {plan.method}, {plan.mode}"
    draw_curves(lines, run.path / "loss.png", title, method.panels)
    run.update(status="done", metrics=metrics, finished=time.strftime("%Y-%m-%dT%H:%M:%S%z"))
    write_card(run.path / "README.md", run.record, method.loading_code(plan), method.labels)
    return Outcome(
        result={"run": str(run.path), "status": "done", "metrics": metrics, "plan": plan.as_dict()},
        warnings=[*prepared.warnings, *method.findings(plan, lines)],
        next=method.next_commands(run.path, plan),
        summary=f"{run.path}: done in {metrics['seconds']:.0f} s, {method.summary(metrics)}",
    )
