"""Exact token counts without encoding whole texts.

In Gemma's vocabularies no token but `>▁</` reaches from text into the blank behind it, and none into or out of a run of
line breaks. So a text may be cut there, each distinct piece is encoded once, and its count is kept. A tokenizer for
which that does not hold, and a text that holds one of the few exceptions, are encoded whole.
"""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

from gemma_trainer.data.encode import RowTokenizer
from gemma_trainer.families.family import Family, Piece

_KEPT = 1 << 17  # pieces
_LONGEST = 64  # characters of a piece that is kept; longer ones hardly come again
_BLANK = "\u2581"  # what the vocabulary writes for a blank
_PIECES = re.compile(r"\n+[^ \n]*| +[^ \n]*")
_REACHES = re.compile(f"[^{_BLANK}]{_BLANK}|\n[^\n]|[^\n]\n")
# SHA-256 of tokenizer.json of Gemma 3 and Gemma 4, whose vocabularies were looked through.
_KNOWN = frozenset(
    {
        "4667f2089529e8e7657cfb6d1c19910ae71ff5f28aa7ab2ff2763330affad795",
        "cc8d3a0ce36466ccc1278bf987df5f71db1719b9ca6b4118264f45cb627bfe0f",
    }
)
_EXCEPTIONS = frozenset({f">{_BLANK}</"})


class Size(NamedTuple):
    """Tokens of a rendered row: all, those that carry loss, and those before the first of them."""

    tokens: int
    trained: int
    before: int


class PieceCounter:
    """Sizes of rendered rows, equal to what the tokenizer gives for the whole text."""

    def __init__(self, tokenizer: RowTokenizer, family: Family):
        self.tokenizer = tokenizer
        known = tokenizer.backend.token_to_id
        self.marks = tuple(sorted(token for token in family.control_tokens if known(token) is not None))
        self.exact = _follows_rule(tokenizer)
        self._pieces = _Pieces(tokenizer.backend)
        self._markup: dict[str, int] = {}  # turn marks and headers, as the renderer writes them
        self._recent: dict[str, int] = {}  # texts of the row at hand: both answers of a pair share their prompt

    def begin_row(self) -> None:
        self._recent.clear()

    def size(self, pieces: list[Piece]) -> Size:
        """The size of one rendered sequence."""
        if not self.exact:
            return self._encoded(pieces)
        tokens = trained = 0
        before = None
        left = ""
        for text, _, is_trained in pieces:
            count = self._markup.get(text)
            if count is None:
                count = self._count(text)
            if left and not self._is_border(left, text):
                return self._encoded(pieces)
            if is_trained:
                before = tokens if before is None else before
                trained += count
            tokens += count
            left = text or left
        lacks_bos = self.tokenizer.bos_id is not None and not (pieces and pieces[0].text.startswith("<bos>"))
        return Size(tokens + lacks_bos, trained, (tokens if before is None else before) + lacks_bos)

    def _is_border(self, left: str, right: str) -> bool:
        """Whether no token can hold the end of one text and the start of the next."""
        last, first = left[-1], right[:1]
        if last == "\n" or first == "\n":
            return last != first
        if first == " ":
            return last != " " and not (last == ">" and right.startswith(" </"))
        return (last == ">" and left.endswith(self.marks)) or (first == "<" and right.startswith(self.marks)) or not first

    def _count(self, text: str) -> int:
        count = self._recent.get(text)
        if count is None:
            count = self._recent[text] = self._pieces.count(text)
            if len(text) < 24 and text.startswith(self.marks) and len(self._markup) < 1000:
                self._markup[text] = count
        return count

    def _encoded(self, pieces: list[Piece]) -> Size:
        mask = self.tokenizer.encode_pieces(pieces).mask
        return Size(len(mask), sum(mask), mask.index(1) if 1 in mask else len(mask))


class _Pieces(dict):
    """{piece: tokens}. A piece that does not begin with a line break stands for itself behind a blank."""

    def __init__(self, backend):
        super().__init__()
        self.backend = backend

    def __missing__(self, piece: str) -> int:
        tokens = self._encode(piece if piece[:1] == "\n" else " " + piece)
        if len(piece) <= _LONGEST:
            if len(self) >= _KEPT:
                self.clear()
            self[piece] = tokens
        return tokens

    def count(self, text: str) -> int:
        """Tokens of a text that begins at a border."""
        if _BLANK in text or "> </" in text:
            return self._encode(text)
        if not text:
            return 0
        opened = text[0] != "\n"  # a line break in front is a token of its own
        marked = ("\n" + text if opened else text).replace("\n", " \n")
        while "\n \n" in marked:
            marked = marked.replace("\n \n", "\n\n")
        if "  " in marked:
            found = [piece.removeprefix(" ") for piece in _PIECES.findall("\n" + text if opened else text)]
        else:
            found = marked[1:].split(" ")
        return sum(map(self.__getitem__, found)) - opened

    def _encode(self, text: str) -> int:
        return len(self.backend.encode(text, add_special_tokens=False).ids)


def _follows_rule(tokenizer: RowTokenizer) -> bool:
    if tokenizer.file is not None:
        if hashlib.sha256(tokenizer.file.read_bytes()).hexdigest() in _KNOWN:
            return True
    vocabulary = tokenizer.backend.get_vocab(with_added_tokens=True)
    return not any(_REACHES.search(token) and token not in _EXCEPTIONS for token in vocabulary)
