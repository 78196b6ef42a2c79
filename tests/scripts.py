"""Run the scripts as a user does: a process of its own, exit code, stdout, stderr."""

from __future__ import annotations

import json
import os
import subprocess
import sys
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
