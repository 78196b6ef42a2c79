"""Questions about passages of documents, with answers that a quote of the passage bears out."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from gemma_trainer.distill.criteria import Judged
from gemma_trainer.distill.drawing import ASKERS, TEXT, Draw, Studio, add, form, opening, shortfall
from gemma_trainer.distill.gate import Reason
from gemma_trainer.distill.request import Request
from gemma_trainer.distill.seeds import Passage
from gemma_trainer.distill.structured import ask_samples
from gemma_trainer.distill.work import Ask, Result
from gemma_trainer.rows.content import fold

_FORM = form(question=TEXT, answer=TEXT, quote=TEXT)
_LIST = {
    "type": "object",
    "properties": {"samples": {"type": "array", "items": _FORM.schema}},
    "required": ["samples"],
}
_LEAST = 3  # words of a quote
_SOURCE = "passage|text|excerpt|document|article|paragraph|author"
# A question that leans on a passage which its reader does not have.
_LEANS = re.compile(
    rf"\b(?:the|this|that) (?:(?:above|given|provided|following) )?(?:{_SOURCE})\b"
    rf"|\b(?:according to|mentioned|described|stated) (?:in )?(?:the|this) (?:{_SOURCE})\b"
    r"|\bas (?:mentioned|described|stated) above\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Documents:
    """Draws go through the passages in turn; later rounds ask for other questions."""

    passages: list[Passage]
    wanted: int = 3
    novel: float = 0.8

    def passage(self, draw: Draw) -> Passage:
        return self.passages[draw.number % len(self.passages)]

    def request(self, studio: Studio, draw: Draw, count: int, step: int) -> Request:
        asker = draw.chance("asker").choice(ASKERS)
        text = (
            f"[passage]\n{self.passage(draw).text}\n[end of passage]\n\n"
            f"Write {count} questions that {asker} could have and that this passage answers, each about another "
            "point of it, each with its answer. Whoever is asked does not see the passage: never speak of the passage, "
            "the text or its author, and name what is meant. Answers are full sentences and say nothing that the "
            "passage does not say. To each belongs a quote: the words of the passage, letter by letter, that bear the "
            'answer out. Keep the language. JSON only: {"samples": [{"question": "...", "answer": "...", "quote": '
            '"..."}, ...]}'
        )
        return studio.writing(draw, text, _LIST, step)

    async def draw(self, studio: Studio, draw: Draw, ask: Ask) -> Result:
        def make(count: int, step: int) -> Request:
            return self.request(studio, draw, count, step)

        passage = self.passage(draw)
        found = await ask_samples(ask, make, draw.wanted, ["question"], _FORM)
        result = Result(rejects=shortfall(found, draw.wanted, make(draw.wanted, 0)))
        for sample, request, reply in found.samples:
            prompt = opening(None, sample["question"].strip())
            said = replace(reply, content=sample["answer"].strip(), reasoning_content=None, finish_reason="stop")
            judged = Judged(request, said, [], [reply.id])
            answered = await studio.check(ask, prompt, None, judged)
            answered = answered.refused(*check_sample(sample, passage.text))
            source = {"file": passage.file, "passage": passage.number, "quote": sample["quote"]}
            add(result, answered, [], kind=draw.kind, source=source)
        return result


def check_sample(sample: dict, passage: str) -> list[Reason]:
    """Whether a question stands alone and its quote stands in the passage; case, blanks and punctuation aside."""
    reasons = []
    quote = _words(sample["quote"])
    if len(quote) < _LEAST and len(sample["quote"]) < 8 * _LEAST:
        reasons.append(Reason("quote", "the quote is too short to bear anything out"))
    elif f" {' '.join(quote)} " not in f" {' '.join(_words(passage))} ":
        reasons.append(Reason("quote", "the quote does not stand in the passage"))
    if _LEANS.search(sample["question"]) or _LEANS.search(sample["answer"]):
        reasons.append(Reason("leans-on-passage", "it speaks of a passage that its reader does not see"))
    return reasons


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", fold(text))
