"""Whether an answer is in the language that was asked for. What is short or unclear passes."""

from __future__ import annotations

import re
from collections import Counter

from gemma_trainer.data.stats import script_of
from gemma_trainer.rows.problems import USAGE, Failure, missing

_CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`|https?://\S+", re.DOTALL)
_SHORT, _SHORTER = 40, 12  # letters, to judge by words and by script
_SURE = 1.0  # by how much another language is likelier, in nats a letter
_LETTERS = {  # scripts of stats.script_of, and the languages that are written in them
    ("Han",): "zh",
    ("Han", "Kana"): "ja",
    ("Hangul", "Han"): "ko",
    ("Greek",): "el",
    ("Hebrew",): "he",
    ("Thai",): "th",
    ("Cyrillic",): "ru uk be bg mk kk ky mn",
    ("Cyrillic", "Latin"): "sr bs uz",
    ("Arabic",): "ar fa ur ps ug",
    ("Devanagari",): "hi mr ne",
    ("other",): "am as bn gu hy ka km kn lo ml or pa si ta te dz",
}
_SCRIPTS = {language: scripts for scripts, languages in _LETTERS.items() for language in languages.split()}


def check_language(language: str) -> None:
    """Raises Failure: exit 2 for a language that is not known, exit 4 where py3langid is not installed."""
    known = _scores("")
    if language not in known:
        text = f"--language takes codes such as en, de, zh; `{language}` is none of {len(known)} known ones"
        raise Failure(USAGE, "usage", text)


def wrong_language(text: str, language: str) -> str | None:
    """What the text is written in instead of `language` (ISO 639-1), or None."""
    text = _CODE.sub(" ", text)
    letters = sum(map(str.isalpha, text))
    if letters < _SHORTER:
        return None
    scripts = Counter(filter(None, map(script_of, text)))
    wanted = _SCRIPTS.get(language, ("Latin",))
    if 2 * sum(scripts[script] for script in wanted) < letters:
        return f"{scripts.most_common(1)[0][0]} letters"
    if letters < _SHORT:
        return None
    scores = _scores(text)
    best = max(scores, key=scores.__getitem__)
    return best if scores[best] - scores[language] > _SURE * letters else None


def _scores(text: str) -> dict[str, float]:
    """{language: log-likelihood}."""
    try:
        import py3langid
    except ImportError:
        raise missing("py3langid", "--language", extra="distill") from None
    return {language: float(score) for language, score in py3langid.rank(text)}
