"""Hardware that is not here, from a short text such as `1xRTX4090-24G`."""

from __future__ import annotations

import difflib
import re

from gemma_trainer.plan.hardware import Gpu, Hardware
from gemma_trainer.rows.problems import USAGE, Failure

# NVIDIA cards: compute capability, and {GiB on the box: GiB that nvidia-smi shows}.
CARDS: dict[str, tuple[float, dict[int, float]]] = {
    "V100": (7.0, {16: 16.0, 32: 32.0}),
    "T4": (7.5, {16: 15.0}),
    "RTX2080TI": (7.5, {11: 11.0}),
    "A30": (8.0, {24: 24.0}),
    "A100": (8.0, {40: 40.0, 80: 80.0}),
    "A10G": (8.6, {24: 22.5}),
    "A10": (8.6, {24: 22.5}),
    "A40": (8.6, {48: 45.0}),
    "RTXA4000": (8.6, {16: 16.0}),
    "RTXA5000": (8.6, {24: 24.0}),
    "RTXA6000": (8.6, {48: 48.0}),
    "RTX3060": (8.6, {12: 12.0}),
    "RTX3070": (8.6, {8: 8.0}),
    "RTX3080": (8.6, {10: 10.0, 12: 12.0}),
    "RTX3090": (8.6, {24: 24.0}),
    "L4": (8.9, {24: 22.5}),
    "L40": (8.9, {48: 45.0}),
    "L40S": (8.9, {48: 45.0}),
    "RTX6000ADA": (8.9, {48: 48.0}),
    "RTX4060": (8.9, {8: 8.0}),
    "RTX4060TI": (8.9, {8: 8.0, 16: 16.0}),
    "RTX4070": (8.9, {12: 12.0}),
    "RTX4080": (8.9, {16: 16.0}),
    "RTX4090": (8.9, {24: 24.0}),
    "H100": (9.0, {80: 79.6, 94: 93.6}),
    "H200": (9.0, {141: 140.4}),
    "B200": (10.0, {180: 179.1}),
    "RTX5070": (12.0, {12: 12.0}),
    "RTX5080": (12.0, {16: 15.9}),
    "RTX5090": (12.0, {32: 31.8}),
    "RTXPRO6000": (12.0, {96: 95.6}),
}
# TPU generations: GiB a chip, and how many of the number in a type's name make one (v4-8 counts 8 cores, v5e-8 chips).
TPUS = {"V4": (32.0, 2), "V5E": (16.0, 1), "V5P": (95.0, 2), "V6E": (32.0, 1)}
FORMS = "1xRTX4090-24G, 2x8xA100-80G, cpu-16G, mps-32G, tpu-v5e-8"
_SHARED = re.compile(r"(CPU|MPS)-(\d{1,5})G(?:I?B)?")
_TPU = re.compile(r"TPU-(\w+)-(\d{1,5})")
_GPUS = re.compile(r"(?:(?:(\d{1,4})X)?(\d{1,4})X)?([A-Z][A-Z0-9 ]*)(?:-(\d{1,4})G(?:I?B)?)?")


def emulate(text: str) -> Hardware:
    """Raises Failure (exit 2) that tells the nearest name, or the forms that are taken."""
    plain = text.strip().upper()
    if found := _SHARED.fullmatch(plain):
        return _shared(found[1].lower(), int(found[2]), text)
    if found := _TPU.fullmatch(plain):
        return _tpu(found[1], int(found[2]), text)
    if found := _GPUS.fullmatch(plain):
        nodes, count, name, memory = found.groups()
        return _cards(int(nodes or 1), int(count or 1), name.replace(" ", ""), memory and int(memory), text)
    raise _unknown(text, f"is not of a known form: {FORMS}")


def _shared(kind: str, memory: int, text: str) -> Hardware:
    if memory == 0:
        raise _unknown(text, "has no memory")
    return Hardware(kind, 0, float(memory), "emulated", emulated=True)


def _tpu(generation: str, size: int, text: str) -> Hardware:
    if generation not in TPUS:
        raise _unknown(text, f"names no TPU that is known{_hint(generation, TPUS)}")
    memory, cores = TPUS[generation]
    if size == 0 or size % cores:
        raise _unknown(text, f"is no size of TPU {generation.lower()}")
    return Hardware(
        "tpu", 0, 0.0, "emulated", [Gpu(f"TPU {generation.lower()}", memory, 0.0)] * (size // cores), emulated=True
    )


def _cards(nodes: int, count: int, name: str, memory: int | None, text: str) -> Hardware:
    if nodes == 0 or count == 0:
        raise _unknown(text, "counts no card")
    if name not in CARDS:
        raise _unknown(text, f"names no card that is known{_hint(name, CARDS)}")
    capability, sizes = CARDS[name]
    if memory is None and len(sizes) == 1:
        memory = next(iter(sizes))
    if memory not in sizes:
        given = f"has no {memory}G" if memory else "comes in several sizes"
        raise _unknown(text, f": {name} {given}; write {' or '.join(f'{name}-{size}G' for size in sizes)}")
    return Hardware("cuda", 0, 0.0, "emulated", [Gpu(name, sizes[memory], capability)] * count, nodes, emulated=True)


def smallest_card(gib: float) -> tuple[str, float] | None:
    """(name as --emulate takes it, GiB) of the smallest card of at least so much memory, None if there is none."""
    # All compute in bfloat16, as the estimate supposes. Of equal ones the usual choice comes first.
    usual = ("RTX4080", "RTX4090", "RTX5090", "A100", "L40S", "H100", "RTXPRO6000", "H200", "B200")
    sizes = [(shown, i, f"{name}-{label}G") for i, name in enumerate(usual) for label, shown in CARDS[name][1].items()]
    fitting = [(shown, i, name) for shown, i, name in sizes if shown >= gib]
    return (min(fitting)[2], min(fitting)[0]) if fitting else None


def _hint(name: str, known: dict) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean `{near[0]}`?" if near else f"; known are {', '.join(known)}, and the forms {FORMS}"


def _unknown(text: str, why: str) -> Failure:
    gap = "" if why.startswith(":") else " "
    return Failure(USAGE, "hardware-unknown", f"--emulate {text}{gap}{why}")
