"""New prompts in the manner of seeds, each answered by the teacher."""

from __future__ import annotations

import json
from dataclasses import dataclass

from gemma_trainer.distill.drawing import ASKERS, SHAPES, TEXT, Draw, Studio, add, form, opening, shortfall
from gemma_trainer.distill.request import Request
from gemma_trainer.distill.seeds import Seed
from gemma_trainer.distill.structured import ask_samples
from gemma_trainer.distill.together import together
from gemma_trainer.distill.work import Ask, Result

WANTED = 4  # prompts of one request
_NAMES = ("prompt", "instruction", "question", "query", "task", "request", "problem", "input", "text")
_EXAMPLES = 4  # seeds shown
_FORM = form(prompt=TEXT)
_LIST = {
    "type": "object",
    "properties": {"prompts": {"type": "array", "items": _FORM.schema}},
    "required": ["prompts"],
}


@dataclass(frozen=True)
class Instruct:
    """Draws share nothing but the seeds; each shows some of them, all with the same system text."""

    seeds: list[Seed]
    wanted: int = WANTED
    novel: float = 0.7  # likeness at which a prompt is not new

    def request(self, studio: Studio, draw: Draw, count: int, step: int) -> Request:
        """For `count` new prompts."""
        chance = draw.chance("ideas")
        shown = "\n".join(json.dumps({"prompt": seed.prompt}, ensure_ascii=False) for seed in self._shown(draw))
        ideas = "\n".join(
            f"- one that {chance.choice(ASKERS)} would ask, {chance.choice(SHAPES)}" for _ in range(count)
        )
        text = (
            f"These are examples of what users ask an assistant:\n{shown}\n\n"
            f"Write {count} new prompts of the same kind, difficulty and language, about other subjects than these. "
            "Each stands alone: whoever reads it needs nothing else to answer it. No answers, no numbering.\n"
            f"{ideas}\n\n"
            'Answer with JSON only: {"prompts": [{"prompt": "..."}, ...]}'
        )
        return studio.writing(draw, text, _LIST, step)

    def _shown(self, draw: Draw) -> list[Seed]:
        chance = draw.chance("seeds")
        first = chance.choice(self.seeds)
        alike = [seed for seed in self.seeds if seed.system == first.system]
        return chance.sample(alike, min(_EXAMPLES, len(alike)))

    async def draw(self, studio: Studio, draw: Draw, ask: Ask) -> Result:
        def make(count: int, step: int) -> Request:
            return self.request(studio, draw, count, step)

        found = await ask_samples(ask, make, draw.wanted, _NAMES, _FORM)
        result = Result(rejects=shortfall(found, draw.wanted, make(draw.wanted, 0)))
        system = self._shown(draw)[0].system
        prompts = [opening(system, sample.value["prompt"].strip()) for sample in found.samples]
        ids = [reply.id for reply in found.replies]
        for answered in await together(*(studio.answer(ask, prompt) for prompt in prompts)):
            add(result, answered, ids, kind=draw.kind)
        return result
