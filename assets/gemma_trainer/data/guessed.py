"""A stand-in for a tokenizer that is not here: pieces of text about as long as Gemma's tokens, for lengths only."""

from __future__ import annotations

import re
from zlib import crc32

from gemma_trainer.data.encode import Encoded, RowTokenizer, mask_of
from gemma_trainer.data.lengths import WIDE
from gemma_trainer.data.render import Rendered

# Marks, line ends, digits one by one, words of Latin letters, signs; Chinese characters one by one; of other scripts a few at
# a time. tests/test_guessed.py compares with the real tokenizer.
_LATIN = r"A-Za-z\u00c0-\u024f"
_PIECE = re.compile(
    rf"<\|?[a-z_]+\|?>|\n+|\d| ?[{_LATIN}]{{1,7}}| ?[!-/:-@\[-`{{-~]{{1,2}}| +|\s|[\u4e00-\u9fff]|[{WIDE}]{{1,2}}"
    rf"| ?[^\x00-\x7f\s{_LATIN}{WIDE}]{{1,6}}|."
)


class GuessedTokenizer(RowTokenizer):
    """Ids tell pieces apart and mean nothing else."""

    def __init__(self):
        self.bos_id = None
        self.file = None

    def encode(self, rendered: Rendered) -> Encoded:
        pieces = list(_PIECE.finditer(rendered.text))
        ids = [crc32(piece[0].encode("utf-8", "surrogatepass")) for piece in pieces]
        return Encoded(ids, mask_of([piece.span() for piece in pieces], rendered.spans))

    def encode_batch(self, rows: list[Rendered]) -> list[Encoded]:
        return [self.encode(row) for row in rows]

    def count_batch(self, texts: list[str]) -> list[int]:
        return [len(_PIECE.findall(text)) for text in texts]

    @property
    def adds_bos(self) -> bool:
        return False
