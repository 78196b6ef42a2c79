"""Start the processes of a run on this machine, pass signals on to them, and tell how the run ended."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from gemma_trainer.cli import STOPS, Outcome, log
from gemma_trainer.plan.plan import Plan
from gemma_trainer.plan.processes import Place, preset
from gemma_trainer.rows.problems import INTERNAL, OK, STOPPED, Failure, Problem
from gemma_trainer.train.ranks import stop_with_launcher
from gemma_trainer.train.run_dir import RunDirectory
from gemma_trainer.train.write_json import write_json

STDOUT = 1
ENDINGS = "GEMMA_TRAINER_ENDINGS"  # folder in which launched processes leave how they ended


def launch(script: Path, words: list[str], plan: Plan, run: RunDirectory) -> Outcome:
    """Run the script in `plan.processes` processes, and give the outcome of the first, or of the one that failed first.

    Raises KeyboardInterrupt when a signal came before training, Failure (exit 6, or 1 without a checkpoint) when a
    process was lost.
    """
    log(f"starting {plan.processes} processes ({plan.parallel})")
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, plan.hardware["cpu_cores"] // plan.processes)))
    os.environ["PET_SIGNALS_TO_HANDLE"] = "SIGHUP,SIGQUIT"  # torchrun would kill who is still saving
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    with tempfile.TemporaryDirectory() as endings, _signals_passed_on() as received:
        os.environ[ENDINGS] = endings
        failures = []
        try:
            _start(script, words, plan)
        except ChildFailedError as error:
            failures = list(error.failures.values())
        # Who loses a peer fails too, and the agent ends the rest by SIGTERM: neither is the cause.
        killed = [each for each in failures if each.exitcode < 0 and each.exitcode != -signal.SIGTERM]
        ending = None if killed else _first_ending(Path(endings))
    if ending is not None:
        if ending.exit_code not in (OK, STOPPED):  # the first process may have recorded that it lost this one
            run.reread()
            run.fail(Failure(ending.exit_code, ending.errors[0].code, ending.errors[0].message, ending.errors[0].fix))
        return ending
    if received:
        raise KeyboardInterrupt
    raise _lost((killed or failures or [None])[0], plan, run)


def _start(script: Path, words: list[str], plan: Plan) -> None:
    """Returns when all have ended. torchrun on a CPU, where `accelerate launch` starts one process, whatever it is asked."""
    if plan.device == "cpu":
        from torch.distributed.run import main

        main(["--standalone", f"--nproc-per-node={plan.processes}", "--max-restarts=0", str(script), *words])
        return
    from accelerate.commands.launch import launch_command, launch_command_parser

    config = ["--config_file", str(preset(plan.parallel)), "--num_processes", str(plan.processes)]
    launch_command(launch_command_parser().parse_args([*config, "--main_process_port", "0", str(script), *words]))


@contextlib.contextmanager
def _signals_passed_on() -> Iterator[list[int]]:
    """What asks to stop goes to the processes, which save and end together. Gives the signals that came."""
    import psutil

    received: list[int] = []

    def receive(number, frame):
        received.append(number)
        children = psutil.Process().children()
        if not children and len(received) == 1:  # later, they have ended, and their ending will be told
            raise KeyboardInterrupt
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.send_signal(number)

    before = {number: signal.signal(number, receive) for number in STOPS}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _lost(failed, plan: Plan, run: RunDirectory) -> Failure:
    """What is said of a process that ended without a word: killed, by hand or for its memory."""
    how = f"process {failed.local_rank} of {plan.processes} " if failed else "the first process "
    code = failed.exitcode if failed else 0
    how += f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
    checkpoint = run.newest_checkpoint()
    kept = f"{checkpoint} is the newest checkpoint" if checkpoint else "there is no checkpoint yet"
    failure = Failure(STOPPED if checkpoint else INTERNAL, "process-lost", f"{how}, so all were ended; {kept}")
    run.reread()
    run.fail(failure)
    if checkpoint:
        failure.result, failure.next = run.ended(), [plan.launch]
    return failure


def launched() -> bool:
    """Whether this is one of the processes that `launch` started."""
    return ENDINGS in os.environ


def told(place: Place, train: Callable[[], Outcome]) -> Outcome:
    """What a process of many does: train, and leave for the launcher, if it is ours, how that ended.

    Its stdout is closed: the launcher, or without it the first process, gives the result.
    """
    folder = os.environ.get(ENDINGS)
    if folder is None and place.rank == 0:
        return train()
    os.dup2(os.open(os.devnull, os.O_WRONLY), STDOUT)
    if folder is None:
        return train()
    stop_with_launcher()
    try:
        outcome = train()
    except Failure as failure:
        _write(Path(folder), place.local, _outcome(failure))
        raise
    if place.rank == 0:
        _write(Path(folder), 0, outcome)
    return outcome


def _outcome(failure: Failure) -> Outcome:
    errors = [failure.problem, *failure.details]
    return Outcome(failure.result, errors, next=failure.next, exit_code=failure.exit_code)


def _write(folder: Path, rank: int, outcome: Outcome) -> None:
    with contextlib.suppress(OSError):  # of a launcher that is gone
        write_json(folder / f"{rank}.json", asdict(outcome))


def _first_ending(folder: Path) -> Outcome | None:
    """How the first process ended that failed, or else the one that gives the result."""
    outcomes = [_read(file) for file in sorted(folder.glob("*.json"), key=lambda file: file.stat().st_mtime_ns)]
    return next((each for each in outcomes if each.exit_code), outcomes[-1] if outcomes else None)


def _read(file: Path) -> Outcome:
    values = json.loads(file.read_text("utf-8"))
    problems = {side: [Problem(**each) for each in values[side]] for side in ("errors", "warnings")}
    return Outcome(**{**values, **problems})
