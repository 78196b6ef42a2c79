"""The best and the worst of several answers to one prompt."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from gemma_trainer.distill.judge import Judge
from gemma_trainer.distill.verify import Verifier
from gemma_trainer.distill.work import Ask
from gemma_trainer.rows.content import fold, text_of

METHODS = ("reward", "judge", "verifier", "majority")


class Ranking(NamedTuple):
    """`best` and `worst` are indices of the answers, None where none stands out; `scores` are None for judge."""

    best: int | None
    worst: int | None
    scores: list[float | None] | None = None
    ids: tuple[str, ...] = ()  # of requests to a judge
    why: str = ""  # there is no best one
    word: str = ""  # the reason as rejects are counted by

    @property
    def margin(self) -> float | None:
        """By how much the best beats the worst, in the units of the scores."""
        if self.scores is None or self.best is None or self.worst is None:
            return None
        return round(self.scores[self.best] - self.scores[self.worst], 6)


class Ranker(Protocol):
    async def rank(self, ask: Ask, row: dict, answers: list[dict]) -> Ranking:
        """`row` is the prompt row with its other columns, `answers` are assistant messages. Ties go to the first."""
        ...


@dataclass
class ByReward:
    """By a reward model of rm_train.py."""

    model: Any  # a models.reward.RewardModel
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def rank(self, ask: Ask, row: dict, answers: list[dict]) -> Ranking:
        shared = {key: row[key] for key in ("tools", "chat_template_kwargs") if row.get(key)}
        whole = [{"messages": [*row["prompt"], answer], **shared} for answer in answers]
        async with self.lock:  # one batch at a time on the device
            return by_scores(await asyncio.to_thread(self.model.score, whole))


@dataclass
class ByVerifier:
    """By the user's function; answers on which it fails come last and never win."""

    verifier: Verifier

    async def rank(self, ask: Ask, row: dict, answers: list[dict]) -> Ranking:
        found = [await self.verifier.score(text_of(answer.get("content")), row) for answer in answers]
        ranking = by_scores([score for score, _ in found])
        if ranking.best is not None and found[ranking.best][0] > 0:
            return ranking
        why = next((fault for _, fault in found if fault), "the verifier gave 0 to every answer")
        return ranking._replace(best=None, why=why, word="verifier-failed")


@dataclass
class ByJudge:
    """By a judge's verdict on pairs, in both orders: the winner meets the next one."""

    judge: Judge

    async def rank(self, ask: Ask, row: dict, answers: list[dict]) -> Ranking:
        best, best_ids = await self._last_standing(ask, row["prompt"], answers, "second")
        worst, worst_ids = await self._last_standing(ask, row["prompt"], answers, "first")
        return Ranking(best, worst if worst != best else None, ids=(*best_ids, *worst_ids))

    async def _last_standing(self, ask: Ask, prompt: list[dict], answers: list[dict], wins: str):
        """The answer that no later one takes the place of; a later one does where the verdict is `wins`."""
        standing, ids = 0, []
        for at in range(1, len(answers)):
            verdict, more = await self.judge.compare(ask, prompt, answers[standing], answers[at])
            ids += more
            if verdict == wins:
                standing = at
        return standing, ids


class ByMajority:
    """By what most answers end with: the first answer of the majority is the best, the first other one the worst."""

    async def rank(self, ask: Ask, row: dict, answers: list[dict]) -> Ranking:
        finals = [final_answer(text_of(answer.get("content"))) for answer in answers]
        counts = Counter(finals).most_common(2)
        if counts[0][1] == 1 < len(answers) or (len(counts) > 1 and counts[0][1] == counts[1][1]):
            return Ranking(None, None, why="no final answer is given by most", word="no-majority")
        votes = [float(finals.count(final)) for final in finals]
        return by_scores(votes)


def by_scores(scores: list[float | None]) -> Ranking:
    """Highest and lowest; no worst where all are alike."""
    known = [(score, at) for at, score in enumerate(scores) if score is not None]
    if not known:
        return Ranking(None, None, list(scores))
    high, low = max(score for score, _ in known), min(score for score, _ in known)
    best = next(at for score, at in known if score == high)
    worst = next(at for score, at in known if score == low) if low < high else None
    return Ranking(best, worst, list(scores))


_BOXED = re.compile(r"\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)\}")
_HASHES = re.compile(r"^\s*####\s*(.+?)\s*$", re.MULTILINE)
_STATED = re.compile(
    r"\b(?:final answer|answer|result|antwort|ergebnis|réponse|respuesta)(?: is|:| =| est| es| lautet)+"
    r"\s*:?\s*(.+?)(?:\.(?:\s|$)|\n|$)",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"-?\d+(?:[.,]\d+)*(?:\s*/\s*\d+)?")


def final_answer(text: str) -> str:
    """What a text ends with, in a form that can be compared: boxed or stated, the last number, the last line."""
    for pattern in (_BOXED, _HASHES, _STATED):
        if found := pattern.findall(text):
            return _normal(found[-1])
    if numbers := _NUMBER.findall(text):
        return _normal(numbers[-1])
    lines = [line for line in text.splitlines() if line.strip()]
    return _normal(lines[-1]) if lines else ""


def _normal(answer: str) -> str:
    bare = fold(re.sub(r"\\text\{([^{}]*)\}|[*_`$\\]", lambda found: found[1] or "", answer)).strip(" .,;:!\"'()")
    number = re.sub(r"(?<=\d),(?=\d{3}\b)|\s", "", bare).strip("€£%")
    try:
        return f"{float(number):.9g}"
    except ValueError:
        return bare
