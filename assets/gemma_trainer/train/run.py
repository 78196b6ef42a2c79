"""A training run of any method, from arguments to a verified run directory."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

from gemma_trainer.cli import Outcome, command, signals
from gemma_trainer.models.fingerprint import fingerprint
from gemma_trainer.models.resolve import resolve_model
from gemma_trainer.plan.answer import plans
from gemma_trainer.plan.fit import misfit, require_fit
from gemma_trainer.plan.hardware import share_cores
from gemma_trainer.plan.packages import installed, missing_packages, refused_versions, versions
from gemma_trainer.plan.processes import find_place, is_first
from gemma_trainer.rows.commands import without
from gemma_trainer.rows.config_file import written_out
from gemma_trainer.rows.problems import (
    INTERNAL,
    STOPPED,
    UNSUPPORTED,
    Failure,
    is_disk_full,
    is_out_of_memory,
    missing,
)
from gemma_trainer.train.checkpoints import step_of
from gemma_trainer.train.launch import launch
from gemma_trainer.train.method import ASSETS, HELD_OUT, Method
from gemma_trainer.train.prepared import Prepared
from gemma_trainer.train.ranks import from_first, join, leave, say, show_one_gpu
from gemma_trainer.train.recover import Recovery, halved, out_of_memory, recovered, shrunk
from gemma_trainer.train.rows import masked_sample, write_rows
from gemma_trainer.train.run_dir import RunDirectory
from gemma_trainer.train.setup import prepare
from gemma_trainer.train.sound import check_bounded, check_finite, check_room
from gemma_trainer.train.sources import check_apart
from gemma_trainer.train.voice import launched

DISK_FULL = 2**20  # bytes left
PEER_LOST = ("onnection closed by peer", "onnection reset by peer", "remote process exited")  # words of gloo and NCCL


def run_training(method: Method, args: Namespace, argv: list[str]) -> Outcome:
    """Plan, check, train, evaluate, save, reopen; in several processes where the plan wants them. Raises Failure with the
    exit codes of the contract."""
    try:
        return _run(method, args, argv)
    finally:
        leave()


def _run(method: Method, args: Namespace, argv: list[str]) -> Outcome:
    prepared = prepare(args, method, command(ASSETS / method.script, *launch_words(args, argv)))
    plan = prepared.plan
    run = RunDirectory(Path(args.output_dir or Path("runs") / default_name(plan.model, method)).expanduser())
    check_apart(run.path, args, plan)
    args.overwrite = args.overwrite and not launched()  # who launched it has begun it anew
    if not args.overwrite:  # what a run begins anew was not too large yet
        prepared = shrunk(prepared, run.fitting("training"))
        plan = prepared.plan
    record = {
        "command": method.script,
        "arguments": {key: value for key, value in vars(args).items() if key not in ("json", "debug", "config")},
        "plan": plan.as_dict(),
        "versions": versions(),
        "base": fingerprint(plan.model),
    }
    if args.plan:
        # Other hardware has other disks, and the plan of a demo that learns from pairs is of its untrained model.
        refusal = None if args.emulate or args.demo else run.refusal(args.resume, args.overwrite, record)
        return planned(prepared, args.emulate, refusal)
    require_fit(prepared.fit)
    require_training_packages(plan.mode, args.report_to)
    try:
        if plan.processes > 1 and find_place() is None:
            return _launched(method, prepared, args, argv, run, record)
        join(plan)
        checkpoint = from_first(lambda: _begin(run, args, record))
        say(plan.summary())
        say(masked_sample(prepared.train, colour=sys.stderr.isatty()))
        if prepared.held_out.sources and is_first():
            write_rows(prepared.held_out.sources, run.path / HELD_OUT)
        return train(method, prepared, args, run, checkpoint)
    except (Exception, KeyboardInterrupt) as error:
        failure = _ending(error, prepared, run)
        if is_first() and run.record:  # it is ours
            _leave(run, failure)
        if is_first() and failure.exit_code == STOPPED:
            failure.result = run.ended()
            words = going_on(args, argv) if run.record else argv
            failure.next = failure.next or [command(ASSETS / method.script, *words)]
        if failure is error:
            raise
        raise failure from error


def _ending(error: BaseException, prepared: Prepared, run: RunDirectory) -> Failure:
    if run.record and not run.run_file.is_file():
        text = f"{run.path}, or run.json in it, was deleted while the run wrote to it; nothing more was saved"
        return Failure(
            INTERNAL, "io-failed", text, fix="Run the same command again; without the directory it begins anew."
        )
    return out_of_memory(error, prepared, run) if is_out_of_memory(error) else as_failure(error, run.path)


def _leave(run: RunDirectory, failure: Failure) -> None:
    """Say in run.json how the run ended. Where a disk is full, half a checkpoint may be what fills it."""
    if not run.run_file.is_file():  # somebody removed it
        return
    with contextlib.suppress(OSError):
        run.drop_incomplete_checkpoints()
    run.reread()
    run.fail(failure)


def _begin(run: RunDirectory, args: Namespace, record: dict) -> Path | None:
    """Claim the run directory and write run.json; the checkpoint to go on from, None for a fresh start."""
    checkpoint = run.open(args.resume, args.overwrite)
    run.start(record, checkpoint)
    return checkpoint


def _launched(method: Method, prepared: Prepared, args: Namespace, argv: list[str], run: RunDirectory, record: dict):
    """The outcome of the processes that train, started once everything is known to be in order."""
    _begin(run, args, record)
    run.release()
    words = [*argv, *(["--resume", "auto"] if args.resume == "never" else [])]  # the directory is begun now
    while True:
        try:
            return launch(ASSETS / method.script, words, prepared.plan, run)
        except Failure as failure:
            smaller = args.auto_recover and prepared.plan.micro_batch_size > 1
            if not smaller or failure.problem.code != "out-of-memory":
                raise
        prepared = _shrunk_after(prepared, run)


def _shrunk_after(prepared: Prepared, run: RunDirectory) -> Prepared:
    """With half the rows a pass, from the newest checkpoint on: the process that ran out of memory left the others in the
    middle of a step."""
    plan = prepared.plan
    share = plan.micro_batch_size * plan.accumulation_steps
    micro, checkpoint = halved(plan.micro_batch_size, share), run.newest_checkpoint()
    step = step_of(checkpoint) if checkpoint else 0
    say(f"memory ran out with {plan.micro_batch_size} rows a pass; going on after step {step} with {micro}")
    run.reread()
    run.shrunk("training", step, plan.micro_batch_size, micro)
    return shrunk(prepared, micro)


def launch_words(args: Namespace, argv: list[str]) -> list[str]:
    """The arguments of a plan without those that make it one, wherever they are given."""
    argv = written_out(argv, args.config, "plan", "emulate")
    return [word for word in without("--emulate", argv) if word not in ("--plan", "--json")]


def going_on(args: Namespace, argv: list[str]) -> list[str]:
    """The arguments by which a run goes on that these have begun: with --overwrite it would begin anew, with --resume never
    it would be refused."""
    argv = written_out(argv, args.config, "overwrite", "resume")
    words = [word for word in argv if word != "--overwrite"]
    return without("--resume", words) if args.resume == "never" else words


def planned(prepared: Prepared, emulated: str | None, refusal: Failure | None) -> Outcome:
    """The plan, with the command that runs it; or exit 5 with plans that would fit; or the `refusal` of its directory."""
    plan, found = prepared.plan, prepared.fit
    outcome = Outcome(
        {"plan": plan.as_dict()},
        warnings=prepared.warnings,
        next=[plan.on_each_node or plan.launch],
        summary=plan.summary(),
    )
    if not found.fits:
        outcome.next = plans(found, plan.launch, emulated)
        outcome.errors, outcome.exit_code = [misfit(found)], UNSUPPORTED
    elif refusal:
        outcome.next, outcome.errors, outcome.exit_code = [], [refusal.problem], refusal.exit_code
    return outcome


def as_failure(error: BaseException, path: Path) -> Failure:
    """What ended a run in the middle, in plain words."""
    if isinstance(error, Failure):
        return error
    if signals.interrupted or isinstance(error, KeyboardInterrupt):  # C extensions make another error of it
        return Failure(STOPPED, "interrupted", "stopped by a signal", fix="Run the same command again.")
    text = f"{type(error).__name__}: {error}".splitlines()[0][:300]
    if find_place() and any(sign in text for sign in PEER_LOST):
        fix = "Run the same command again; the message of the process that ended first tells why it did."
        code = STOPPED if RunDirectory(path).newest_checkpoint() else INTERNAL
        return Failure(code, "process-lost", "another process of the run ended", fix=fix)
    if is_disk_full(error) or (path.is_dir() and shutil.disk_usage(path).free < DISK_FULL):
        return Failure(STOPPED, "disk-full", f"the disk of {path} is full ({text})")
    return Failure(INTERNAL, "internal", text)


def default_name(model: str, method: Method) -> str:
    return f"{Path(model).name.removesuffix('.gguf')}-{method.name}"


def require_training_packages(mode: str, report_to: str = "none") -> None:
    """Raises Failure (exit 4) before anything heavy is imported, also for versions that would train something wrong."""
    lacking = [] if report_to == "none" or installed(report_to) else [report_to]
    lacking += missing_packages("train") + (missing_packages("train in 4 bits") if mode == "qlora" else [])
    lacking += [] if lacking else refused_versions()
    if lacking:
        raise missing(" ".join(lacking), "training")


def train(method: Method, prepared: Prepared, args: Namespace, run: RunDirectory, checkpoint: Path | None) -> Outcome:
    plan = prepared.plan
    show_one_gpu(plan)
    share_cores()
    say("loading the training libraries and the model")
    # Heavy imports: only from here on, when the plan stands and the data is good.
    if plan.backend == "unsloth":
        from gemma_trainer.train.engine_unsloth import import_first

        import_first()
    from gemma_trainer.models.load import load_tokenizer_files, quiet_libraries

    quiet_libraries()  # before bitsandbytes is imported, which speaks while it is
    from gemma_trainer.train.guards import (
        BoundedLoss,
        Checkpoints,
        DiskRoom,
        EveryLayerLearns,
        FiniteLoss,
        OneModel,
        Recorder,
        StopOnSignal,
    )
    from gemma_trainer.train.sharded import whole_weights

    source = resolve_model(plan.model)
    finite, bounded, room, signals = FiniteLoss(run, method.logged), BoundedLoss(run), DiskRoom(run), StopOnSignal()
    callbacks = [*([Recorder(run, plan.steps, method.logged)] if is_first() else [])]
    callbacks += [
        Checkpoints(run),
        EveryLayerLearns(),
        *([OneModel()] if plan.parallel == "ddp" else []),
        finite,
        bounded,
    ]
    callbacks += [signals, room]
    model = method.load_model(plan, source, args.trust_remote_code)
    tokenizer = load_tokenizer_files(resolve_model(prepared.files), prepared.plain_template)
    trainer = method.build_trainer(model, tokenizer, prepared, run.checkpoints, args.report_to, callbacks)
    recovery = Recovery(trainer, plan, run) if args.auto_recover and plan.processes == 1 else None
    before = from_first(lambda: _rewound(run, checkpoint, trainer.args.logging_steps))
    if before is None and plan.parallel == "fsdp":
        before = dict.fromkeys(method.measures)  # it is split when training begins, and no process holds all of it
    elif before is None:
        before = method.measure(trainer)
    broken = _failure(lambda: check_finite(finite, trainer, prepared.train, plan, run))
    if is_first() and broken is None:
        run.update(metrics={"before": before})
    if checkpoint:
        say(f"resuming from {checkpoint}")
    started = time.monotonic()
    if broken is None:
        with signals:
            recovery.run_loop(run_loop, checkpoint) if recovery else run_loop(trainer, checkpoint, plan.steps)
    seconds = time.monotonic() - started
    early = broken or _failure(lambda: _check_finished(trainer, prepared, (finite, bounded, room), signals, run))
    after = weights = None
    if early is None:
        after = from_first(lambda: method.measured((run.metrics() or [{}])[-1], plan.steps)) or method.measure(trainer)
        early = _failure(lambda: check_finite(finite, trainer, prepared.train, plan, run))
    if early is None and plan.parallel == "fsdp":
        weights = whole_weights(trainer)
    if not is_first():
        return Outcome()  # the first process speaks for all
    if early:
        raise early
    metrics = {"before": before, "after": after, "train_loss": run.last_loss(), "seconds": round(seconds, 1)}
    return _finish(method, prepared, run, trainer.model, tokenizer, metrics, weights)


def run_loop(trainer, checkpoint: Path | None, steps: int) -> None:
    """Train from the checkpoint on. One of the last step is only loaded: the trainer would make one more step of it."""
    if checkpoint is None or step_of(checkpoint) < steps:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        return
    trainer._load_from_checkpoint(str(checkpoint))
    trainer.state.global_step = step_of(checkpoint)


def _rewound(run: RunDirectory, checkpoint: Path | None, every: int) -> dict | None:
    """Without what came after the checkpoint; what was measured before training, None where it is still to do."""
    run.rewind_metrics(step_of(checkpoint) if checkpoint else -1, every)
    run.drop_incomplete_checkpoints()
    for warning in run.warnings:
        say(f"warning: {warning}")
    return run.metrics_so_far.get("before") if checkpoint else None


def _failure(check: Callable[[], None]) -> Failure | None:
    """What a check raises. All processes find the same, and the first raises it when the others have left."""
    try:
        check()
    except Failure as failure:
        return failure
    return None


def _check_finished(trainer, prepared: Prepared, watches: tuple, signals, run: RunDirectory) -> None:
    """Raises Failure when the loop ended before its last step, or with it and without a checkpoint."""
    plan, (finite, bounded, room) = prepared.plan, watches
    check_finite(finite, trainer, prepared.train, plan, run)
    check_bounded(bounded, trainer, prepared.train, plan, run)
    check_room(room, run)
    done, steps = trainer.state.global_step, plan.steps
    if done < steps:
        reason = f"signal {signals.received}" if signals.received else "the trainer"
        raise Failure(STOPPED, "stopped", f"{reason} stopped the run after step {done} of {steps}; it is saved")


def _finish(
    method: Method, prepared: Prepared, run: RunDirectory, model, tokenizer, metrics: dict, weights: dict | None
) -> Outcome:
    """Save, reopen, compare, describe. The run is done only after all of that. `weights` are given of a split model."""
    from gemma_trainer.train.card import write_card
    from gemma_trainer.train.chart import draw_curves

    plan = prepared.plan
    method.save(model, tokenizer, prepared, run.path, weights)
    metrics["reopened"] = method.verify(model, prepared, run.path, weights)
    lines = run.metrics()
    title = f"{run.path.name}: {plan.family} {plan.method}, {plan.mode}"
    draw_curves(lines, run.path / "loss.png", title, method.panels)
    write_card(run.path / "README.md", {**run.record, "metrics": metrics}, method.loading_code(plan), method.labels)
    run.update(status="done", metrics=metrics, finished=time.strftime("%Y-%m-%dT%H:%M:%S%z"))
    return Outcome(
        result={"run": str(run.path), "status": "done", "metrics": metrics, "plan": plan.as_dict()},
        warnings=[*prepared.warnings, *run.warnings, *recovered(run), *method.findings(plan, lines)],
        next=method.next_commands(run.path, plan),
        summary=f"{run.path}: done in {metrics['seconds']:.0f} s, {method.summary(metrics)}",
    )
