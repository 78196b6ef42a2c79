"""Peak memory of real training runs on the CPU against what the planner predicts.

Each run is a process of its own, as a user starts it. `python benchmarks/memory.py --help`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "assets"))

from gemma_trainer.plan.memory import GIB, Settings, estimate  # noqa: E402
from gemma_trainer.plan.size import size_of  # noqa: E402

WORDS = "the harbour keeps boats tides nets ropes lamps bells and gulls near every old stone wall"
VOCABULARY = 262_144
SHAPES = {
    "gemma3-mid": ("gemma3", {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 6, "head_dim": 64}),
    "gemma4-mid": ("gemma4", {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 6, "head_dim": 64,
                              "global_head_dim": 128, "vocab_size_per_layer_input": VOCABULARY}),
    "gemma3-deep": ("gemma3", {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 16, "head_dim": 128}),
    "gemma3-270m": ("gemma3", {"hidden_size": 640, "intermediate_size": 2048, "num_hidden_layers": 18, "head_dim": 256}),
}  # fmt: skip


class Run(NamedTuple):
    shape: str
    method: str
    mode: str
    micro: int
    length: int
    dtype: str = "float32"

    def __str__(self) -> str:
        return f"{self.shape} {self.method} {self.mode} {self.dtype} {self.micro}x{self.length}"


RUNS = [
    Run("gemma3-mid", "sft", "lora", 1, 256),
    Run("gemma3-mid", "sft", "lora", 2, 512),
    Run("gemma3-mid", "sft", "qlora", 2, 512),
    Run("gemma3-mid", "sft", "full", 1, 256),
    Run("gemma3-mid", "sft", "full", 2, 512),
    Run("gemma4-mid", "sft", "lora", 1, 512),
    Run("gemma4-mid", "sft", "full", 1, 256),
    Run("gemma3-mid", "dpo", "lora", 1, 256),
    Run("gemma3-mid", "dpo", "full", 1, 256),
    Run("gemma3-mid", "rm", "lora", 2, 512),
    Run("gemma3-mid", "rm", "full", 2, 512),
    Run("gemma3-270m", "sft", "lora", 4, 73),
    Run("gemma3-270m", "sft", "full", 4, 73),
    Run("gemma3-270m", "rm", "lora", 1, 256),
    Run("gemma3-270m", "dpo", "qlora", 1, 128),
    Run("gemma3-deep", "sft", "qlora", 1, 512, "bfloat16"),
    Run("gemma3-270m", "sft", "lora", 1, 256, "bfloat16"),
]


def make_shape(name: str, folder: Path) -> Path:
    from gemma_trainer.models.tiny import make_model, make_tokenizer, save_tiny

    kind, sizes = SHAPES[name]
    tokenizer = make_tokenizer([WORDS] * 9, kind)
    sizes = {"vocab_size": VOCABULARY, "max_position_embeddings": 8192, **sizes}
    model = make_model(kind, tokenizer, **sizes).bfloat16()  # as released checkpoints are
    return save_tiny(model, tokenizer, folder / name)


def write_rows(method: str, length: int, file: Path) -> Path:
    """Rows longer than `length` tokens: `--overlong truncate` makes them exactly as long."""
    long = " ".join([WORDS] * (length // 8))
    lines = []
    for i in range(8):
        ask, answer = {"role": "user", "content": f"{'the ' * (i + 1)}?"}, {"role": "assistant", "content": long}
        pair = {"prompt": [ask], "chosen": [answer], "rejected": [{**answer, "content": long[::-1]}]}
        lines.append(json.dumps({"messages": [ask, answer]} if method == "sft" else pair))
    file.write_text("\n".join(lines) + "\n")
    return file


def measure(command: list[str], log: Path) -> tuple[int, float, list[tuple[float, int]]]:
    """(exit code, peak resident bytes, samples of (seconds, resident bytes)) of a process."""
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=log.with_suffix(".err").open("wb"))
        samples, started = [], time.monotonic()
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024, samples
            found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
            if found:
                samples.append((time.monotonic() - started, int(found[1]) * 1024))
            time.sleep(0.1)


def run_once(run: Run, model: Path, folder: Path) -> dict:
    rows = write_rows(run.method, run.length, folder / "rows.jsonl")
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, ROOT / "assets" / f"{run.method}_train.py", "--model", model, "--data", rows]
    command += ["--output-dir", out, "--mode", run.mode, "--dtype", run.dtype, "--max-length", run.length]
    command += ["--overlong", "truncate", "--micro-batch-size", run.micro, "--effective-batch-size", run.micro]
    command += ["--max-steps", 2, "--eval-fraction", 0, "--json"]
    log = folder / "log.json"
    code, resident, samples = measure([str(word) for word in command], log)
    if code:
        raise RuntimeError(
            f"{run}: exit {code}\n{log.with_suffix('.err').read_text()[-2000:]}{log.read_text()[-1000:]}"
        )
    plan = json.loads(log.read_text())["result"]["plan"]
    settings = Settings(
        method=run.method, mode=run.mode, dtype=plan["dtype"], device="cpu", micro=run.micro, length=plan["data"]["longest"],
        autocast=plan["autocast"], accumulates=False, checkpointing=plan["gradient_checkpointing"],
    )  # fmt: skip
    predicted = estimate(size_of(str(model)), settings)
    return {
        "run": str(run),
        "checkpointing": settings.checkpointing,
        "resident": resident / GIB,
        "predicted": predicted.as_dict(),
        "samples": [(round(seconds, 1), round(size / GIB, 3)) for seconds, size in samples],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", metavar="TEXT", default="", help="runs whose name holds it")
    parser.add_argument("--samples", action="store_true", help="also print memory over time")
    args = parser.parse_args()
    print(
        "| run | measured GiB | predicted GiB | difference | highest moment and parts |\n| --- | --- | --- | --- | --- |",
        flush=True,
    )
    models: dict[str, Path] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for run in RUNS:
            if args.only not in str(run) or not (ROOT / "assets" / f"{run.method}_train.py").exists():
                continue
            if run.shape not in models:
                models[run.shape] = make_shape(run.shape, folder)
            try:
                found = run_once(run, models[run.shape], folder)
            except RuntimeError as error:
                print(error, file=sys.stderr, flush=True)
                continue
            total = found["predicted"]["total"]
            parts = ", ".join(
                f"{k} {v:.2f}" for k, v in found["predicted"].items() if k not in ("total", "moments") and v >= 0.005
            )
            moment = max(found["predicted"]["moments"], key=found["predicted"]["moments"].get)
            difference = total / found["resident"] - 1
            print(
                f"| {run} | {found['resident']:.2f} | {total:.2f} | {difference:+.0%} | {moment}: {parts} |", flush=True
            )
            if args.samples:
                print(found["samples"][:: max(1, len(found["samples"]) // 60)])


if __name__ == "__main__":
    main()
