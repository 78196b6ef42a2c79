"""Many short runs of one engine in one process: Unsloth changes the libraries of the process that imports it.

`python engine_runs.py BACKEND FOLDER NAME...` makes FOLDER/NAME-BACKEND for each NAME: KIND_MODE_METHOD.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

from scripts import ASSETS

SIZE = [
    "--max-steps",
    "5",
    "--learning-rate",
    "2e-3",  # at higher rates Adam turns differences of rounding into other weights, worst with 4-bit models
    "--effective-batch-size",
    "8",
    "--micro-batch-size",
    "4",
    "--eval-fraction",
    "0.2",
]


def words(name: str, backend: str, *more: str) -> list[str]:
    """The script and the arguments of a run on ./KIND and METHOD.jsonl."""
    kind, mode, method = name.split("_")
    start = ("--model", f"./{kind}", "--mode", mode, "--backend", backend, "--data", f"{method}.jsonl")
    return [str(ASSETS / f"{method}_train.py"), *start, *SIZE, "--output-dir", f"{name}-{backend}", "--json", *more]


def make_runs(backend: str, folder: Path, names: list[str]) -> None:
    """In a process of their own. Raises subprocess.CalledProcessError when one of them fails."""
    command = [sys.executable, __file__, backend, str(folder), *names]
    path = os.pathsep.join([str(Path(__file__).parent), str(ASSETS)])
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, timeout=900)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def losses(folder: Path, name: str) -> list[float]:
    """Of each training step."""
    lines = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def main() -> None:
    backend, folder, *names = sys.argv[1:]
    os.chdir(folder)
    for name in names:
        sys.argv = words(name, backend)
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                runpy.run_path(sys.argv[0], run_name="__main__")
        except SystemExit as end:
            if end.code:
                sys.exit(f"{name}: exit {end.code}\n{printed.getvalue()}")


if __name__ == "__main__":
    main()
