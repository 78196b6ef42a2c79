"""Rendered text as token ids and a loss mask, with the `tokenizers` package alone."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from gemma_trainer.data.render import Rendered, assemble
from gemma_trainer.families.family import Piece
from gemma_trainer.rows.problems import USAGE, Failure, missing


class Encoded(NamedTuple):
    """Token ids and, of the same length, 1 where the token carries loss."""

    ids: list[int]
    mask: list[int]


class RowTokenizer:
    """A fast tokenizer that adds nothing of its own: the template has written <bos>.

    A token carries loss when its first character is trained. Turn marks are tokens of their own, so no token
    crosses from a prompt into an answer except where a template glues text to text.
    """

    def __init__(self, tokenizer):
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.backend = tokenizer
        self.bos_id: int | None = tokenizer.token_to_id("<bos>")
        self.file: Path | None = None  # what it was read from

    @classmethod
    def from_dir(cls, path: str | Path) -> RowTokenizer:
        """From a folder with tokenizer.json, or that file. Raises Failure."""
        file = Path(path)
        file = file / "tokenizer.json" if file.is_dir() else file
        if not file.is_file():
            raise Failure(USAGE, "tokenizer-not-found", f"{path} has no tokenizer.json", file=str(path))
        library = _tokenizers()
        try:
            made = cls(library.Tokenizer.from_file(str(file)))
        except Exception as error:  # the library raises bare Exception
            text = f"{file}: {str(error).splitlines()[0][:200]}"
            raise Failure(USAGE, "tokenizer-unreadable", text, file=str(file)) from None
        made.file = file
        return made

    def encode(self, rendered: Rendered) -> Encoded:
        return self._masked(self.backend.encode(rendered.text, add_special_tokens=False), rendered)

    def encode_pieces(self, pieces: list[Piece]) -> Encoded:
        return self.encode(assemble(pieces))

    def encode_batch(self, rows: list[Rendered]) -> list[Encoded]:
        """As `encode`, over all cores. The library's fast variant keeps no offsets: no mask."""
        encodings = self.backend.encode_batch([row.text for row in rows], add_special_tokens=False)
        return [self._masked(encoding, row) for encoding, row in zip(encodings, rows, strict=True)]

    def count(self, text: str) -> int:
        """Number of tokens of a text, exact."""
        return self.count_batch([text])[0]

    def count_batch(self, texts: list[str]) -> list[int]:
        return [len(e.ids) for e in self.backend.encode_batch_fast(texts, add_special_tokens=False)]

    @property
    def adds_bos(self) -> bool:
        """Whether the tokenizer, asked for special tokens, would put a second <bos> before rendered text."""
        return self.bos_id is not None and self.backend.encode("a").ids[:1] == [self.bos_id]

    def _masked(self, encoding, rendered: Rendered) -> Encoded:
        ids, mask = encoding.ids, mask_of(encoding.offsets, rendered.spans)
        if self.bos_id is None:
            return Encoded(ids, mask)
        count = next((at for at, token in enumerate(ids) if token != self.bos_id), len(ids))
        return Encoded([self.bos_id, *ids[count:]], [0, *mask[count:]])


def mask_of(offsets: list[tuple[int, int]], spans) -> list[int]:
    """1 for each token, told by its characters, that begins in a trained span."""
    mask = [0] * len(offsets)
    spans = iter(spans)
    span = next(spans, None)
    for at, (start, _) in enumerate(offsets):
        while span is not None and start >= span[1]:
            span = next(spans, None)
        if span is None:
            break
        if start >= span[0]:
            mask[at] = 1
    return mask


def _tokenizers():
    try:
        import tokenizers
    except ImportError:
        raise missing("tokenizers", "exact token counts and masks") from None
    return tokenizers
