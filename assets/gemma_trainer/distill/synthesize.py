"""New prompts and their answers, drawn from seeds, tools or documents."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from gemma_trainer.data.model import Model
from gemma_trainer.data.reading.sources import expand
from gemma_trainer.distill import gate
from gemma_trainer.distill.criteria import Criteria
from gemma_trainer.distill.draw_documents import Documents
from gemma_trainer.distill.draw_evolve import Evolve
from gemma_trainer.distill.draw_instruct import Instruct
from gemma_trainer.distill.draw_tools import ToolUse
from gemma_trainer.distill.draw_turns import Turns
from gemma_trainer.distill.drawing import Draw, Studio
from gemma_trainer.distill.gate import Reason
from gemma_trainer.distill.respond import sampling_of
from gemma_trainer.distill.seeds import Seed, read_passages, read_seeds, read_tools
from gemma_trainer.distill.similar import Similar
from gemma_trainer.distill.work import Ask, Item, Result, Results
from gemma_trainer.rows.content import text_of
from gemma_trainer.rows.problems import UNSUPPORTED, USAGE, Failure, Problem

KINDS = {  # values of --kind, and the flag that each draws from
    "instruct": "seeds",
    "evolve": "seeds",
    "multi-turn": "seeds",
    "documents": "documents",
    "tools": "tools",
}
_REQUESTS = {"instruct": 1.25, "evolve": 2, "multi-turn": 5, "documents": 1 / 3, "tools": 4}  # for one row, about


class Kind(Protocol):
    """How new samples are drawn. `wanted` samples come of one draw; `novel` is the likeness to a seed or an earlier
    prompt from which on a prompt is not new, 0 for prompts that need not be."""

    wanted: int
    novel: float

    async def draw(self, studio: Studio, draw: Draw, ask: Ask) -> Result: ...


class Synthesize:
    """`count` samples are drawn; draw n is the same whatever `count` is, so that a larger one goes on where a smaller
    one ended. Raises Failure: exit 2 and 3 for flags and files."""

    def __init__(self, args: Namespace, student: Model):
        self.name = args.kind or next((kind for kind, flag in _by_flag(args)), "instruct")
        for flag in ("seeds", "documents", "tools"):
            if bool(getattr(args, flag)) != (flag == KINDS[self.name]):
                text = f"--kind {self.name} draws from --{KINDS[self.name]}" + (
                    f", not from --{flag}" if getattr(args, flag) else ""
                )
                raise Failure(USAGE, "usage", text)
        self.warnings: list[Problem] = []
        self.files: list[Path] = []
        self.student_args: Namespace | None = None
        self.seeds: list[Seed] = []
        self.kind = self._kind(args, student)
        self.count, self.seed, self.near = args.count, args.seed, args.near_duplicates
        self.criteria = Criteria.of(args, student, None)
        self.studio = Studio(args.teacher, sampling_of(args), self.criteria)

    def _kind(self, args: Namespace, student: Model) -> Kind:
        if self.name == "documents":
            self.files, passages = read_passages(args.documents)
            return Documents(passages)
        if self.name == "tools":
            if not student.family.tools:
                text = f"{student.family.title}, the student's family, has no tool calls"
                raise Failure(UNSUPPORTED, "tools-unsupported", text)
            self.files = [Path(args.tools)]
            return ToolUse(read_tools(self.files[0]), args.system)
        self.files = expand(args.seeds)
        self.seeds, self.warnings = read_seeds(self.files, student)
        if args.system is not None:
            self.seeds = [seed._replace(system=args.system or None) for seed in self.seeds]
        return {"instruct": Instruct, "evolve": Evolve, "multi-turn": Turns}[self.name](self.seeds)

    def items(self) -> Iterator[Item]:
        for number, start in enumerate(range(0, self.count, self.kind.wanted)):
            wanted = min(self.kind.wanted, self.count - start)
            yield Item(f"{self.name}-{number}", Draw(number, wanted, self.seed, self.name))

    def request_count(self) -> int:
        """About: a conversation may end early, a call may be followed by another."""
        scored = 0 if self.criteria.threshold is None else self.count
        return round(self.count * _REQUESTS[self.name]) + scored

    async def work(self, item: Item, ask: Ask) -> Result:
        drawn = await self.kind.draw(self.studio, item.data, ask)
        made = Result(rejects=drawn.rejects)
        for row in drawn.rows:
            given = (row["messages"][0]["role"] == "system") + (self.name == "multi-turn")  # the rest is the teacher's
            if reasons := gate.check_row(row, self.criteria.gate.family, from_message=given):
                made.rejects.append(gate.rejected(row, reasons, [row["meta"]["id"]]))
            else:
                made.rows.append(row)
        return made

    def settle(self, results: Results) -> Results:
        """Refuse rows whose prompt or answer is not new."""
        seen, novelty = gate.SeenAnswers(self.near), Novelty(self.kind.novel, self.seeds)
        for item, result in results:
            kept, rejects = [], list(result.rejects)
            for row in result.rows:
                *prompt, answer = row["messages"]
                key = row["meta"]["id"]
                reason = novelty.check(row, key) or seen.check(prompt, answer, key)
                if reason:
                    rejects.append(gate.rejected(row, [reason], [key]))
                else:
                    kept.append(row)
            yield item, Result(kept, rejects)


class Novelty:
    """First questions in the order of items, held against seeds and earlier ones."""

    def __init__(self, threshold: float, seeds: list[Seed]):
        self.similar = Similar(threshold) if threshold else None
        if self.similar:
            for seed in seeds:
                self.similar.add(seed.prompt, "a seed")

    def check(self, row: dict, key: str) -> Reason | None:
        question = next(text_of(message["content"]) for message in row["messages"] if message["role"] == "user")
        near = self.similar and self.similar.add(question, key)
        return Reason("not-novel", f"{near[1]:.0%} like the prompt of {near[0]}") if near else None


def _by_flag(args: Namespace) -> Iterator[tuple[str, str]]:
    """Kinds that draw from a flag which is given."""
    return ((kind, flag) for kind, flag in KINDS.items() if getattr(args, flag))
