"""What the processes of a run do together. Without a launcher there is one, and nothing here costs anything."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from typing import TypeVar

from gemma_trainer.cli import log
from gemma_trainer.plan.plan import Plan
from gemma_trainer.plan.processes import Place, find_place, is_first
from gemma_trainer.rows.problems import USAGE, Failure, Problem

# All processes must have resolved these parts of the plan alike, each from the files that it sees.
SHARED = ("model", "mode", "dtype", "template_hash", "effective_batch_size", "micro_batch_size", "steps", "parallel")

HERE = "gemma-trainer/"  # key of a process, with its rank

T = TypeVar("T")


def say(text: str) -> None:
    """To people, once."""
    if is_first():
        log(text)


def show_one_gpu(plan: Plan) -> None:
    """Hide the GPUs of other processes, before torch looks for them: the first that is left is this one's."""
    count = len(plan.hardware["gpus"])
    if count > 1:
        shown = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(count)))).split(",")
        place = find_place()
        os.environ["CUDA_VISIBLE_DEVICES"] = shown[place.local % len(shown) if place else 0]


def join(plan: Plan) -> None:
    """Meet the other processes. Raises Failure (exit 2) in all of them where one has another plan or other data, or where
    they do not make the batch that is asked for; and what one has ended with before it came."""
    place = find_place()
    if place is None:
        return
    show_one_gpu(plan)
    _wait_for_all(place)
    from accelerate import PartialState

    state = PartialState(cpu=plan.device == "cpu")
    mine = {name: getattr(plan, name) for name in SHARED} | {"data": plan.data["data_hash"]}
    theirs = gathered(mine)
    other = next((rank for rank, each in enumerate(theirs) if each != mine), None)
    if other is not None:
        names = ", ".join(name for name in mine if theirs[other][name] != mine[name])
        text = f"processes {place.rank} and {other} differ in {names}"
    elif (state.num_processes, len(theirs)) != (plan.processes, plan.processes):
        text = f"{plan.processes} processes are planned, {state.num_processes} are here"
    elif plan.micro_batch_size * plan.accumulation_steps * state.num_processes != plan.effective_batch_size:
        text = f"{state.num_processes} processes do not make a batch of {plan.effective_batch_size} rows"
    else:
        return
    raise Failure(USAGE, "processes-differ", text)


def _wait_for_all(place: Place) -> None:
    """PyTorch would wait for them too, deaf to signals and to what they have to tell."""
    store = _agents_store()
    if store is None:
        return
    store.set(f"{HERE}{place.rank}", "{}")
    for rank in range(place.world):
        while not store.check([f"{HERE}{rank}"]):
            time.sleep(0.05)
        ended = json.loads(store.get(f"{HERE}{rank}"))
        if ended:
            raise Failure(**ended)


def tell_others(exit_code: int, problem: Problem) -> None:
    """What ended this process before it met the others: they end with it."""
    with contextlib.suppress(RuntimeError):  # the agent is gone, and nobody listens
        store = _agents_store()
        if store is not None:
            store.set(f"{HERE}{os.environ['RANK']}", json.dumps({"exit_code": exit_code, **asdict(problem)}))


def _agents_store():
    """Keys and values that all processes see, as torchrun and accelerate keep them; None without these."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    from torch.distributed import TCPStore

    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return TCPStore(*place, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=30))


def gathered(value: object) -> list:
    """The value of each process, by rank."""
    if find_place() is None:
        return [value]
    from torch import distributed

    values = [None] * distributed.get_world_size()
    distributed.all_gather_object(values, value)
    return values


def from_first(compute: Callable[[], T]) -> T:
    """What the first process computes, in all of them; they raise the Failure that it raises."""
    if find_place() is None:
        return compute()
    from torch import distributed

    box: list = [None, None]
    if is_first():
        try:
            box[0] = compute()
        except Failure as failure:
            box[1] = failure
    distributed.broadcast_object_list(box, src=0)
    if box[1] is not None:
        raise box[1]
    return box[0]


def largest(number: int) -> int:
    """The largest among all processes; they wait for each other."""
    if find_place() is None:
        return number
    import torch
    from accelerate import PartialState
    from torch import distributed

    value = torch.tensor(number, device=PartialState().device)
    distributed.all_reduce(value, op=distributed.ReduceOp.MAX)
    return int(value)


def leave() -> None:
    """End the connection to the others. gloo's threads abort an interpreter that ends before them, by chance."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_initialized() and distributed.get_backend() == "gloo":
        distributed.destroy_process_group()
