"""What is added up over the rows of a set, whoever read which of them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from gemma_trainer.data.checking.check_lengths import LengthBias
from gemma_trainer.data.checking.column_types import ColumnTypes
from gemma_trainer.data.lengths import Lengths
from gemma_trainer.rows.problems import Problem


@dataclass
class Sums:
    lengths: Lengths = field(default_factory=Lengths)
    bias: LengthBias = field(default_factory=LengthBias)
    types: ColumnTypes = field(default_factory=ColumnTypes)

    def merge(self, later: Sums) -> None:
        """Add rows that stand behind these."""
        self.lengths.merge(later.lengths)
        self.bias.merge(later.bias)
        self.types.merge(later.types)

    def shift(self, lines: int) -> None:
        """Move the rows behind so many lines of their file."""
        for kinds in self.types.seen.values():
            for kind, (file, line) in kinds.items():
                kinds[kind] = (file, line if line is None else line + lines)

    def problems(self) -> list[Problem]:
        """What is wrong with the set as a whole."""
        bias = self.bias.problem()
        return [*([bias] if bias else []), *self.types.problems()]

    def as_dict(self) -> dict:
        """For a JSON file; `from_dict` reads it."""
        lengths = {**asdict(self.lengths), "rows": sorted(self.lengths.rows.items())}
        return {"lengths": lengths, "bias": asdict(self.bias), "types": self.types.seen}

    @classmethod
    def from_dict(cls, stored: dict) -> Sums:
        lengths = Lengths(**{**stored["lengths"], "rows": dict(stored["lengths"]["rows"])})
        types = ColumnTypes()
        types.seen = {name: {kind: tuple(at) for kind, at in kinds.items()} for name, kinds in stored["types"].items()}
        return cls(lengths, LengthBias(**stored["bias"]), types)
