"""Reward models inside the process: heads on every Gemma, no random backbone, pooling, precision, reload."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from gemma_trainer.models.load import load_model
from gemma_trainer.models.reward import (
    NEW,
    RewardModel,
    keep_float,
    load_base,
    load_reward_model,
    reward_class,
    score_ids,
)
from gemma_trainer.models.tiny import KINDS, make_tokenizer, save_tiny
from gemma_trainer.rows.problems import Failure
from official_templates import official
from preparing import TOOLS, assistant, call, result, user
from training import make_tiny, question_rows

FLOAT = {"dtype": "float32", "device": "cpu"}
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "sliding_window": 8,
    "max_position_embeddings": 256,
    "layer_types": ["sliding_attention", "full_attention"],
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 2,
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Makes a tiny model of a kind once."""
    made = {}

    def of(kind):
        if kind not in made:
            made[kind] = make_tiny(tmp_path_factory.mktemp(kind), kind)
        return made[kind]

    return of


def gemma2(folder):
    from transformers import Gemma2Config, Gemma2ForCausalLM

    tokenizer = make_tokenizer(["List the name"], "gemma2")
    torch.manual_seed(0)
    save_tiny(Gemma2ForCausalLM(Gemma2Config(vocab_size=len(tokenizer), **SIZES)), tokenizer, folder)


def gemma4_unified(folder):
    """The 12B's architecture, which has no encoders."""
    from transformers import Gemma4UnifiedForCausalLM, Gemma4UnifiedTextConfig

    tokenizer = make_tokenizer(["List the name"], "gemma4-large")
    torch.manual_seed(0)
    save_tiny(Gemma4UnifiedForCausalLM(Gemma4UnifiedTextConfig(vocab_size=len(tokenizer), **SIZES)), tokenizer, folder)


def backbone(model):
    """{name: tensor} of all but the heads."""
    return {name: tensor for name, tensor in model.state_dict().items() if not name.startswith(("lm_head.", "score."))}


def assert_only_the_head_is_new(folder):
    model, plain = load_base(str(folder), **FLOAT), load_model(str(folder), **FLOAT)
    theirs, ours = backbone(plain), backbone(model)
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert {name for name in model.state_dict() if name not in theirs} == NEW
    assert torch.count_nonzero(model.score.weight) == 0 and model.config.num_labels == 1


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_head_is_new(kind, tiny):
    assert_only_the_head_is_new(tiny(kind).path)


@pytest.mark.parametrize("make", [gemma2, gemma4_unified])
def test_only_the_head_of_other_architectures_is_new(make, tmp_path):
    make(tmp_path)
    assert_only_the_head_is_new(tmp_path)


def test_the_library_s_own_class_is_used_where_there_is_one(tiny, monkeypatch):
    import transformers

    assert type(load_base(str(tiny("gemma3").path), **FLOAT)) is transformers.Gemma3TextForSequenceClassification
    config = transformers.AutoConfig.from_pretrained(tiny("gemma4").path)
    assert not reward_class(config).__module__.startswith("transformers.")
    theirs = type("Gemma4TextForSequenceClassification", (reward_class(config),), {})
    monkeypatch.setattr(transformers, "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING", {type(config): theirs})
    assert type(load_base(str(tiny("gemma4").path), **FLOAT)) is theirs


def test_a_checkpoint_named_as_on_the_hub_fills_the_backbone(tiny, tmp_path):
    """Gemma 3 with images is published as `language_model.model.*`."""
    source = tiny("gemma3-vision").path
    tensors = load_file(source / "model.safetensors")
    names = {"model.language_model.": "language_model.model.", "model.": ""}
    renamed = {
        next((new + name.removeprefix(old) for old, new in names.items() if name.startswith(old)), name): tensor
        for name, tensor in tensors.items()
    }
    for file in source.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    save_file(renamed, tmp_path / "model.safetensors", {"format": "pt"})
    ours, theirs = (backbone(load_base(str(folder), **FLOAT)) for folder in (tmp_path, source))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("kind", ["gemma3-vision", "gemma4-vision"])
def test_a_backbone_that_would_stay_random_is_refused(kind, tiny, tmp_path):
    source = tiny(kind).path
    for file in source.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = load_file(source / "model.safetensors")
    lost = next(name for name in tensors if name.endswith("layers.1.mlp.up_proj.weight"))
    save_file(
        {name: t for name, t in tensors.items() if name != lost}, tmp_path / "model.safetensors", {"format": "pt"}
    )
    with pytest.raises(Failure) as failure:
        load_base(str(tmp_path), **FLOAT)
    assert failure.value.exit_code == 5 and failure.value.problem.code == "weights-missing"


def with_head(path, **options):
    """The model of a folder with a head that tells texts apart."""
    model = load_base(str(path), **{**FLOAT, **options})
    with torch.no_grad():
        random = torch.randn(model.score.weight.shape, generator=torch.Generator().manual_seed(3))
        model.score.weight.copy_(0.1 * random)
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_the_score_is_that_of_the_last_real_token(kind, tiny):
    """Alone, padded on either side, and the same as a plain forward pass up to that token."""
    model = with_head(tiny(kind).path).eval()
    rows = [row.ids for row in tiny(kind).encode(question_rows(7))]
    width = max(map(len, rows)) + 5
    plain = []
    with torch.no_grad():
        for row in rows:
            states = model.base_model(input_ids=torch.tensor([row]), use_cache=False).last_hidden_state
            plain.append(float(states[0, -1] @ model.score.weight[0]))
        for left in (True, False):
            pads = [[0] * (width - len(row)) for row in rows]
            ids = torch.tensor([pad + row if left else row + pad for row, pad in zip(rows, pads, strict=True)])
            padded = model(input_ids=ids, attention_mask=(ids != 0).long(), use_cache=False).logits[:, 0]
            assert padded.tolist() == pytest.approx(plain, abs=1e-5)
    assert max(plain) - min(plain) > 0.01
    assert score_ids(model, rows, batch_size=3) == pytest.approx(plain, abs=1e-5)


@pytest.mark.parametrize("side", ["left", "right"])
def test_scores_of_conversations_are_those_of_their_rendered_rows(side, tiny):
    from transformers import AutoTokenizer

    made = tiny("gemma4")
    rows = [
        *question_rows(3),
        {
            "messages": [user("SELECT"), assistant("", tool_calls=[call()]), result("id", tool_call_id="c1"), assistant("name", reasoning_content="List")],
            "tools": TOOLS,
        },
    ]  # fmt: skip
    model = with_head(made.path)
    tokenizer = AutoTokenizer.from_pretrained(made.path, padding_side=side)
    tokenizer.chat_template = official("gemma4").source
    rewards = RewardModel(model, tokenizer)
    expected = score_ids(model, [row.ids for row in made.encode(rows)], 1)
    assert rewards.score(rows, batch_size=2) == pytest.approx(expected, abs=1e-5)
    assert rewards.score([row["messages"] for row in rows[:3]]) == pytest.approx(expected[:3], abs=1e-5)


@pytest.mark.parametrize("kind", ["gemma3", "gemma4-vision"])
@pytest.mark.parametrize("quantize", [False, True])
def test_a_head_on_coarse_weights_computes_in_float32(kind, quantize, tiny):
    model = load_base(str(tiny(kind).path), dtype="bfloat16", device="cpu", quantize=quantize)
    assert type(model.score) is torch.nn.Linear and model.score.weight.dtype == torch.bfloat16
    keep_float(model)
    torch.nn.init.normal_(model.score.weight)
    ids = torch.tensor([tiny(kind).encode(question_rows(1))[0].ids])
    with torch.no_grad():
        states = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        logits = model(input_ids=ids, use_cache=False).logits
    assert states.dtype == torch.bfloat16 and logits.dtype == torch.float32
    assert logits.item() == pytest.approx((states[0, -1].float() @ model.score.weight[0]).item(), abs=1e-4)


def test_a_folder_without_a_reward_model_is_told(tiny, tmp_path):
    (tmp_path / "adapter_config.json").write_text(json.dumps({"task_type": "CAUSAL_LM"}))
    for folder in (tiny("gemma3").path, tmp_path, tmp_path / "nowhere"):
        with pytest.raises(Failure) as failure:
            load_reward_model(folder)
        assert failure.value.exit_code == 2 and failure.value.problem.code == "reward-model-expected"


def test_the_new_head_is_no_news(tmp_path, capfd):
    from transformers.utils import logging

    make_tiny(tmp_path / "tiny")
    before = logging.get_verbosity()
    load_base(str(tmp_path / "tiny"), dtype="float32", device="cpu")
    assert "score.weight" not in capfd.readouterr().err and logging.get_verbosity() == before
