"""Tiny models and tokenizers: what the demo and the training tests stand on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gemma_trainer.families.catalogue import family_names, get_family
from gemma_trainer.models.tiny import KINDS, make_model, make_tokenizer, save_tiny

TEXTS = [
    "orders(id, unit_price, day)\nHow many orders are there?",
    "SELECT COUNT(*) FROM orders WHERE id > 12",
] * 2
STRANGE = "  two  spaces\n\n\ttab ünïcode 日本 😀 a_b 1234 <unused1> '%x'\r\n"
ASSETS = Path(__file__).parents[1] / "assets"


def family_of(kind: str) -> str:
    return kind.removesuffix("-vision")


@pytest.mark.parametrize("name", family_names())
def test_every_control_token_of_the_family_is_one_special_token(name):
    family, tokenizer = get_family(name), make_tokenizer(TEXTS, name)
    for token in family.control_tokens | {family.turn_start, family.turn_end, *family.stop_tokens}:
        ids = tokenizer(f"a{token}b", add_special_tokens=False).input_ids
        assert tokenizer.convert_tokens_to_ids(token) in ids
        assert tokenizer.decode(ids, skip_special_tokens=True) == "ab"
    assert tokenizer.convert_tokens_to_ids(["<pad>", "<eos>", "<bos>", "<unk>"]) == [0, 1, 2, 3]


@pytest.mark.parametrize(("name", "first"), [("gemma2", 2), ("gemma3", 2), ("functiongemma", 2), ("gemma4", None)])
def test_bos_is_added_as_the_real_tokenizer_of_the_family_does(name, first):
    tokenizer = make_tokenizer(TEXTS, name)
    ids = tokenizer("orders").input_ids
    assert (ids[0] if ids[0] == 2 else None) == first


def test_any_text_comes_back_and_none_is_unknown():
    tokenizer = make_tokenizer(TEXTS)
    ids = tokenizer(STRANGE, add_special_tokens=False).input_ids
    assert tokenizer.decode(ids) == STRANGE
    assert tokenizer.unk_token_id not in ids


def test_frequent_words_are_one_token_and_the_vocabulary_is_bounded():
    tokenizer = make_tokenizer(TEXTS)
    assert tokenizer.tokenize("SELECT unit_price") == ["SELECT", *tokenizer.tokenize(" unit_price")]
    assert len(make_tokenizer(TEXTS, vocab_size=275)) == 275
    smallest = make_tokenizer(TEXTS, vocab_size=1)
    assert smallest.decode(smallest(STRANGE, add_special_tokens=False).input_ids) == STRANGE
    assert tokenizer.get_vocab() == make_tokenizer(TEXTS).get_vocab()


@pytest.mark.parametrize("answer", ["SELECT 1", " x", "\n\nx", "\n", "  ", "<end_of_turn>", "<|turn>"])
@pytest.mark.parametrize("name", ["gemma3", "gemma4"])
def test_no_token_crosses_the_border_between_header_and_answer(name, answer):
    tokenizer = make_tokenizer([*TEXTS, "model\nSELECT\n\nSELECT"], name)
    header = f"<bos>{get_family(name).turn_start}model\n"

    def ids(text):
        return tokenizer(text, add_special_tokens=False).input_ids

    assert ids(header + answer) == ids(header) + ids(answer)


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_model_comes_back_equal_through_the_auto_classes(kind, tmp_path):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = make_tokenizer(TEXTS, family_of(kind))
    model = make_model(kind, tokenizer).eval()
    save_tiny(model, tokenizer, tmp_path)

    again = AutoTokenizer.from_pretrained(tmp_path)
    text = f"<bos>{get_family(family_of(kind)).turn_start}user\n{STRANGE}"
    ids = tokenizer(text, add_special_tokens=False).input_ids
    assert again(text, add_special_tokens=False).input_ids == ids
    assert again.chat_template == tokenizer.chat_template

    loaded, info = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert type(loaded) is type(model)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    end = tokenizer.convert_tokens_to_ids(get_family(family_of(kind)).turn_end)
    assert loaded.generation_config.eos_token_id == [1, end]
    with torch.no_grad():
        batch = torch.tensor([ids])
        assert torch.equal(model(batch).logits, loaded.eval()(batch).logits)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_depend_on_the_seed_only(kind):
    import torch

    tokenizer = make_tokenizer(TEXTS, family_of(kind))
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first, same, other = (make_model(kind, tokenizer, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    weights = [m.get_input_embeddings().weight for m in (first, same, other)]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


def test_kinds_have_the_parts_they_stand_for():
    def built(kind):
        return make_model(kind, make_tokenizer(TEXTS, family_of(kind)))

    shared = built("gemma4").config
    assert shared.num_kv_shared_layers == 2 and shared.hidden_size_per_layer_input > 0
    assert built("gemma3n").config.num_kv_shared_layers == 2
    for kind in ("gemma3-vision", "gemma4-vision"):
        assert any("vision_tower" in name for name, _ in built(kind).named_parameters())


def test_sizes_override_the_config():
    model = make_model("gemma3", make_tokenizer(TEXTS), hidden_size=32, num_hidden_layers=3)
    assert model.config.hidden_size == 32
    assert model.config.layer_types == ["sliding_attention", "full_attention", "sliding_attention"]


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="gemma5"):
        make_tokenizer(TEXTS, "gemma5")
    with pytest.raises(KeyError):
        make_model("gemma5", make_tokenizer(TEXTS))


def test_importing_costs_nothing_heavy():
    heavy = "{'torch', 'transformers', 'tokenizers'} & set(sys.modules)"
    code = f"import sys, gemma_trainer.models.tiny; print({heavy})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ASSETS, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
