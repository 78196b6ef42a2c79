"""Faults that users of other tools reported, each shown to be caught or absent: gradients, attention, token types, versions."""

import json
import os

import pytest
import torch

from gemma_trainer.models.load import load_model
from gemma_trainer.plan import packages
from gemma_trainer.rows.problems import Failure
from gemma_trainer.train.guards import EveryLayerLearns
from gemma_trainer.train.ranks import show_one_gpu
from gemma_trainer.train.run import require_training_packages
from scripts import run
from training import build, make_plan, make_tiny, question_rows

KINDS = ("gemma3", "gemma3-vision", "gemma3n", "gemma4", "gemma4-vision")


@pytest.fixture(scope="module", params=KINDS)
def tiny(request, tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp(request.param), request.param)


def load(tiny, **options):
    return load_model(str(tiny.path), dtype="float32", device="cpu", **options)


def batch(tiny):
    """Two rows of different lengths, padded on the right."""
    rows = sorted((row.ids for row in tiny.encode(question_rows(8))), key=len)
    short, long = torch.tensor(rows[0]), torch.tensor(rows[-1])
    assert len(short) < len(long)
    ids = torch.nn.utils.rnn.pad_sequence([short, long], batch_first=True)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(short), torch.ones_like(long)], batch_first=True)
    return {"input_ids": ids, "attention_mask": mask}


def scores(model, inputs, **more):
    """Logits of the real tokens."""
    with torch.no_grad():
        return model(**inputs, **more).logits[inputs["attention_mask"].bool()]


# Gradients


@pytest.mark.parametrize("mode", ["lora", "full"])
def test_every_weight_that_is_trained_gets_a_gradient_through_checkpointing(mode, tiny, tmp_path):
    """Reentrant checkpointing stops at a frozen base, and DDP at weights that a pass does not use."""
    plan = make_plan(tiny.path, family=tiny.renderer.family.name, mode=mode, steps=1, gradient_checkpointing=True)
    trainer, _ = build(tiny, plan, tmp_path, tiny.encode(question_rows(8)))
    reached = {}

    class Look(EveryLayerLearns):
        def on_pre_optimizer_step(self, *args, model=None, **kwargs):
            super().on_pre_optimizer_step(*args, model=model, **kwargs)
            reached.update({name: p.grad is not None for name, p in model.named_parameters() if p.requires_grad})

    trainer.add_callback(Look())
    trainer.train()
    assert reached and all(reached.values()) and trainer.args.gradient_checkpointing_kwargs == {"use_reentrant": False}


def test_a_layer_that_no_gradient_reaches_ends_the_run(tmp_path):
    tiny = make_tiny(tmp_path / "tiny")
    trainer, _ = build(tiny, make_plan(tiny.path, mode="lora"), tmp_path, tiny.encode(question_rows(8)))
    layer = trainer.model.base_model.model.model.layers[1].mlp.down_proj
    layer.register_forward_hook(lambda module, inputs, output: output.detach() + 0 * inputs[0].sum())
    trainer.add_callback(EveryLayerLearns())
    with pytest.raises(Failure, match=r"2 LoRA layers get no gradient .*layers\.1\.mlp\.down_proj"):
        trainer.train()


# Attention


def test_scores_do_not_depend_on_the_cache(tiny):
    """Layers of Gemma 3n and 4 share keys and values; where the cache carried them, training saw other logits."""
    model, inputs = load(tiny), batch(tiny)
    cached = scores(model.eval(), inputs, use_cache=True)
    assert torch.allclose(cached, scores(model, inputs, use_cache=False), atol=1e-4)
    assert torch.allclose(cached, scores(model.train(), inputs), atol=1e-4)


def test_scores_of_texts_need_no_token_types(tiny):
    """Gemma 3 and 4 with image encoders asked for them in training, and collators lost them."""
    model, inputs = load(tiny).train(), batch(tiny)
    plain = scores(model, inputs)
    names = [name for name in ("token_type_ids", "mm_token_type_ids") if name in model.forward.__code__.co_varnames]
    zeros = torch.zeros_like(inputs["input_ids"])
    for name in names:
        assert torch.allclose(plain, scores(model, inputs, **{name: zeros}), atol=1e-5)
    assert bool(names) == ("vision" in tiny.path.parent.name)


def test_fast_attention_scores_as_the_eager_one_does(tiny):
    """No FlashAttention 2: its heads end at 256, and Gemma 4 has 512. Padding and sliding windows included."""
    model, inputs = load(tiny).eval(), batch(tiny)
    assert model.config._attn_implementation == "sdpa"
    fast = scores(model, inputs)
    model.set_attn_implementation("eager")
    assert torch.allclose(fast, scores(model, inputs), atol=1e-4)


def test_gemma2_is_loaded_with_eager_attention(tmp_path):
    """sdpa cannot cap attention scores."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "head_dim": 16,
    }
    Gemma2ForCausalLM(Gemma2Config(vocab_size=64, num_key_value_heads=1, **sizes)).save_pretrained(tmp_path)
    model = load_model(str(tmp_path), dtype="float32", device="cpu")
    assert model.config._attn_implementation == "eager"


# Versions


@pytest.mark.parametrize(
    "package, found, refused",
    [
        ("transformers", "5.5.4", True),
        ("transformers", "5.17.0", False),
        ("transformers", "5.99.0", False),  # what is newer than tested may be what works
        ("trl", "1.13.0", True),
        ("trl", "1.14.2", False),
        ("trl", "1.99.0", False),
    ],
)
def test_versions_that_train_wrongly_are_refused_and_newer_ones_are_not(package, found, refused, monkeypatch):
    monkeypatch.setattr(packages, "installed", lambda name: found if name == package else "99.0")
    if not refused:
        require_training_packages("lora")
        return
    with pytest.raises(Failure, match=f"pip install {package}==") as failure:
        require_training_packages("lora")
    assert failure.value.exit_code == 4


# Devices


@pytest.mark.parametrize("visible, local, shown", [(None, 1, "1"), ("4,6", 1, "6"), ("GPU-a,GPU-b", 0, "GPU-a")])
def test_each_process_sees_one_gpu(visible, local, shown, monkeypatch):
    """A model that is spread over those of others fails with tensors on two devices."""
    place = {"RANK": str(local), "WORLD_SIZE": "2", "LOCAL_RANK": str(local), "MASTER_ADDR": "a"}
    for name, value in {**place, "CUDA_VISIBLE_DEVICES": visible or ""}.items():
        monkeypatch.setenv(name, value)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    show_one_gpu(make_plan("m", hardware={"gpus": [{}, {}]}))
    assert os.environ["CUDA_VISIBLE_DEVICES"] == shown


# Experts


def test_experts_that_get_no_adapters_are_told(tmp_path):
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in question_rows(40)))
    words = (
        "--model",
        "google/gemma-4-26B-A4B-it",
        "--data",
        "rows.jsonl",
        "--emulate",
        "1xH100-80G",
        "--plan",
        "--json",
    )
    assert "experts-untrained" in run("sft_train.py", *words, cwd=tmp_path).codes
