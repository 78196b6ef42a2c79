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


def without(flag: str, words: list[str], values: int = 1) -> list[str]:
    """The words without a flag and its values."""
    gone = {at + more for at, word in enumerate(words) if word == flag for more in range(1, values + 1)}
    left = (word for at, word in enumerate(words) if at not in gone)
    return [word for word in left if word != flag and not word.startswith(f"{flag}=")]


def changed(launch: str, change: list[str]) -> list[str]:
    """The words of a command with the flags of `change`, each with a value, in place of its own."""
    words = shlex.split(launch)
    for flag in change:
        words = without(flag, words) if flag.startswith("--") else words
    return [*words, *change]
