"""Control tokens that stand in text: the tokenizer does not know that they were meant as text."""

from __future__ import annotations

import re
from functools import lru_cache

from gemma_trainer.families.catalogue import FAMILIES
from gemma_trainer.families.family import Family

SPECIAL = frozenset({"<pad>", "<unk>", "<mask>"})  # in the vocabulary, but they open and close nothing
_AMBIGUOUS = SPECIAL | {"<escape>", '<|"|>', "<bos>", "<eos>"}  # too common or too short to tell another family by
_ALL = frozenset(token for family in FAMILIES.values() for token in family.control_tokens)
_ANY = re.compile("|".join(re.escape(token) for token in sorted(_ALL, key=len, reverse=True)))

# Turn marks of other models' formats, as structure rather than as a word in passing.
FOREIGN = (
    ("ChatML", re.compile(r"<\|im_start\|>\s*(?:system|user|assistant|tool)\b")),
    ("Llama 3", re.compile(r"<\|start_header_id\|>\s*\w+\s*<\|end_header_id\|>|<\|begin_of_text\|>")),
    ("Llama 2 or Mistral", re.compile(r"\[INST\][^\[]{1,2000}\[/INST\]")),
    ("gpt-oss", re.compile(r"<\|channel\|>\s*\w+\s*<\|message\|>")),
    ("Phi or Zephyr", re.compile(r"<\|(?:user|assistant)\|>\s")),
)


# What ends a turn in other models' formats; `</s>` also closes a tag of HTML.
_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>", "<|end|>", "</s>")
_GEMMA_ENDS = frozenset(family.turn_end for family in FAMILIES.values())


def ending(text: str, family: Family) -> str | None:
    """The mark with which a text ends a turn, of this family or another model; the template writes its own."""
    bare = text.rstrip()
    ends = (family.turn_end, family.eos, *_GEMMA_ENDS, *_ENDS)
    end = next((end for end in ends if bare.endswith(end)), None)
    return None if end == "</s>" and "<s>" in text else end


def tokens_in(text: str) -> list[str]:
    """Control tokens of any family in a text, in order."""
    return _ANY.findall(text) if "<" in text else []


def foreign_format(text: str) -> str | None:
    """The name of another model's chat format whose turn marks stand in the text."""
    if "<|" not in text and "[INST]" not in text:
        return None
    return next((name for name, pattern in FOREIGN if pattern.search(text)), None)


@lru_cache(maxsize=16)
def foreign_tokens(family: Family) -> frozenset[str]:
    return _ALL - family.control_tokens - _AMBIGUOUS


def owners(token: str) -> str:
    """The families that know a token, for people."""
    return ", ".join(family.title for family in FAMILIES.values() if token in family.control_tokens)
