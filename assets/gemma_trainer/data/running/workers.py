"""One function over many tasks in several processes, results in the order of the tasks."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from gemma_trainer.rows.problems import INTERNAL, Failure

_STOPS = (signal.SIGINT, signal.SIGTERM)
_AHEAD = 2  # tasks a worker that wait or run at a time: memory stays flat


def usable_cores() -> int:
    """Cores that this process may use: in a container fewer than the machine has."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def can_fork() -> bool:
    """Workers share what is loaded; where that is not possible, one process does the work."""
    return hasattr(os, "fork")


def in_processes(work: Callable, tasks: Iterable[tuple], workers: int) -> Iterator[tuple[tuple, object]]:
    """(task, work(*task)) in order. Workers are forked and share what is loaded. Raises Failure when one dies."""
    import multiprocessing  # slow to import, and most runs need one process
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    global _work
    _work = work
    gc.freeze()  # a collection in a worker would copy every page that it shares with its parent
    waiting: deque = deque()
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("fork"), _begin, (os.getpid(),))
    try:
        for task in tasks:
            with _undisturbed():  # it may start processes
                future = pool.submit(_run, task)
            waiting.append((task, future))
            if len(waiting) >= _AHEAD * workers:
                done, future = waiting.popleft()
                yield done, future.result()
        while waiting:
            done, future = waiting.popleft()
            yield done, future.result()
    except BrokenProcessPool:
        text = "a worker process was killed, by the system for its memory perhaps"
        raise Failure(INTERNAL, "worker-died", text, fix="Run it again with fewer --workers.") from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


_work: Callable | None = None  # what forked workers do


def _run(task: tuple) -> object:
    return _work(*task)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Ctrl-C waits until the end: the interpreter swallows it where it hits a fork, and a pool half started cannot end."""
    if threading.current_thread() is not threading.main_thread():  # signals are none of its business
        yield
        return
    caught: list[int] = []
    before = {number: signal.signal(number, lambda got, _: caught.append(got)) for number in _STOPS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if caught:
        signal.raise_signal(caught[0])


def _begin(parent: int) -> None:
    """A worker leaves Ctrl-C to its parent and ends when that is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
