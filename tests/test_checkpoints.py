"""The catalogue of released models: sizes that follow from its figures, and what transformers makes of the same configs."""

from __future__ import annotations

import json
import math

import pytest

from gemma_trainer.families.catalogue import FAMILIES, detect_family
from gemma_trainer.families.checkpoints import CHECKPOINTS, find_checkpoint, nearest
from gemma_trainer.families.shape import DEFAULTS, read_shape
from gemma_trainer.plan.size import size_of
from gemma_trainer.rows.problems import Failure
from training import make_tiny

NAMED = {each.name: each for each in CHECKPOINTS}
# Billions of parameters of the language model, embedding, per-layer embedding, and millions of LoRA of rank 16, as counted
# on transformers' own models.
COUNTED = {
    "gemma-3-270m": (0.268, 0.168, 0, 3.8),
    "gemma-3-1b": (1.000, 0.302, 0, 13.0),
    "gemma-3-4b": (3.880, 0.671, 0, 29.8),
    "gemma-3-12b": (11.766, 1.007, 0, 65.5),
    "gemma-3-27b": (27.009, 1.409, 0, 113.5),
    "gemma-4-E2B": (4.629, 0.403, 2.349, 24.2),
    "gemma-4-E4B": (7.463, 0.671, 2.819, 34.9),
    "gemma-4-12B": (11.907, 1.007, 0, 65.6),
    "gemma-4-26B-A4B": (25.233, 0.738, 0, 18.6),
    "gemma-4-31B": (30.697, 1.409, 0, 122.4),
}
# Billions of all parameters, as the model pages say.
PUBLISHED = {"gemma-2b": 2.51, "gemma-7b": 8.54, "gemma-2-2b": 2.61, "gemma-2-9b": 9.24, "gemma-2-27b": 27.2,
             "gemma-3-4b": 4.30, "gemma-3-12b": 12.2, "gemma-3-27b": 27.4, "gemma-3n-E2B": 5.44, "gemma-3n-E4B": 7.85,
             "gemma-4-E2B": 5.1, "gemma-4-E4B": 8.0, "gemma-4-31B": 31.3}  # fmt: skip


@pytest.mark.parametrize("name", COUNTED)
def test_sizes_are_those_that_were_counted(name):
    total, embedding, per_layer, lora = COUNTED[name]
    shape = NAMED[name].shape
    assert shape.parameters / 1e9 == pytest.approx(total, abs=6e-4)
    assert shape.embedding / 1e9 == pytest.approx(embedding, abs=1.1e-3)
    assert shape.per_layer_embedding / 1e9 == pytest.approx(per_layer, abs=6e-4)
    assert 16 * shape.adapted / 1e6 == pytest.approx(lora, abs=0.06)


@pytest.mark.parametrize("name", PUBLISHED)
def test_sizes_are_the_published_ones(name):
    checkpoint = NAMED[name]
    assert (checkpoint.shape.parameters + checkpoint.encoders) / 1e9 == pytest.approx(PUBLISHED[name], rel=0.01)


def classes():
    import transformers as t

    return {
        "gemma": (t.GemmaConfig, t.GemmaForCausalLM),
        "gemma2": (t.Gemma2Config, t.Gemma2ForCausalLM),
        "gemma3_text": (t.Gemma3TextConfig, t.Gemma3ForCausalLM),
        "gemma3n_text": (t.Gemma3nTextConfig, t.Gemma3nForCausalLM),
        "gemma4_text": (t.Gemma4TextConfig, t.Gemma4ForCausalLM),
        "gemma4_unified_text": (t.Gemma4UnifiedTextConfig, t.Gemma4UnifiedForCausalLM),
    }


@pytest.mark.parametrize("name", [each.name for each in CHECKPOINTS])
def test_counts_are_those_of_transformers_from_any_form_of_config(name):
    """From the fields of the catalogue, from a saved config.json, and from one that wraps them as multimodal ones do."""
    import torch

    checkpoint = NAMED[name]
    make_config, make_model = classes()[checkpoint.config["model_type"]]
    config = make_config(**{key: value for key, value in checkpoint.config.items() if key != "model_type"})
    with torch.device("meta"):
        model = make_model(config)
    model.tie_weights()
    linear = [
        module for name, module in model.named_modules() if isinstance(module, torch.nn.Linear) and name != "lm_head"
    ]
    for form in (
        checkpoint.config,
        config.to_diff_dict(),
        {"model_type": "x", "text_config": json.loads(config.to_json_string())},
    ):
        shape = read_shape(form)
        assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())
        assert shape.linear == sum(module.weight.numel() for module in linear)
    lora = [m for n, m in model.named_modules() if n.split(".")[-1] in ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj") and isinstance(m, torch.nn.Linear)]  # fmt: skip
    assert shape.adapted == sum(module.in_features + module.out_features for module in lora)


@pytest.mark.parametrize("kind", DEFAULTS)
def test_defaults_are_those_of_transformers(kind):
    ours, theirs = DEFAULTS[kind], classes()[kind][0]().to_dict()
    same = {key: theirs[key] for key in ours if key in theirs}
    same["intermediate_size"] = same["intermediate_size"][0] if kind == "gemma3n_text" else same["intermediate_size"]
    assert {key: ours[key] for key in same} == same


def test_the_encoder_of_gemma3_is_counted_as_transformers_builds_it():
    import torch
    from transformers import SiglipVisionConfig, SiglipVisionModel

    sizes = {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16}
    with torch.device("meta"):
        tower = SiglipVisionModel(SiglipVisionConfig(**sizes, image_size=896, patch_size=14, vision_use_head=False))
    assert NAMED["gemma-3-4b"].encoders == sum(p.numel() for p in tower.parameters()) + 1152 + 1152 * 2560


def test_every_entry_belongs_to_a_family_and_its_names_tell_it():
    for checkpoint in CHECKPOINTS:
        assert checkpoint.family in FAMILIES
        for name in checkpoint.ids:
            assert detect_family(name=name).name == checkpoint.family, name
        assert (
            checkpoint.config["model_type"] in FAMILIES[checkpoint.family].model_types
            or checkpoint.family == "gemma4-large"
        )
    assert len({name for each in CHECKPOINTS for name in each.ids}) == sum(len(each.ids) for each in CHECKPOINTS)


def test_both_kinds_of_every_size_are_there():
    for checkpoint in CHECKPOINTS:
        assert checkpoint.tuned.endswith("-it")
        assert checkpoint.base or checkpoint.family == "functiongemma"
    assert NAMED["gemma-3-270m"].base == "google/gemma-3-270m" and NAMED["gemma-3-1b"].base == "google/gemma-3-1b-pt"


def test_what_is_not_known_is_told():
    facts = NAMED["gemma-4-31B"].as_dict()
    assert facts["licence"] == "Apache-2.0" and facts["gated"] is None
    assert NAMED["gemma-3-4b"].as_dict()["gated"] is True


@pytest.mark.parametrize(
    ("reference", "name"),
    [
        ("google/gemma-4-12B-it", "gemma-4-12B"),
        ("google/gemma-3-1b-pt", "gemma-3-1b"),
        ("unsloth/gemma-3-4b-it", "gemma-3-4b"),
        ("gemma-3-270m", "gemma-3-270m"),
        ("google/gemma-1.1-2b-it", "gemma-2b"),
        ("GOOGLE/GEMMA-4-e2b-IT", "gemma-4-E2B"),
        ("google/gemma-5-1b", None),
        ("someone/gemma-3-4b-it-poems", None),
    ],
)
def test_ids_are_found(reference, name):
    found = find_checkpoint(reference)
    assert (found.name if found else None) == name


def test_a_name_that_is_nearly_right_gets_a_hint():
    assert nearest("google/gemma-4-12b-instruct") == "google/gemma-4-12B-it"
    with pytest.raises(Failure) as caught:
        size_of("google/gemma-3-5b-it")
    assert caught.value.exit_code == 2 and "google/gemma-3-4b-it" in caught.value.problem.fix
    assert nearest("meta/llama") is None


# Folders


@pytest.mark.parametrize("kind", ["gemma3", "gemma3n", "gemma4", "gemma3-vision", "gemma4-vision"])
def test_a_local_folder_tells_its_size(tmp_path, kind):
    from safetensors import safe_open

    tiny = make_tiny(tmp_path / "model", kind)
    size = size_of(str(tiny.path))
    with safe_open(tiny.path / "model.safetensors", framework="np") as file:
        counts = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118 - not a dict
    total = sum(math.prod(shape) for name, shape in counts.items() if "layer_scalar" not in name)
    assert size.shape.parameters + size.encoders == pytest.approx(total, rel=0.002)
    assert (size.encoders > 0) == kind.endswith("vision")


def test_encoders_without_weight_files_are_not_known(tmp_path):
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "gemma3", "text_config": {"hidden_size": 64, "num_hidden_layers": 2}})
    )
    assert size_of(str(tmp_path)).encoders is None


@pytest.mark.parametrize(
    ("config", "code"),
    [
        ("{", "model-unreadable"),
        ('{"model_type": "gemma3_text"}', "model-unreadable"),
        ('{"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 2}', "family-unknown"),
        ('{"model_type": "gemma3_text", "hidden_size": "wide", "num_hidden_layers": 2}', "family-unknown"),
        ("[]", "model-unreadable"),
    ],
)
def test_a_folder_that_tells_no_size_is_a_plain_failure(tmp_path, config, code):
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(Failure) as caught:
        size_of(str(tmp_path))
    assert caught.value.exit_code == 2 and caught.value.problem.code == code


SIZES = ["hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
         "vocab_size", "max_position_embeddings"]  # fmt: skip


@pytest.mark.parametrize("kind", DEFAULTS)
@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("value", [-5, 0, 1.5, True, "two", [], [4, "x"], {}, 10**9, 10**30])
def test_a_size_that_no_model_has_is_told_in_words(kind, name, value):
    with pytest.raises(ValueError, match=f"{name} is|damaged"):
        read_shape({"model_type": kind, "hidden_size": 64, "num_hidden_layers": 2, name: value})


@pytest.mark.parametrize("kind", DEFAULTS)
@pytest.mark.parametrize(
    "more",
    [{"text_config": "x"}, {"text_config": [1]}, {"layer_types": 5}, {"layer_types": ["x"]}, {"per_layer_config": {"a": 1}},
     {"per_layer_config": 5}, {"enable_moe_block": True}, {"enable_moe_block": True, "num_experts": -1}, {"num_kv_shared_layers": -1},
     {"global_head_dim": "x"}, {"final_logit_softcapping": "x"}],
)  # fmt: skip
def test_any_other_field_gives_a_size_or_is_told(kind, more, tmp_path):
    sizes = {"model_type": kind, "hidden_size": 64, "num_hidden_layers": 2}
    (tmp_path / "config.json").write_text(json.dumps({**sizes, **more}))
    try:
        assert size_of(str(tmp_path)).shape.parameters > 0
    except Failure as failure:
        assert failure.exit_code == 2


def test_an_adapter_has_the_size_of_its_base(tmp_path):
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "google/gemma-3-1b-it"}')
    assert size_of(str(tmp_path)).shape == NAMED["gemma-3-1b"].shape
