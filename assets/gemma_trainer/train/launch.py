"""Start the processes of a run on this machine, pass signals on to them, and tell how the run ended."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gemma_trainer.cli import STOPS, Outcome, log
from gemma_trainer.plan.plan import Plan
from gemma_trainer.plan.processes import preset
from gemma_trainer.rows.problems import INTERNAL, STOPPED, Failure
from gemma_trainer.train.run_dir import RunDirectory
from gemma_trainer.train.voice import ENDINGS, LAUNCHER, first_ending


def launch(script: Path, words: list[str], plan: Plan, run: RunDirectory) -> Outcome:
    """Run the script in `plan.processes` processes, and give the outcome of the first.

    Raises the Failure of the process that failed first, or (exit 6, or 1 without a checkpoint) of one that was lost;
    KeyboardInterrupt when a signal came before they could say so.
    """
    log(f"starting {plan.processes} processes ({plan.parallel})")
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, plan.hardware["cpu_cores"] // plan.processes)))
    os.environ["PET_SIGNALS_TO_HANDLE"] = "SIGHUP,SIGQUIT"  # torchrun would kill who is still saving
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    with tempfile.TemporaryDirectory() as endings, _signals_passed_on() as received:
        os.environ |= {ENDINGS: endings, LAUNCHER: str(os.getpid())}
        failures = []
        try:
            _start(script, words, plan)
        except ChildFailedError as error:
            failures = list(error.failures.values())
        # Who loses a peer fails too, and what asks to stop ends a process that has just begun: neither is the cause.
        killed = [each for each in failures if each.exitcode < 0 and -each.exitcode not in STOPS]
        ending = None if killed else first_ending(Path(endings))
    if ending is None and received:
        raise KeyboardInterrupt
    if ending is None:
        raise _lost((killed or failures or [None])[0], plan, run)
    if ending.exit_code:
        raise _failure(ending)
    return ending


def _failure(ending: Outcome) -> Failure:
    problem, *details = ending.errors
    failure = Failure(ending.exit_code, problem.code, problem.message)
    failure.problem, failure.details, failure.result, failure.next = problem, details, ending.result, ending.next
    return failure


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
    return Failure(STOPPED if checkpoint else INTERNAL, "process-lost", f"{how}, so all were ended; {kept}")
