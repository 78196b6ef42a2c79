"""Run the scripts as a user does: a process of its own, exit code, stdout, stderr."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ASSETS = Path(__file__).parents[1] / "assets"


@dataclass
class Ran:
    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> dict:
        """The one object on stdout."""
        return json.loads(self.stdout)

    @property
    def codes(self) -> set[str]:
        return {problem["code"] for problem in self.json["errors"] + self.json["warnings"]}


def command(script: str, *words: object) -> list[str]:
    return [sys.executable, str(ASSETS / script), *map(str, words)]


def run(script: str, *words: object, cwd: Path | None = None, **environment: str) -> Ran:
    done = subprocess.run(
        command(script, *words), capture_output=True, text=True, cwd=cwd, timeout=600, env={**os.environ, **environment}
    )
    assert "Traceback" not in done.stderr, done.stderr[-3000:]
    return Ran(done.returncode, done.stdout, done.stderr)


def signal_after(folder: Path, step: int, number: int, script: str, *words: object, cwd: Path) -> tuple[int, str]:
    """(exit code, stdout) of a training script that gets a signal once its run directory has logged `step`."""
    process = subprocess.Popen(
        command(script, *words), cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    metrics, deadline = folder / "metrics.jsonl", time.monotonic() + 300
    while process.poll() is None and time.monotonic() < deadline:
        if metrics.exists() and f'"step": {step},' in metrics.read_text():
            os.kill(process.pid, number)
            break
        time.sleep(0.005)
    output = process.communicate(timeout=300)[0]
    return process.returncode, output
