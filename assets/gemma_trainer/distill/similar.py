"""Texts that say almost the same as an earlier one: MinHash over pieces of five characters."""

from __future__ import annotations

import re
from collections.abc import Callable

from gemma_trainer.rows.content import fold
from gemma_trainer.rows.problems import missing

_PIECE = 5  # characters
_HASHES = 128
_SEED = 42
_BANDS = ((0.8, 16), (0.0, 32))  # (from this threshold on, bands): more bands miss fewer and compare more


class Similar:
    """Texts in the order they are added; `threshold` is the share of common pieces (Jaccard) above 0, up to 1."""

    def __init__(self, threshold: float):
        try:
            import rensa
        except ImportError:
            raise missing("rensa", "the search for near-duplicates", extra="distill") from None
        self.threshold, self.rensa = threshold, rensa
        bands = next(bands for least, bands in _BANDS if threshold >= least)
        self.index = rensa.RMinHashLSH(threshold, _HASHES, bands)
        self.prints: list = []
        self.keys: list = []

    def add(
        self, text: str, key: object, same: Callable[[object], bool] = lambda key: True
    ) -> tuple[object, float] | None:
        """(key, similarity) of the nearest earlier text, if its key is the `same`; else the text is added, and None."""
        mine = self._print(text)
        if (found := self._nearest(mine)) and same(found[0]):
            return found
        self.index.insert(len(self.prints), mine)
        self.prints.append(mine)
        self.keys.append(key)
        return None

    def _nearest(self, mine) -> tuple[object, float] | None:
        near = [(mine.jaccard(self.prints[at]), -at) for at in self.index.query(mine)]
        if not near:
            return None
        similarity, at = max(near)
        return (self.keys[-at], similarity) if similarity >= self.threshold else None

    def _print(self, text: str):
        made = self.rensa.RMinHash(_HASHES, _SEED)
        made.update(pieces(text))
        return made


def pieces(text: str) -> list[str]:
    """What a text consists of: runs of five characters of its words, case and punctuation aside."""
    bare = " ".join(re.findall(r"\w+", fold(text)))
    return sorted({bare[at : at + _PIECE] for at in range(max(1, len(bare) - _PIECE + 1))})
