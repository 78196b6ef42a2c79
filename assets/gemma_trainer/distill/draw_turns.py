"""Conversations of several turns: a seed opens, the teacher answers, and plays the user who goes on."""

from __future__ import annotations

from dataclasses import dataclass

from gemma_trainer.distill.drawing import ASKERS, TEXT, Draw, Studio, add, form, opening, refuse
from gemma_trainer.distill.request import Request
from gemma_trainer.distill.seeds import Seed
from gemma_trainer.distill.structured import ask_value
from gemma_trainer.distill.work import Ask, Result

MOVES = (
    "asks about a detail of the last answer",
    "does not understand a part of it and says which",
    "wants the same in another form or for another case",
    "gives new information that changes what is wanted",
    "doubts a point of it and asks for the reason",
    "goes one step further in the same direction",
)
_FORM = form(message=TEXT)


@dataclass(frozen=True)
class Turns:
    """Draws go through the seeds in turn; two to four questions each."""

    seeds: list[Seed]
    wanted: int = 1
    novel: float = 0.0  # seeds open on purpose

    def request(self, studio: Studio, draw: Draw, messages: list[dict], step: int) -> Request:
        """For what the user says next."""
        chance = draw.chance("user")
        asker = chance.choice(ASKERS)
        move = chance.sample(MOVES, len(MOVES))[step % len(MOVES)]
        said = "\n".join(f"[{m['role']}]\n{m['content']}\n" for m in messages if m["role"] != "system")
        text = (
            f"This is a conversation of a user, {asker}, with an assistant:\n{said}[end of conversation]\n\n"
            f"Write the user's next message, in which the user {move}. The user does not thank and does not end the "
            'conversation. Keep the language. JSON only: {"message": "..."}'
        )
        return studio.writing(draw, text, _FORM.schema, step)

    async def draw(self, studio: Studio, draw: Draw, ask: Ask) -> Result:
        """One row, or one reject with the first turn that is not good."""
        result = Result()
        seed = self.seeds[draw.number % len(self.seeds)]
        prompt, ids = opening(seed.system, seed.prompt), []
        turns = draw.chance("turns").randint(2, 4)
        for turn in range(turns):
            answered = await studio.answer(ask, prompt, sample=draw.number)
            if answered.reasons or turn == turns - 1:
                break
            ids.append(answered.reply.id)
            said = answered.reply.message
            request = self.request(studio, draw, [*prompt, said], turn + 1)
            found = await ask_value(ask, request, _FORM)
            ids += found.ids
            if found.fault:
                result.rejects.append(refuse(found.replies, [found.fault], request))
                return result
            said.pop("reasoning_content", None)  # only the last answer's thinking is rendered, and trained
            prompt = [*prompt, said, {"role": "user", "content": found.value["message"].strip()}]
        add(result, answered, ids, kind=draw.kind)
        return result
