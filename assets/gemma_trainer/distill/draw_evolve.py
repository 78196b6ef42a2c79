"""Seeds rewritten into other prompts, each answered by the teacher."""

from __future__ import annotations

from dataclasses import dataclass

from gemma_trainer.distill.drawing import TEXT, Draw, Studio, add, form, opening, refuse
from gemma_trainer.distill.request import Request
from gemma_trainer.distill.seeds import Seed
from gemma_trainer.distill.structured import ask_value
from gemma_trainer.distill.work import Ask, Result

WAYS = (
    "Make it harder: it takes one more step of thought to answer it well.",
    "Add a constraint on the content or the form of the answer.",
    "Make it concrete: put names, numbers or a small piece of data into it.",
    "Keep what is asked for and move it to another field of life.",
    "Ask for the reason behind it, or for a comparison, instead of a plain fact.",
    "Turn it into a case that somebody has to decide.",
    "Make it shorter and simpler, as somebody would ask who is new to this.",
    "Ask for the rare or surprising side of the same subject.",
)
_FORM = form(prompt=TEXT)


@dataclass(frozen=True)
class Evolve:
    """Draws go through the seeds in turn; how each is rewritten is left to chance."""

    seeds: list[Seed]
    wanted: int = 1
    novel: float = 0.9

    def seed(self, draw: Draw) -> Seed:
        return self.seeds[draw.number % len(self.seeds)]

    def request(self, studio: Studio, draw: Draw) -> Request:
        way = draw.chance("way").choice(WAYS)
        text = (
            f"This is what a user asks an assistant:\n[prompt]\n{self.seed(draw).prompt}\n[end of prompt]\n\n"
            f"Rewrite it into another prompt. {way} Keep the language. It has to stand alone, make sense and be "
            'possible to answer. Do not answer it. JSON only: {"prompt": "..."}'
        )
        return studio.writing(draw, text, _FORM.schema)

    async def draw(self, studio: Studio, draw: Draw, ask: Ask) -> Result:
        request = self.request(studio, draw)
        found = await ask_value(ask, request, _FORM)
        if found.fault:
            return Result(rejects=[refuse(found.replies, [found.fault], request)])
        result, seed = Result(), self.seed(draw)
        answered = await studio.answer(ask, opening(seed.system, found.value["prompt"].strip()))
        add(result, answered, found.ids, kind=draw.kind, seed=seed.prompt)
        return result
