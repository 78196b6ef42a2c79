"""The command that goes on where this one ended."""

from __future__ import annotations

import sys

from gemma_trainer import cli


def again(script: str, *flags: str, without: str | None = None) -> list[str]:
    """This command with a flag added or given another value, or `without` one. None where prompts came from stdin, for
    a command cannot repeat them."""
    words = [word for word in sys.argv[1:] if word != without]
    if "-" in words:
        return []
    name = flags[0] if flags else ""
    if name in words:
        at = words.index(name)
        words = words[:at] + words[at + len(flags) :]
    words = [word for word in words if not word.startswith(f"{name}=")] if name else words
    return [cli.command(script, *words, *flags)]
