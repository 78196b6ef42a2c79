"""Commands that people are told to run."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

SCRIPTS = Path(__file__).parents[2]


def command(script: str | Path, *words: object) -> str:
    """A command line for a script of the pack that can be pasted from the current directory."""
    path = os.path.relpath(script)
    if path.startswith(os.pardir):
        path = str(Path(script).absolute())
    return shlex.join(["python", path, *(str(word) for word in words)])
