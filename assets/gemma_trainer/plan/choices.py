"""What a run may be: the settings that meet a user's wishes, by preference, and how large they may be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from gemma_trainer.plan import plan as planning
from gemma_trainer.plan.hardware import Hardware
from gemma_trainer.plan.memory import GIB, TEXTS, Settings, estimate
from gemma_trainer.plan.size import ModelSize

# The rest is for what else runs, for memory that the allocator cannot use, and for what the estimate misses.
USABLE = {"cuda": 0.92, "mps": 0.75, "cpu": 0.85, "tpu": 0.9}
MICRO_TOKENS = {"cuda": 8192, "mps": 4096, "cpu": 2048, "tpu": 8192}  # in a pass; more makes steps no faster
KEPT = GIB  # of activations on a CPU, below which it is faster to keep them than to compute them twice


@dataclass(frozen=True)
class Wishes:
    """What the user asked for; None leaves the choice open."""

    method: str = "sft"
    backend: str = "trl"  # is chosen before
    mode: str | None = None
    dtype: str | None = None
    micro: int | None = None
    effective: int = 16
    length: int = 2048
    rank: int = 16
    packed: bool = False
    precomputed: bool = False
    parallel: str | None = None  # how several devices share the model
    continues: bool = False  # trains an adapter further, whose rank and base model are given


def budget_of(hardware: Hardware) -> float:
    """Bytes of each device that a run may take."""
    return USABLE[hardware.kind] * hardware.device_gib * GIB


def settings_for(model: ModelSize, hardware: Hardware, wishes: Wishes, mode: str, dtype: str | None = None) -> Settings:
    """One row a pass on one device."""
    dtype, _ = planning.choose_dtype(dtype or wishes.dtype, mode, hardware)
    micro = wishes.micro or 1
    settings = Settings(
        method=wishes.method,
        backend=wishes.backend,
        mode=mode,
        dtype=dtype,
        autocast=dtype == "bfloat16" or (hardware.kind == "cuda" and hardware.bfloat16),
        device=hardware.kind,
        micro=micro,
        length=wishes.length,
        rank=wishes.rank,
        accumulates=micro < wishes.effective,
        packed=wishes.packed,
        precomputed=wishes.precomputed,
    )
    return replace(settings, checkpointing=hardware.kind != "cpu" or activations(model, settings, False) > KEPT)


def activations(model: ModelSize, settings: Settings, checkpointing: bool) -> float:
    return estimate(model, replace(settings, checkpointing=checkpointing)).activations


def longest(model: ModelSize, settings: Settings, budget: float) -> int:
    """Tokens of the longest text that fits one row at a time, in steps of 256 up to the model's context."""
    low, high = 0, model.shape.context // 256
    while low < high:
        middle = (low + high + 1) // 2
        trial = replace(settings, micro=1, length=256 * middle, checkpointing=True)
        low, high = (middle, high) if peak(model, trial) <= budget else (low, middle - 1)
    return 256 * low


def peak(model: ModelSize, settings: Settings) -> float:
    """Bytes of a device at the highest moment."""
    return estimate(model, settings).total


def candidates(model: ModelSize, hardware: Hardware, wishes: Wishes, devices: int) -> Iterator[Settings]:
    """By preference. On a CPU float32 comes first, then half of it; several devices copy the model before they split it."""
    for mode in (wishes.mode,) if wishes.mode else planning.MODES[hardware.kind]:
        formats = (wishes.dtype,) if wishes.dtype or hardware.kind != "cpu" or mode == "full" else (None, "bfloat16")
        for dtype in formats:
            settings = settings_for(model, hardware, wishes, mode, dtype)
            ways = [each for each in settings.on(devices) if wishes.parallel in (None, each.parallel)]
            yield from ways or [settings]


def enlarged(model: ModelSize, settings: Settings, wishes: Wishes, hardware: Hardware, budget: float) -> Settings:
    """With the largest micro batch that divides a device's share of the batch, fits, and still makes steps faster."""
    if wishes.micro:
        return settings
    for micro in row_counts(settings, wishes, hardware):
        trial = settings_for(model, hardware, replace(wishes, micro=micro), settings.mode, settings.dtype)
        trial = on_devices(settings, trial)
        if peak(model, trial) <= budget:
            return trial
    return settings


def row_counts(settings: Settings, wishes: Wishes, hardware: Hardware) -> list[int]:
    """Micro batches that are worth trying, the largest first."""
    share = max(1, wishes.effective // settings.ranks)
    return [n for n in range(min(share, most_rows(wishes, hardware)), 0, -1) if share % n == 0]


def most_rows(wishes: Wishes, hardware: Hardware) -> int:
    """Rows of a pass, beyond which steps are no faster."""
    return max(1, MICRO_TOKENS[hardware.kind] // (TEXTS[wishes.method] * max(wishes.length, 1)))


def on_devices(like: Settings, settings: Settings) -> Settings:
    return replace(settings, ranks=like.ranks, parallel=like.parallel)
