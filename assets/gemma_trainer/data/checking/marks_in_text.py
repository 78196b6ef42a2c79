"""Control tokens that stand in text: the tokenizer does not know that they were meant as text."""

from __future__ import annotations

import re
from functools import lru_cache

from gemma_trainer.families.catalogue import FAMILIES
from gemma_trainer.families.family import Family

SPECIAL = frozenset({"<pad>", "<unk>", "<mask>"})  # in the vocabulary, but they open and close nothing
_AMBIGUOUS = SPECIAL | {"<escape>", '<|"|>', "<bos>", "<eos>"}  # too common or too short to tell another family by
_ALL = frozenset(token for family in FAMILIES.values() for token in family.control_tokens)
_RESERVED = r"<unused\d{1,4}>"  # in every vocabulary, without a meaning
_ANY = re.compile("|".join([*(re.escape(token) for token in sorted(_ALL, key=len, reverse=True)), _RESERVED]))

# Turn marks and tool calls of other models' formats, as structure rather than as a word in passing.
FOREIGN = (
    ("ChatML", re.compile(r"<\|im_start\|>\s*(?:system|user|assistant|tool)\b")),
    ("Llama 3", re.compile(r"<\|start_header_id\|>\s*\w+\s*<\|end_header_id\|>|<\|begin_of_text\|>")),
    ("Llama 2 or Mistral", re.compile(r"\[INST\][^\[]{1,2000}\[/INST\]")),
    ("gpt-oss", re.compile(r"<\|channel\|>\s*\w+\s*<\|message\|>")),
    ("Phi or Zephyr", re.compile(r"<\|(?:user|assistant)\|>\s")),
    ("Hermes or Qwen", re.compile(r"<tool_call>\s*[{<]|<function=\w")),
    ("Mistral", re.compile(r"\[TOOL_CALLS\]\s*\[")),
)
_FOREIGN_STARTS = ("<|", "[INST]", "<tool_call>", "<function=", "[TOOL_CALLS]")

# What ends a turn in other models' formats; `</s>` also closes a tag of HTML.
_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>", "<|end|>", "</s>")
_GEMMA_ENDS = frozenset(family.turn_end for family in FAMILIES.values())
# Parts as Gemma 1 and 2 print them, and as str() writes them into a table.
PRINTED_PARTS = re.compile(r"\s*\[\s*\{'type': '(?:text|image|image_url|audio|video)'[,}]")
THINKS = ("<think", "</think")
# A text with none of these has nothing that a check or a repair of texts could find.
WATCHED = ("\0", "\ufffd", "{'type': '", "<unused", *THINKS, *_FOREIGN_STARTS, *_ENDS, *sorted(_ALL))


def ending(text: str, family: Family) -> str | None:
    """The mark with which a text ends a turn, of this family or another model; the template writes its own."""
    bare = text.rstrip()
    ends = (family.turn_end, family.eos, *_GEMMA_ENDS, *_ENDS)
    end = next((end for end in ends if bare.endswith(end)), None)
    return None if end == "</s>" and "<s>" in text else end


def tokens_in(text: str) -> list[str]:
    """Control tokens of any family in a text, in order."""
    return _ANY.findall(text) if "<" in text else []


def is_special(token: str, family: Family) -> bool:
    """Whether a token of `tokens_in` is one that opens and closes nothing."""
    return token.startswith("<unused") or (token in SPECIAL and token in family.control_tokens)


def foreign_format(text: str) -> str | None:
    """The name of another model's chat format whose turn marks stand in the text."""
    if not any(start in text for start in _FOREIGN_STARTS):
        return None
    return next((name for name, pattern in FOREIGN if pattern.search(text)), None)


@lru_cache(maxsize=16)
def foreign_tokens(family: Family) -> frozenset[str]:
    return _ALL - family.control_tokens - _AMBIGUOUS


def owners(token: str) -> str:
    """The families that know a token, for people."""
    return ", ".join(family.title for family in FAMILIES.values() if token in family.control_tokens)
