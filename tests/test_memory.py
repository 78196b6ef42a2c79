"""The memory model against figures that were measured or counted: see facts of the stack and benchmarks/README.md."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path

import pytest

from gemma_trainer.families.checkpoints import find_checkpoint
from gemma_trainer.plan.activations import activations, kept_at_border, kept_by_layer
from gemma_trainer.plan.memory import GIB, NF4, Settings, estimate, head, weights
from gemma_trainer.plan.size import ModelSize, released
from training import make_tiny

MIB = 2**20


def text_only(name: str) -> ModelSize:
    """A released model without its encoders, as the counted figures are."""
    return ModelSize(name, find_checkpoint(name).shape, 0)


# Weights and adapters, as counted on transformers' models


@pytest.mark.parametrize(
    ("name", "half", "four", "states"),
    [
        ("gemma-3-270m", 0.5, 0.4, 0.06),
        ("gemma-3-1b", 1.9, 0.9, 0.19),
        ("gemma-3-4b", 7.2, 2.8, 0.44),
        ("gemma-3-12b", 21.9, 7.0, 0.98),
        ("gemma-3-27b", 50.3, 14.9, 1.69),
        ("gemma-4-E2B", 8.6, 6.0, 0.36),
        ("gemma-4-E4B", 13.9, 8.4, 0.52),
        ("gemma-4-12B", 22.2, 7.1, 0.98),
        ("gemma-4-26B-A4B", 47.0, 44.7, 0.28),
        ("gemma-4-31B", 57.2, 16.7, 1.82),
    ],
)
def test_weights_and_adapter_states(name, half, four, states):
    model = text_only(name)
    assert weights(model, Settings(mode="lora")) / GIB == pytest.approx(half, abs=0.06)
    assert weights(model, Settings(mode="qlora")) / GIB == pytest.approx(four, abs=0.06)
    lora = estimate(model, Settings(mode="lora"))
    assert (lora.trained + lora.gradients + lora.optimizer) / GIB == pytest.approx(states, abs=0.006)


def test_experts_keep_16_bits_in_transformers_and_not_in_unsloth():
    model = text_only("gemma-4-26B-A4B")
    assert weights(model, Settings(mode="qlora")) / GIB == pytest.approx(44.7, abs=0.1)
    assert weights(model, Settings(mode="qlora", backend="unsloth")) / GIB == pytest.approx(13.2, abs=0.1)
    dense = text_only("gemma-4-31B")
    assert weights(dense, Settings(mode="qlora")) == weights(dense, Settings(mode="qlora", backend="unsloth"))


def test_encoders_keep_16_bits_in_unsloth_and_not_in_transformers():
    model = released(find_checkpoint("gemma-4-E4B"))
    four, half = (weights(model, Settings(mode="qlora", backend=backend)) for backend in ("trl", "unsloth"))
    assert half - four == pytest.approx((2 - NF4) * model.encoders)


# Activations, as autograd's saved tensors were counted: hidden 640, 4 heads of 256, MLP 2048, rank 16


@pytest.mark.parametrize(
    ("dtype", "checkpointing", "hidden_states"),
    [("float32", True, 1.0), ("bfloat16", True, 1.0), ("float32", False, 25.0), ("bfloat16", False, 45.6)],
)
def test_saved_tensors_of_gemma3(dtype, checkpointing, hidden_states):
    shape, size = find_checkpoint("gemma-3-270m").shape, 4 if dtype == "float32" else 2
    if checkpointing:
        found = kept_at_border(shape, dtype, full=False)
    else:
        found = kept_by_layer(shape, shape.layers[0], dtype, full=False, rank=16, length=512)
    # The older count in bfloat16 was taken without autocast, which keeps more.
    rel = 0.3 if dtype == "bfloat16" and not checkpointing else 0.02
    assert found / size / shape.hidden == pytest.approx(hidden_states, rel=rel)


QUICK = [("gemma3", "bfloat16", "lora"), ("gemma4", "float32", "lora"), ("gemma4", "bfloat16", "full")]
ALL = [(k, d, m) for k in ("gemma3", "gemma3n", "gemma4") for d in ("float32", "bfloat16") for m in ("lora", "full")]


@pytest.mark.parametrize(
    ("kind", "dtype", "mode"),
    [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in ALL if case not in QUICK)],
)
def test_saved_tensors_of_other_shapes(kind, dtype, mode):
    """The figures of the table are taken again, on a shape that none of them was fitted on."""
    counted, shape = saved_by_layer(kind, dtype, mode)
    told = kept_by_layer(shape, shape.layers[0], dtype, full=mode == "full", rank=16, length=128)
    assert told == pytest.approx(counted, rel=0.05)


def saved_by_layer(kind: str, dtype: str, mode: str):
    """(bytes that autograd keeps for each token of one layer, the shape)."""
    import contextlib

    import torch
    from peft import LoraConfig, get_peft_model

    from gemma_trainer.families.shape import read_shape
    from gemma_trainer.models.tiny import make_model, make_tokenizer

    tokens, totals = 128, []
    tokenizer = make_tokenizer(["a b"], kind)
    names = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    for layers in (3, 4):
        sizes = {
            "hidden_size": 192,
            "intermediate_size": 640,
            "num_hidden_layers": layers,
            "head_dim": 64,
            "num_kv_shared_layers": 0,
        }
        own = {"gemma3": {}, "gemma3n": {"hidden_size_per_layer_input": 64, "altup_num_inputs": 4, "laurel_rank": 64, "activation_sparsity_pattern": [0.0] * layers},
               "gemma4": {"hidden_size_per_layer_input": 64, "global_head_dim": 64, "use_double_wide_mlp": False, "layer_types": ["sliding_attention"] * (layers - 1) + ["full_attention"]}}  # fmt: skip
        if kind == "gemma3":
            del sizes["num_kv_shared_layers"]
        model = make_model(kind, tokenizer, **sizes, **own[kind]).train()
        shape = read_shape({**model.config.to_dict(), "global_head_dim": 64})
        if mode == "lora":
            model = model.to(getattr(torch, dtype))
            model = get_peft_model(model, LoraConfig(r=16, target_modules=names))
        kept, held = {}, []

        def pack(tensor, kept=kept, held=held, model=model):
            held.append(tensor)
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        autocast = torch.autocast("cpu", torch.bfloat16) if dtype == "bfloat16" else contextlib.nullcontext()
        own_storages = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        body = model.base_model.model.model if mode == "lora" else model.model
        body.embed_tokens.weight.requires_grad_(True)  # so that the first layer keeps what every other one does
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), autocast:
            body(input_ids=torch.randint(5, 100, (1, tokens)), use_cache=False)
        totals.append(sum(size for place, size in kept.items() if place not in own_storages))
    # Casting float32 weights keeps a 16-bit copy of each, which is no activation.
    cast = (shape.linear if mode == "full" else 16 * shape.adapted) / len(shape.layers)
    copies = 2 * cast if dtype == "bfloat16" else 0
    return (totals[1] - totals[0] - copies) / tokens, shape


def test_checkpointing_keeps_borders_and_one_layer():
    shape = find_checkpoint("gemma-3-1b").shape
    size = {"tokens": 2048, "length": 2048, "dtype": "bfloat16", "full": False, "rank": 16}
    with_, without = activations(shape, **size, checkpointing=True), activations(shape, **size, checkpointing=False)
    border = 2048 * len(shape.layers) * 2 * shape.hidden
    assert with_ == pytest.approx(border + without / len(shape.layers), rel=1e-6)


def test_attention_scores_of_gemma2_grow_with_the_square_of_the_length():
    shape = find_checkpoint("gemma-2-2b").shape
    short, long = (kept_by_layer(shape, shape.layers[0], "bfloat16", False, 16, length) for length in (1024, 2048))
    assert long - short == 8 * shape.heads * 1024
    other = find_checkpoint("gemma-3-1b").shape
    assert len({kept_by_layer(other, other.layers[0], "bfloat16", False, 16, length) for length in (1024, 2048)}) == 1


# The head


def test_head_in_slices_against_full_logits():
    model = text_only("gemma-3-270m")
    for tokens in (512, 1024):
        plain = Settings(dtype="float32", autocast=False, device="cpu", length=tokens, sliced_head=False)
        assert head(model, plain) / MIB / tokens == pytest.approx(3.1, rel=0.05)
        sliced = replace(plain, sliced_head=True)
        assert head(model, sliced) < 0.2 * head(model, plain)
    # 4 x 2048 tokens of full logits alone would need 25 GiB.
    assert head(model, replace(plain, micro=4, length=2048)) / GIB == pytest.approx(25, rel=0.05)


def test_head_is_bounded_and_absent_in_a_reward_model():
    model = text_only("gemma-4-12B")
    for device in ("cuda", "cpu"):
        longest = [
            head(model, Settings(device=device, length=length)) - 6 * length * model.shape.hidden
            for length in (4096, 65536)
        ]
        assert longest[0] == longest[1] < GIB
    assert head(model, Settings(method="rm")) == 0


# Whole runs that were measured


@pytest.mark.parametrize(
    ("mode", "dtype", "micro", "checkpointing", "measured"),
    [
        ("lora", "float32", 4, True, 2394),
        ("lora", "bfloat16", 4, False, 2006),
        ("qlora", "float32", 4, True, 2037),
        ("full", "float32", 4, True, 5673),
    ],
)
def test_peak_of_gemma3_270m_on_a_cpu(mode, dtype, micro, checkpointing, measured):
    """Peak resident memory in MiB, 73 tokens a row, of a bare TRL loop with one tokenizer (289 MiB) that did not reopen
    its result. TRL's head takes about as much for so few tokens."""
    settings = Settings(mode=mode, dtype=dtype, autocast=dtype == "bfloat16", device="cpu", micro=micro, length=73,
                        checkpointing=checkpointing, accumulates=False)  # fmt: skip
    moments = estimate(text_only("gemma-3-270m"), settings).moments
    assert max(moments["backward"], moments["update"]) / MIB + 289 == pytest.approx(measured, rel=0.1)


# Methods and devices


def test_a_pair_is_two_texts_and_full_dpo_holds_a_second_model():
    model = released(find_checkpoint("gemma-3-1b"))
    sft, dpo, rm = (Settings(method=method) for method in ("sft", "dpo", "rm"))
    assert dpo.tokens == rm.tokens == 2 * sft.tokens
    assert estimate(model, dpo).reference == 0
    full = Settings(method="dpo", mode="full", dtype="float32")
    assert estimate(model, full).reference == 4 * model.shape.parameters
    assert estimate(model, replace(full, precomputed=True)).reference == 0
    assert estimate(model, rm).total < estimate(model, dpo).total


def test_full_fine_tuning_takes_sixteen_bytes_a_parameter():
    model = text_only("gemma-3-1b")
    parts = estimate(model, Settings(mode="full", dtype="float32", autocast=False)).parts
    states = sum(parts[name] for name in ("weights", "trained", "optimizer", "gradients"))
    assert states == 16 * model.shape.parameters


def test_ddp_copies_and_fsdp_splits():
    model = text_only("gemma-3-4b")
    one = Settings(mode="full", dtype="float32")
    ddp, fsdp = one.on(8)
    assert one.on(1) == []
    alone, copied, split = (estimate(model, settings) for settings in (one, ddp, fsdp))
    assert copied.weights == alone.weights and copied.gradients == 2 * alone.gradients
    assert split.optimizer == alone.optimizer / 8 and split.gradients == alone.gradients / 8
    assert alone.weights / 8 < split.weights < alone.weights / 2
    assert split.activations == alone.activations
    assert estimate(model, replace(fsdp, ranks=16)).total < split.total < alone.total < copied.total


def test_more_of_anything_takes_no_less_memory():
    model = released(find_checkpoint("gemma-4-E2B"))
    base = Settings(mode="lora")
    larger = [{"micro": 2}, {"length": 4096}, {"rank": 64}, {"dtype": "float32"}, {"checkpointing": False}, {"method": "dpo"},
              {"mode": "full"}, {"sliced_head": False}]  # fmt: skip
    for change in larger:
        assert estimate(model, replace(base, **change)).total > estimate(model, base).total, change


def test_the_dictionary_is_in_gib_and_complete():
    found = estimate(released(find_checkpoint("gemma-3-1b")), Settings())
    told = found.as_dict()
    assert told["total"] == max(told["moments"].values()) == pytest.approx(found.total / GIB, abs=1e-3)
    assert set(told) == {*found.parts, "moments", "total"}


@pytest.mark.parametrize("kind", ["gemma3", "gemma3n", "gemma4", "gemma3-vision"])
def test_tiny_folders_are_estimated_too(tmp_path, kind):
    from gemma_trainer.plan.size import size_of

    found = estimate(size_of(str(make_tiny(tmp_path / "model", kind).path)), Settings(device="cpu", length=64))
    assert 0.5 * GIB < found.total < GIB


def test_published_gpu_figures():
    """At least six are within 10 %, and near it whatever the longest row had; the others are known, and planned too low."""
    figures = runpy.run_path(str(Path(__file__).parents[1] / "benchmarks" / "memory_gpu.py"))["FIGURES"]
    close = [each for each in figures if abs(each.difference()) <= 10]
    assert len(close) >= 6
    assert all(abs(each.difference(n)) <= 12 for each in close for n in (each.shortest, each.longest))
    assert all(each.difference() < 0 for each in figures if each not in close)
