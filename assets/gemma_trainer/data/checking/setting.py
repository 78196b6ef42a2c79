"""What rows are checked against."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gemma_trainer.families.family import Family


@dataclass(frozen=True)
class Setting:
    """`folder` is where media paths start. `shown` is what the template in use writes, see shown.py, and None while that
    is unknown."""

    family: Family
    folder: Path
    shown: frozenset[str] | None = None

    def hides(self, what: str) -> bool:
        """Whether the template in use is known not to write it."""
        return self.shown is not None and what not in self.shown

    @property
    def better_template(self) -> str:
        """What mends a row of which the template in use leaves out what the family's current one writes."""
        family = self.family
        newest = f"the current template of {family.title}, revision {family.current_revision},"
        return f"put {newest} in place of the model's own, or start from the instruction-tuned (-it) model"
