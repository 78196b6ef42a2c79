"""Exact token counts without encoding whole texts.

In Gemma's vocabularies no token but `>▁</` reaches from text into the blank behind it, and none into or out of a run of
line breaks. So a text may be cut there, each distinct piece is encoded once, and its count is kept. A tokenizer for
which that does not hold, and a text that holds one of the few exceptions, are encoded whole.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gemma_trainer.data.encode import RowTokenizer
from gemma_trainer.families.family import Family, Piece

_KEPT = 1 << 17  # pieces
_LONGEST_MARKUP = 24  # characters of a turn mark and its header
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

    @classmethod
    def of(cls, mask: list[int]) -> Size:
        """From a loss mask, 1 for a token that carries loss."""
        return cls(len(mask), sum(mask), mask.index(1) if 1 in mask else len(mask))


class PieceCounter:
    """Sizes of rendered rows, equal to what the tokenizer gives for the whole text."""

    def __init__(self, tokenizer: RowTokenizer, family: Family):
        self.tokenizer = tokenizer
        known = tokenizer.backend.token_to_id
        self.marks = tuple(sorted(token for token in family.control_tokens if known(token) is not None))
        self.exact = _follows_rule(tokenizer)
        self._pieces = _Pieces(tokenizer.backend)
        self._markup: dict[str, int] = {}  # turn marks and headers, as the renderer writes them
        self._recent: dict[str, int] = {}  # texts of the rows at hand: both answers of a pair share their prompt

    def count_ahead(self, texts: Iterable[str]) -> None:
        """Count texts that the next rows are likely to hold, all new pieces in one go; forget those of earlier rows."""
        new = [text for text in texts if text] if self.exact else []
        self._recent = dict(zip(new, self._pieces.count(new), strict=True))

    def size(self, pieces: list[Piece]) -> Size:
        """The size of one rendered sequence."""
        if not self.exact or not self._count_new([piece[0] for piece in pieces]):
            return self._encoded(pieces)
        tokens = trained = 0
        before = None
        markup, recent = self._markup, self._recent
        for text, _, is_trained in pieces:
            count = markup.get(text)
            if count is None:
                count = recent[text]
            if is_trained:
                before = tokens if before is None else before
                trained += count
            tokens += count
        lacks_bos = self.tokenizer.bos_id is not None and not (pieces and pieces[0].text.startswith("<bos>"))
        return Size(tokens + lacks_bos, trained, (tokens if before is None else before) + lacks_bos)

    def _count_new(self, texts: list[str]) -> bool:
        """Count the texts that are not yet; False when a token may reach over the border of two."""
        markup, recent, left, new = self._markup, self._recent, "", []
        for text in texts:
            if text:
                if left and not self._is_border(left, text):
                    return False
                left = text
            if text not in markup and text not in recent:
                new.append(text)
        for text, count in zip(new, self._pieces.count(new), strict=True):
            keep = len(text) < _LONGEST_MARKUP and text.startswith(self.marks) and len(markup) < 1000
            (markup if keep else recent)[text] = count
        return True

    def _is_border(self, left: str, right: str) -> bool:
        """Whether no token can hold the end of one text and the start of the next."""
        last, first = left[-1], right[:1]
        if last == "\n" or first == "\n":
            return last != first
        if first == " ":
            return last != " " and not (last == ">" and right.startswith(" </"))
        return (
            (last == ">" and left.endswith(self.marks)) or (first == "<" and right.startswith(self.marks)) or not first
        )

    def _encoded(self, pieces: list[Piece]) -> Size:
        return Size.of(self.tokenizer.encode_pieces(pieces).mask)


class _Pieces(dict):
    """{piece: tokens}. A piece that does not begin with a line break stands for itself behind a blank."""

    def __init__(self, backend):
        super().__init__()
        self.backend = backend
        self.line_break = self._ids("\n")
        self.breaks = {"\n": len(self.line_break)}  # {run of line breaks: tokens}
        self.new: list[str] = []  # pieces that were looked up and are not known

    def __missing__(self, piece: str) -> int:
        self.new.append(piece)
        return 0

    def count(self, texts: list[str]) -> list[int]:
        """Tokens of each text, all of which begin at borders."""
        lookup, new, counts, later = self.__getitem__, self.new, [], []
        for at, text in enumerate(texts):
            pieces = _cut(text)
            if pieces is None:
                counts.append(len(self._ids(text)))
                continue
            counts.append(sum(map(lookup, pieces)) - (text[:1] != "\n"))
            if new:
                later.append((at, new.copy()))
                new.clear()
        if later:
            self._learn({piece for _, pieces in later for piece in pieces})
            for at, pieces in later:
                counts[at] += sum(map(lookup, pieces))
        return counts

    def _learn(self, pieces: set[str]) -> None:
        """Encode new pieces, all in one text with a line break before each, which no token reaches over."""
        if len(self) + len(pieces) > _KEPT:  # what was learned first is what is common
            for piece in list(self)[_KEPT // 2 :]:
                del self[piece]
        rests = {piece: piece.lstrip("\n") if piece[:1] == "\n" else " " + piece for piece in pieces}
        ids = self._ids("".join(["\n" + rest for rest in rests.values() if rest]))
        counts = iter(_runs(ids, self.line_break[0]) if len(self.line_break) == 1 else ())
        known = len(self.line_break) == 1 and ids.count(self.line_break[0]) == sum(map(bool, rests.values()))
        for piece, rest in rests.items():
            run = len(piece) - len(rest) if piece[:1] == "\n" else 0
            said = (next(counts) if known else len(self._ids(rest))) if rest else 0
            self[piece] = said + (self._break(run) if run else 0)

    def _break(self, size: int) -> int:
        run = "\n" * size
        if run not in self.breaks:
            self.breaks[run] = len(self._ids(run))
        return self.breaks[run]

    def _ids(self, text: str) -> list[int]:
        return self.backend.encode(text, add_special_tokens=False).ids


def _cut(text: str) -> list[str] | None:
    """The pieces of a text, the first behind a line break that is put there if need be; None where it must stay whole."""
    if _BLANK in text or "> </" in text:
        return None
    opened = text if text[:1] == "\n" else "\n" + text
    marked = opened.replace("\n", " \n")
    while "\n \n" in marked:
        marked = marked.replace("\n \n", "\n\n")
    if "  " in marked:
        return [piece.removeprefix(" ") for piece in _PIECES.findall(opened)]
    return marked[1:].split(" ")


def _runs(ids: list[int], border: int) -> Iterator[int]:
    """How many tokens follow each border."""
    size = -1
    for token in ids:
        if token == border:
            if size >= 0:
                yield size
            size = 0
        else:
            size += 1
    yield size


def _follows_rule(tokenizer: RowTokenizer) -> bool:
    if tokenizer.file is not None and hashlib.sha256(tokenizer.file.read_bytes()).hexdigest() in _KNOWN:
        return True
    vocabulary = tokenizer.backend.get_vocab(with_added_tokens=True)
    return not any(_REACHES.search(token) and token not in _EXCEPTIONS for token in vocabulary)
