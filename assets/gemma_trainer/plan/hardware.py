"""What this machine can compute on, found without importing torch."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from dataclasses import asdict, dataclass, field
from pathlib import Path

from gemma_trainer.data.running.workers import usable_cores


@dataclass(frozen=True)
class Gpu:
    name: str
    memory_gib: float
    compute_capability: float  # 8.0 and above computes in bfloat16


@dataclass(frozen=True)
class Hardware:
    """`memory_gib` is main memory, 0 where it is not told. `kind` is what training would run on: "cuda", "mps", "cpu" or
    "tpu". `gpus` are those of one node, or the chips of a TPU."""

    kind: str
    cpu_cores: int
    memory_gib: float
    system: str
    gpus: list[Gpu] = field(default_factory=list)
    nodes: int = 1
    emulated: bool = False  # asked about, not here

    @property
    def devices(self) -> int:
        """That training could use at once, on all nodes."""
        return max(1, len(self.gpus)) * self.nodes

    @property
    def device_gib(self) -> float:
        """Memory of each device; Apple GPUs and CPUs share main memory."""
        return min((gpu.memory_gib for gpu in self.gpus), default=self.memory_gib)

    @property
    def bfloat16(self) -> bool:
        """Whether the accelerator computes in bfloat16. A CPU is asked for it by --dtype, not by default."""
        if self.kind == "cuda":
            return self.gpus[0].compute_capability >= 8.0
        if self.kind == "mps":
            return self.emulated or int((platform.mac_ver()[0] or "0").split(".")[0]) >= 14
        return self.kind == "tpu"

    def as_dict(self) -> dict:
        return {**asdict(self), "bfloat16": self.bfloat16, "summary": str(self)}

    def __str__(self) -> str:
        if self.emulated:
            return self._emulated()
        cpu = f"{self.cpu_cores} CPU cores, {self.memory_gib:.0f} GiB memory"
        if self.kind == "cuda":
            names = ", ".join(f"{g.name} {g.memory_gib:.0f} GiB" for g in self.gpus)
            return f"{len(self.gpus)} x CUDA ({names}), {cpu}"
        return f"Apple GPU, {cpu}" if self.kind == "mps" else f"{cpu}, no GPU"

    def _emulated(self) -> str:
        if not self.gpus:
            return f"{'Apple GPU' if self.kind == 'mps' else 'CPU'}, {self.memory_gib:.0f} GiB memory (emulated)"
        nodes = f"{self.nodes} nodes of " if self.nodes > 1 else ""
        return f"{nodes}{len(self.gpus)} x {self.gpus[0].name}, {self.device_gib:.0f} GiB each (emulated)"


def share_cores() -> None:
    """Make idle OpenMP threads sleep after some microseconds of waiting; call it before torch is imported.

    By default they spin for milliseconds: beside another busy process a training step then takes seconds.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")


def detect() -> Hardware:
    gpus = _nvidia_gpus()
    apple = platform.system() == "Darwin" and platform.machine() == "arm64"
    kind = "cuda" if gpus else "mps" if apple else "cpu"
    return Hardware(kind, usable_cores(), _memory_gib(), f"{platform.system()} {platform.machine()}", gpus)


def _memory_gib() -> float:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.is_file() and (text := limit.read_text().strip()).isdigit():
        total = min(total, int(text))
    return round(total / 2**30, 1)


def _nvidia_gpus() -> list[Gpu]:
    if not shutil.which("nvidia-smi"):
        return []
    query = ["nvidia-smi", "--query-gpu=index,uuid,name,memory.total,compute_cap", "--format=csv,noheader,nounits"]
    try:
        text = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return visible_gpus(text, os.environ.get("CUDA_VISIBLE_DEVICES"))


def visible_gpus(nvidia_smi: str, visible: str | None) -> list[Gpu]:
    """The GPUs of `nvidia-smi --query-gpu=index,uuid,name,memory.total,compute_cap` that CUDA_VISIBLE_DEVICES shows."""
    gpus: dict[str, Gpu] = {}
    for line in nvidia_smi.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 5:
            index, uuid, name, memory, capability = cells
            gpus[index] = gpus[uuid] = Gpu(name, round(float(memory) / 1024, 1), float(capability))
    if visible is None:
        return [gpu for key, gpu in gpus.items() if key.isdigit()]
    shown = []
    for key in (key.strip() for key in visible.split(",")):
        match = next((gpu for name, gpu in gpus.items() if name == key or (key and name.startswith(key + "-"))), None)
        if match is None:
            break  # CUDA ignores everything behind the first unknown entry
        shown.append(match)
    return shown
