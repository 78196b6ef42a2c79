"""The real Gemma tokenizers, built from a package that carries Gemma 3's; hash-checked, never part of this repository.

Gemma 4's tokenizer.json is Gemma 3's with 19 renamed control tokens, the other `<unusedN>` numbered anew, 24 added tokens
in place of 6,415, and a post-processor that adds no `<bos>`. The hashes are those of the official files.
"""

from __future__ import annotations

import json
import re
from hashlib import sha256
from pathlib import Path

from official_templates import official

GEMMA3 = "4667f2089529e8e7657cfb6d1c19910ae71ff5f28aa7ab2ff2763330affad795"
GEMMA4 = "cc8d3a0ce36466ccc1278bf987df5f71db1719b9ca6b4118264f45cb627bfe0f"
RENAMED = {
    **{46: "<|tool>", 47: "<tool|>", 48: "<|tool_call>", 49: "<tool_call|>"},
    **{50: "<|tool_response>", 51: "<tool_response|>", 52: '<|"|>', 98: "<|think|>"},
    **{100: "<|channel>", 101: "<channel|>", 105: "<|turn>", 106: "<turn|>"},
    **{255999: "<|image>", 256000: "<|audio>", 258880: "<|image|>", 258881: "<|audio|>"},
    **{258882: "<image|>", 258883: "<audio|>", 258884: "<|video|>"},
}
FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}


def gemma4_tokenizer(gemma3: dict) -> str:
    """The text of Gemma 4's tokenizer.json."""
    names = sorted(gemma3["model"]["vocab"], key=gemma3["model"]["vocab"].__getitem__)
    unused = iter(range(len(names)))
    vocab = {}
    for number, name in enumerate(names):
        if number in RENAMED:
            name = RENAMED[number]
        elif re.fullmatch(r"<unused\d+>", name):
            name = f"<unused{next(unused)}>"
        vocab[name] = number
    added = [*enumerate(names[:5]), *sorted(RENAMED.items())]
    sides = [{"Sequence": {"id": side, "type_id": number}} for number, side in enumerate("AB")]
    changed = {
        "added_tokens": [{"id": number, "content": name, **FLAGS} for number, name in added],
        "post_processor": {"type": "TemplateProcessing", "single": sides[:1], "pair": sides, "special_tokens": {}},
        "model": {**gemma3["model"], "vocab": vocab},
    }
    return json.dumps({**gemma3, **changed}, indent=2, ensure_ascii=False)


def build(source: Path, out: Path) -> Path:
    """Folders gemma3, gemma4 and gemma4_large below `out`, each with tokenizer and template."""
    raw = source.read_bytes()
    assert sha256(raw).hexdigest() == GEMMA3, f"{source} is not Gemma 3's tokenizer.json"
    gemma4 = gemma4_tokenizer(json.loads(raw)).encode()
    assert sha256(gemma4).hexdigest() == GEMMA4
    common = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}
    common |= {"clean_up_tokenization_spaces": False, "tokenizer_class": "GemmaTokenizer"}
    for name, text, family in (
        ("gemma3", raw, "gemma3"),
        ("gemma4", gemma4, "gemma4"),
        ("gemma4_large", gemma4, "gemma4-large"),
    ):
        folder = out / name
        folder.mkdir()
        (folder / "tokenizer.json").write_bytes(text)
        (folder / "tokenizer_config.json").write_text(json.dumps(common))
        (folder / "chat_template.jinja").write_text(official(family).source, "utf-8")
    return out
