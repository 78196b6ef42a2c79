"""The command that goes on where this one ended."""

from __future__ import annotations

import sys

from gemma_trainer import cli
from gemma_trainer.rows import commands


def again(script: str, *flags: str, without: str | None = None) -> list[str]:
    """This command with a flag added or given another value, or `without` one. None where prompts came from stdin, for
    a command cannot repeat them."""
    words = sys.argv[1:]
    if "-" in words:
        return []
    words = commands.without(without, words, values=0) if without else words
    if flags:
        words = commands.without(flags[0], words, values=len(flags) - 1)
    return [cli.command(script, *words, *flags)]
