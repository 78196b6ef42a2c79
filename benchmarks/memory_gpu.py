"""Published peaks of GPU memory in Gemma fine-tuning runs against what the planner predicts for the same settings.

Nothing runs and nothing is downloaded: the figures stand here, each with its source. `python benchmarks/memory_gpu.py`
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "assets"))

from gemma_trainer.plan.memory import GIB, Settings, estimate
from gemma_trainer.plan.size import size_of

NOTEBOOKS = "https://github.com/unslothai/notebooks/blob"
AXOLOTL = "https://github.com/axolotl-ai-cloud/axolotl/blob"
DOLLY = "https://github.com/StochasticResult/DL_SLM_Gemma2b_LoRA_Fine-Tuning (qlora.py, commit 8909fa2, and its notes)"
CLOSE = 10  # per cent


class Figure(NamedTuple):
    """`gib` is the allocator's peak, `reserved` with its unused blocks or `allocated` without. `length` is in tokens a
    row: what the longest row surely or probably has; it lies between `shortest` and `longest`."""

    model: str
    mode: str
    rank: int
    micro: int
    shortest: int
    length: int
    longest: int
    run: str  # library and card
    gib: float
    counted: str
    source: str
    backend: str = "trl"
    sliced_head: bool = True

    def predict(self, length: int | None = None) -> float:
        """GiB at the peak of training, without the CUDA context, which allocators do not count."""
        settings = Settings(
            mode=self.mode, rank=self.rank, micro=self.micro, length=length or self.length,
            backend=self.backend, sliced_head=self.sliced_head,
        )  # fmt: skip
        found = estimate(size_of(self.model), settings)
        return (max(found.moments["backward"], found.moments["update"]) - found.runtime) / GIB

    def difference(self, length: int | None = None) -> float:
        """In per cent of the measured."""
        return 100 * (self.predict(length) / self.gib - 1)


FIGURES = [
    Figure("google/gemma-2-2b", "lora", 16, 1, 768, 768, 768, "TRL", 7.706, "allocated", DOLLY, sliced_head=False),
    Figure("google/gemma-4-E2B-it", "lora", 8, 1, 512, 1024, 1024, "Unsloth 2026.4, T4", 10.836, "reserved",
           f"{NOTEBOOKS}/026233a/nb/Gemma4_(E2B)-Text.ipynb", "unsloth"),
    Figure("google/gemma-4-E2B-it", "lora", 16, 1, 512, 2048, 2048, "Axolotl, images too", 10.4, "reserved",
           f"{AXOLOTL}/6953499/examples/gemma4/README.md and e2b-vision-lora.yaml"),
    Figure("google/gemma-4-12B-it", "lora", 8, 1, 1024, 2048, 2048, "Unsloth 2026.5, A100", 24.85, "reserved",
           f"{NOTEBOOKS}/0435b6a/nb/Gemma4_(12B)_Text.ipynb", "unsloth"),
    # That version of Unsloth left the experts in 16 bits, as the TRL engine does.
    Figure("google/gemma-4-26B-A4B-it", "qlora", 8, 1, 1024, 2048, 4096, "Unsloth 2026.4, A100", 48.988, "reserved",
           f"{NOTEBOOKS}/026233a/nb/Gemma4_(26B_A4B)-Text.ipynb"),
    Figure("google/gemma-4-31B-it", "qlora", 8, 1, 1024, 2048, 4096, "Unsloth 2026.4, A100", 21.43, "reserved",
           f"{NOTEBOOKS}/026233a/nb/Gemma4_(31B)-Text.ipynb", "unsloth"),
    Figure("google/gemma-4-31B", "qlora", 16, 1, 2048, 2048, 2048, "Axolotl, packed", 25.2, "reserved",
           f"{AXOLOTL}/6953499/examples/gemma4/README.md and 31b-qlora.yaml"),
    Figure("google/gemma-2-2b", "qlora", 16, 1, 768, 768, 768, "TRL", 7.395, "allocated", DOLLY, sliced_head=False),
    Figure("google/gemma-3-27b-it", "qlora", 8, 2, 1024, 2048, 2048, "Unsloth 2025.9, A100", 25.791, "reserved",
           f"{NOTEBOOKS}/03b0cda/nb/Gemma3_(27B)_A100-Conversational.ipynb", "unsloth"),
    Figure("google/gemma-3-4b-it", "qlora", 8, 2, 1024, 2048, 2048, "Unsloth 2025.3, T4", 13.561, "reserved",
           f"{NOTEBOOKS}/016b8dc/nb/Gemma3_(4B).ipynb", "unsloth"),
]  # fmt: skip


def row(figure: Figure) -> str:
    known = figure.shortest == figure.longest
    length = f"{figure.length:,}" if known else f"{figure.length:,} of {figure.shortest:,} to {figure.longest:,}"
    away = f"{figure.difference():+.0f}%"
    if not known:
        away += f" ({figure.difference(figure.shortest):+.0f} to {figure.difference(figure.longest):+.0f}%)"
    name = figure.model.rsplit("/", 1)[1]
    cells = [
        name,
        figure.mode,
        figure.rank,
        f"{figure.micro} x {length}",
        figure.run,
        f"{figure.gib:.2f} {figure.counted}",
    ]
    return " | ".join(map(str, [*cells, f"{figure.predict():.2f}", away]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sources", action="store_true", help="print where each figure stands instead")
    if parser.parse_args().sources:
        print("\n".join(f"{figure.model} {figure.mode}, {figure.gib} GiB: {figure.source}" for figure in FIGURES))
        return
    print("| model | mode | rank | batch | run | measured GiB | predicted | difference |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for figure in FIGURES:
        print(f"| {row(figure)} |")
    close = sum(abs(figure.difference()) <= CLOSE for figure in FIGURES)
    print(f"\n{close} of {len(FIGURES)} are within {CLOSE} %.")


if __name__ == "__main__":
    main()
