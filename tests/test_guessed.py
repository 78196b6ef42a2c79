"""Guessed lengths: near the real tokenizer's, and masks on what the assistant says."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemma_trainer.data.encode import RowTokenizer
from gemma_trainer.data.guessed import GuessedTokenizer
from gemma_trainer.data.model import describe_released
from gemma_trainer.data.render import Rendered, Span
from gemma_trainer.plan.size import size_of

ROOT = Path(__file__).parents[1]
TEXTS = {
    "english": (ROOT / "references" / "distillation.md").read_text("utf-8"),
    "code": (ROOT / "assets" / "gemma_trainer" / "plan" / "fit.py").read_text("utf-8"),
    "handbook": (ROOT / "assets" / "examples" / "prompts" / "handbook.md").read_text("utf-8"),
}
OTHERS = [
    "Die Würde des Menschen ist unantastbar. Sie zu achten und zu schützen ist Verpflichtung aller staatlichen Gewalt.",
    "人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心，并应以兄弟关系的精神相对待。",
    "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。",
    "Все люди рождаются свободными и равными в своем достоинстве и правах.",
    "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है।",
]


@pytest.mark.parametrize("name", TEXTS)
def test_english_and_code_are_guessed_within_a_tenth(name, real_tokenizers):
    real, text = RowTokenizer.from_dir(real_tokenizers / "gemma3"), TEXTS[name]
    assert GuessedTokenizer().count(text) == pytest.approx(real.count(text), rel=0.1)


@pytest.mark.parametrize("text", OTHERS, ids=lambda text: text[:6])
def test_other_scripts_are_guessed_too_long_rather_than_too_short(text, real_tokenizers):
    real = RowTokenizer.from_dir(real_tokenizers / "gemma3").count(text)
    assert 0.9 * real <= GuessedTokenizer().count(text) <= 2 * real


def test_every_character_is_counted_and_masks_follow_the_spans():
    text = "<bos><start_of_turn>user\nWie alt? 42\u00a0\u0915\u093f\U0001f600<end_of_turn>\n"
    ids, mask = GuessedTokenizer().encode(Rendered(text, [Span(25, 33, 0)]))
    assert len(ids) == len(mask) and sum(mask) == 3  # Wie, alt, ?
    (again,) = GuessedTokenizer().encode_batch([Rendered(text, [])])
    assert again.ids == ids and not any(again.mask)
    for character in ("a", "é", "字", "か", "ж", "ा", "_", "\t", "\u2028", "\U0001f600", "\x00", "\ud800"):
        assert GuessedTokenizer().count(character) == 1, repr(character)


def test_what_is_known_of_a_released_model():
    known = describe_released("auto", "google/gemma-4-12B-it")
    assert known.family.name == "gemma4-large" and known.chats and known.config["num_hidden_layers"] == 48
    assert not describe_released("auto", "google/gemma-3-4b-pt").chats
    assert not describe_released("auto", "google/gemma-4-E2B").chats
    assert describe_released("auto", "google/gemma-1.1-2b-it").chats
    assert describe_released("auto", "google/gemma-9-1b") is None


def test_a_gguf_file_tells_its_size(tmp_path):
    from gemma_trainer.data.tokens import gguf_config

    facts = {"general.architecture": "gemma3", "gemma3.block_count": 18, "gemma3.embedding_length": 640,
             "gemma3.feed_forward_length": 2048, "gemma3.attention.head_count": 4, "gemma3.attention.head_count_kv": 1,
             "gemma3.attention.key_length": 256, "gemma3.context_length": 32_768}  # fmt: skip
    file = tmp_path / "gemma-3-270m.gguf"
    file.write_bytes(b"GGUF")
    found, released = size_of(str(file), gguf_config(facts.get, 262_144)).shape, size_of("google/gemma-3-270m").shape
    assert found == released
