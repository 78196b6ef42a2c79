"""In how many processes a run trains, and how they are started. One process has one GPU; on a CPU they share it."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from gemma_trainer.plan.hardware import Hardware
from gemma_trainer.rows.problems import UNSUPPORTED, USAGE, Failure

PRESETS = Path(__file__).parents[2] / "configs" / "accelerate"
PORT = 29500
# With what holds where they are not set.
PLACES = {"RANK": "", "WORLD_SIZE": "", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}


@dataclass(frozen=True)
class Place:
    """Of this process among all of a run: `rank` of `world`, and `local` on its node, which runs `beside` of them."""

    rank: int
    world: int
    local: int
    beside: int
    sharded: bool  # the launcher set up FSDP or ZeRO-3


def find_place() -> Place | None:
    """As torchrun, accelerate and Kubernetes' PyTorchJob tell it in the environment; None for a run in one process. Raises
    Failure (exit 2) for numbers that cannot be."""
    known = os.environ
    world = known.get("WORLD_SIZE", "")
    if not world.isdecimal() or int(world) < 2 or "RANK" not in known or "MASTER_ADDR" not in known:
        return None
    numbers = {name: known.get(name, default) for name, default in PLACES.items()}
    rank, world, local, beside = (int(each) if each.isdecimal() else -1 for each in numbers.values())
    if not (0 <= rank < world and local >= 0 and beside > 0):
        told = ", ".join(f"{name} is {text!r}" for name, text in numbers.items())
        text = f"the environment does not tell which process this is: {told}"
        raise Failure(USAGE, "usage", text, fix="Launch with torchrun or accelerate, or unset WORLD_SIZE.")
    sharded = "true" in (known.get("ACCELERATE_USE_FSDP"), known.get("ACCELERATE_USE_DEEPSPEED"))
    return Place(rank, world, local, beside, sharded)


def is_first() -> bool:
    """Whether this process writes the run directory and speaks for the others."""
    place = find_place()
    return place is None or place.rank == 0


def choose_processes(wish: int | None, effective: int, hardware: Hardware, place: Place | None) -> tuple[int, str]:
    """(processes, why). `wish` is None for one on each GPU. Raises Failure: 2 for a number that does not divide the batch
    or that a launcher contradicts, 5 for more than there are GPUs."""
    if place is not None and wish not in (None, place.world):
        raise Failure(
            USAGE, "usage", f"--processes is {wish}, and {place.world} were launched", fix="Drop --processes."
        )
    count = place.world if place is not None else wish
    if count is None:
        return _on_all(hardware, effective)
    if effective % count:
        text = f"--effective-batch-size {effective} cannot be shared by {count} processes"
        raise Failure(USAGE, "usage", text, fix=f"Use a multiple of {count}.")
    if place is None and hardware.kind != "cpu" and count > hardware.devices:
        have = f"{hardware.devices} GPU" + ("s" if hardware.devices > 1 else "")
        raise Failure(UNSUPPORTED, "processes-too-many", f"--processes {count} with {have}", fix="Drop --processes.")
    return count, "those that were launched" if place is not None else "asked for"


def _on_all(hardware: Hardware, effective: int) -> tuple[int, str]:
    if hardware.kind != "cuda" or hardware.devices == 1:
        return 1, "there is one device"
    each = next(n for n in range(len(hardware.gpus), 0, -1) if effective % (n * hardware.nodes) == 0 or n == 1)
    count = each * hardware.nodes
    if effective % count:
        text = f"--effective-batch-size {effective} cannot be shared by {hardware.nodes} nodes"
        raise Failure(USAGE, "usage", text, fix=f"Use a multiple of {hardware.devices}.")
    if count == hardware.devices:
        return count, "one on each GPU"
    return count, f"of {hardware.devices} GPUs, as many as can share a batch of {effective}"


def check_parallel(wish: str | None, processes: int, hardware: Hardware, place: Place | None) -> str | None:
    """How the processes share the model, None where the plan may choose. Raises Failure for what the launcher contradicts
    (exit 2), and for FSDP without NVIDIA GPUs (exit 5)."""
    if processes == 1:
        if wish == "fsdp":
            raise Failure(USAGE, "usage", "--parallel fsdp, and there is one process", fix="Drop --parallel.")
        return "ddp"
    if wish == "fsdp" and hardware.kind != "cuda":
        text = "--parallel fsdp is for NVIDIA GPUs: accelerate has no FSDP on other hardware"
        raise Failure(UNSUPPORTED, "parallel-unsupported", text, fix="Pass --parallel ddp.")
    if place is None:
        return wish if hardware.kind == "cuda" else "ddp"
    launched = "fsdp" if place.sharded else "ddp"
    if wish not in (None, launched):
        fix = f"Launch with accelerate launch --config_file {preset(wish)}, or pass --parallel {launched}."
        raise Failure(USAGE, "usage", f"--parallel is {wish}, and the processes were launched for {launched}", fix=fix)
    return launched


def preset(parallel: str) -> Path:
    """The accelerate config: data parallel, or weights split by FSDP 2."""
    return PRESETS / {"ddp": "ddp.yaml", "fsdp": "fsdp2.yaml"}[parallel]


def on_each_node(launch: str, processes: int, parallel: str, hardware: Hardware) -> str | None:
    """What to run on every one of several nodes; the shell fills in NODE_RANK (0 is the first) and MASTER_ADDR."""
    if hardware.nodes == 1:
        return None
    words = ["accelerate", "launch", "--config_file", os.path.relpath(preset(parallel))]
    words += ["--num_machines", str(hardware.nodes), "--num_processes", str(processes)]
    where = f"--machine_rank $NODE_RANK --main_process_ip $MASTER_ADDR --main_process_port {PORT}"
    return f"{shlex.join(words)} {where} {launch.removeprefix('python ')}"


def shared_memory(hardware: Hardware, processes: int, place: Place | None) -> Hardware:
    """The hardware as one process sees it: on a CPU those of a node share its memory."""
    beside = place.beside if place is not None else processes
    return hardware if hardware.kind != "cpu" else replace(hardware, memory_gib=hardware.memory_gib / beside)
