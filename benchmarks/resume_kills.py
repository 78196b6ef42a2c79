"""Kill a training run again and again at random moments, and compare what it ends with to an undisturbed run.

examples:
  python benchmarks/resume_kills.py --method sft --kills 20
  python benchmarks/resume_kills.py --method dpo --kills 20 --seed 1
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "assets"), str(ROOT / "tests")]
STEPS = 60
WORDS = ("--model", "tiny", "--data", "rows.jsonl", "--max-steps", STEPS, "--save-steps", 3, "--eval-fraction", "0.2")
WORDS = (*WORDS, "--learning-rate", "0.01", "--effective-batch-size", 8, "--lora-dropout", "0.1", "--json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", choices=["sft", "dpo", "rm"], default="sft")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), args.method, args.kills, args.seed)


def measure(place: Path, method: str, kills: int, seed: int) -> None:
    make_place(place, method)
    begun = time.monotonic()
    assert start(place, method, "whole").wait() == 0
    whole = time.monotonic() - begun
    moments, steps = random.Random(seed), []
    while len(steps) < kills:
        # At any time of a run: while it loads and measures, trains, or writes a checkpoint.
        limit = time.monotonic() + moments.uniform(0, 1.3 * whole)
        process = start(place, method, "killed")
        begin = last_step(place / "killed")
        target = begin + moments.randint(1, max(1, (STEPS - 5) * 2 // kills))
        while process.poll() is None and time.monotonic() < limit and last_step(place / "killed") < target:
            time.sleep(0.002)
        if process.poll() is not None:
            assert process.returncode == 0, f"ended with {process.returncode}"
            break
        time.sleep(moments.uniform(0, 0.1))
        process.kill()
        process.wait()
        steps.append((begin, last_step(place / "killed")))
        print(f"kill {len(steps)} after step {steps[-1][1]}", file=sys.stderr, flush=True)
    code = start(place, method, "killed").wait() if status(place / "killed") != "done" else 0
    assert code == 0, f"the last run ended with {code}"
    report(place, method, steps)


def make_place(place: Path, method: str) -> None:
    from training import make_tiny, pair_rows, question_rows

    make_tiny(place / "tiny")
    rows = question_rows(120) if method == "sft" else pair_rows(120)
    for i, row in enumerate(rows):  # no prompt twice
        if method == "sft":
            row["messages"][0]["content"] += f" {i}"
    (place / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def start(place: Path, method: str, name: str) -> subprocess.Popen:
    words = map(str, (*WORDS, "--output-dir", name))
    line = [sys.executable, str(ROOT / "assets" / f"{method}_train.py"), *words]
    return subprocess.Popen(line, cwd=place, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def lines(folder: Path) -> list[dict]:
    """Whole lines of metrics.jsonl, which may be cut anywhere while the run is alive."""
    file, found = folder / "metrics.jsonl", []
    for text in file.read_text().splitlines() if file.exists() else []:
        try:
            found.append(json.loads(text))
        except ValueError:
            break
    return found


def last_step(folder: Path) -> int:
    return max((line["step"] for line in lines(folder)), default=0)


def status(folder: Path) -> str | None:
    file = folder / "run.json"
    return json.loads(file.read_text())["status"] if file.exists() else None


def report(place: Path, method: str, steps: list[tuple[int, int]]) -> None:
    """One line of a table: kills, those after a step that was new, and the largest differences of losses, of held-out
    measures after training, and of adapter weights."""
    from safetensors.torch import load_file

    logged = [
        {line["step"]: line["loss"] for line in lines(place / name) if "loss" in line} for name in ("whole", "killed")
    ]
    assert logged[0].keys() == logged[1].keys() and len(logged[0]) == STEPS
    losses = max(abs(logged[0][step] - logged[1][step]) for step in logged[0])
    weights = [load_file(place / name / "adapter_model.safetensors") for name in ("whole", "killed")]
    adapter = max(float((weights[0][name] - weights[1][name]).abs().max()) for name in weights[0])
    held_out = [json.loads((place / name / "run.json").read_text())["metrics"] for name in ("whole", "killed")]
    after = max(abs(a - b) for a, b in zip(*(each["after"].values() for each in held_out), strict=True))
    trained = sum(end > begin for begin, end in steps)
    print(f"| {method} | {len(steps)} | {trained} | {losses:.1e} | {after:.1e} | {adapter:.1e} |")


if __name__ == "__main__":
    main()
