"""Known traps of this stack: each made to happen, and shown to be caught or avoided."""

import json

import pytest

from gemma_trainer.plan.packages import CLASHES, _numbers
from gemma_trainer.plan.plan import choose_dtype
from gemma_trainer.rows.problems import UNSUPPORTED, Failure
from training import build, make_plan, make_tiny, question_rows


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Tiny models by kind, each made once."""
    made = {}

    def get(kind):
        if kind not in made:
            made[kind] = make_tiny(tmp_path_factory.mktemp(kind), kind)
        return made[kind]

    return get


@pytest.mark.parametrize(
    "kind, text_class", [("gemma3-vision", "Gemma3ForCausalLM"), ("gemma4-vision", "Gemma4ForCausalLM")]
)
def test_multimodal_checkpoint_in_a_text_class_is_refused(kind, text_class, models):
    """transformers fills such a model with random weights and says nothing."""
    import transformers

    from gemma_trainer.models.load import check_loading

    path = models(kind).path
    _, info = getattr(transformers, text_class).from_pretrained(path, output_loading_info=True)
    with pytest.raises(Failure) as caught:
        check_loading(str(path), info)
    assert caught.value.exit_code == UNSUPPORTED and caught.value.problem.code == "weights-missing"


@pytest.mark.parametrize("kind", ["gemma3", "gemma3n", "gemma4", "gemma3-vision", "gemma4-vision"])
def test_load_model_finds_every_weight(kind, models):
    from gemma_trainer.models.load import load_model

    assert load_model(str(models(kind).path), dtype="float32", device="cpu").accepts_loss_kwargs is True


def test_checkpoint_that_lacks_a_tensor_is_refused(models, tmp_path):
    from safetensors.torch import load_file, save_file

    from gemma_trainer.models.load import load_model

    tensors = load_file(models("gemma3").path / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    for file in models("gemma3").path.glob("*.json"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(Failure, match="up_proj"):
        load_model(str(tmp_path), dtype="float32", device="cpu")


@pytest.mark.parametrize("kind", ["gemma3", "gemma3n", "gemma4", "gemma3-vision", "gemma4-vision"])
def test_lora_adapts_the_language_model_and_nothing_else(kind, models, tmp_path):
    """Name lists reach Gemma 3's vision tower, and make PEFT refuse Gemma 4's."""
    from gemma_trainer.models.load import load_model
    from gemma_trainer.train.engine_trl import adapt

    tiny = models(kind)
    model = adapt(load_model(str(tiny.path), dtype="float32", device="cpu"), make_plan(tiny.path, mode="lora"))
    adapted = {name.split(".lora_")[0] for name, p in model.named_parameters() if p.requires_grad}
    assert not [name for name in adapted if "vision" in name or "audio" in name]
    layers = model.config.get_text_config().num_hidden_layers
    assert len([name for name in adapted if name.endswith(".q_proj")]) == layers
    assert len([name for name in adapted if name.endswith(".down_proj")]) == layers
    assert {name.rsplit(".", 1)[1] for name in adapted} == {
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    }


@pytest.mark.parametrize("kind", ["gemma3-vision", "gemma4-vision"])
def test_full_fine_tuning_leaves_the_towers_alone(kind, models):
    from gemma_trainer.models.load import check_trainable, load_model
    from gemma_trainer.train.engine_trl import adapt

    tiny = models(kind)
    model = adapt(load_model(str(tiny.path), dtype="float32", device="cpu"), make_plan(tiny.path))
    trainable, everything = check_trainable(model)
    frozen = sum(p.numel() for name, p in model.named_parameters() if "vision" in name or "projector" in name)
    assert 0 < frozen == everything - trainable


def test_adapter_of_an_earlier_run_is_trainable_and_nothing_trainable_is_refused(models, tmp_path):
    """PEFT loads adapters frozen; TRL then trains no parameter and reports a loss all the same."""
    from gemma_trainer.models.load import check_trainable, load_adapter, load_model
    from gemma_trainer.train.engine_trl import adapt

    tiny = models("gemma3")
    adapt(load_model(str(tiny.path), dtype="float32", device="cpu"), make_plan(tiny.path, mode="lora")).save_pretrained(
        tmp_path
    )

    def reopened(trainable):
        return load_adapter(load_model(str(tiny.path), dtype="float32", device="cpu"), str(tmp_path), trainable)

    assert check_trainable(reopened(True))[0] > 0
    with pytest.raises(Failure) as caught:
        check_trainable(reopened(False))
    assert caught.value.problem.code == "nothing-trainable"


@pytest.mark.slow
@pytest.mark.main_path
def test_4_bit_on_a_cpu_keeps_its_gradients_after_an_evaluation(tmp_path):
    """On AVX512-BF16 CPUs the first evaluation repacks 4-bit layers, and no gradient passes a repacked layer."""
    sizes = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32, "num_key_value_heads": 2}
    tiny = make_tiny(tmp_path / "model", **sizes)
    rows = tiny.encode(question_rows(32))

    def curve(folder, evaluate):
        plan = make_plan(tiny.path, mode="qlora", steps=6, learning_rate=1e-2)
        trainer, losses = build(tiny, plan, tmp_path / folder, rows, rows[:8])
        if evaluate:
            trainer.evaluate()
        trainer.train()
        batch = next(iter(trainer.get_train_dataloader()))
        trainer.compute_loss(trainer.model, batch).backward()
        without = [n for n, p in trainer.model.named_parameters() if p.requires_grad and not p.grad.abs().sum() > 0]
        return losses.values, without

    plain, no_gradient = curve("plain", evaluate=False)
    assert no_gradient == []
    evaluated, no_gradient = curve("evaluated", evaluate=True)
    assert no_gradient == []
    assert evaluated == pytest.approx(plain, abs=1e-5) and plain[-1] < plain[0]


def test_4_bit_model_has_4_bit_layers(models):
    import bitsandbytes

    from gemma_trainer.models.load import load_model

    model = load_model(str(models("gemma3").path), dtype="float32", device="cpu", quantize=True)
    layers = [m for m in model.modules() if isinstance(m, bitsandbytes.nn.Linear4bit)]
    assert layers and not any(layer.support_avx512bf16_for_cpu for layer in layers)


def test_every_row_has_one_bos_and_a_trained_terminator(models):
    """Rendered text must not get a second <bos>; <eos> does not end a turn."""
    for kind in ("gemma3", "gemma4"):
        tiny = models(kind)
        bos, end = (tiny.tokenizer.backend.token_to_id(t) for t in ("<bos>", tiny.renderer.family.turn_end))
        for row in tiny.encode(question_rows(8)):
            assert row.ids.count(bos) == 1 and row.ids[0] == bos
            assert [m for i, m in zip(row.ids, row.mask, strict=True) if i == end] == [0, 1]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_weights_have_the_planned_dtype(dtype, models):
    """TRL loads every checkpoint in float32 when it is given a path."""
    import torch

    from gemma_trainer.models.load import load_model

    model = load_model(str(models("gemma3").path), dtype=dtype, device="cpu")
    assert {p.dtype for p in model.parameters()} == {getattr(torch, dtype)}


def test_a_cpu_run_asks_for_no_bfloat16(models, tmp_path):
    """TRL's default is bf16, which TrainingArguments refuse on a machine without a GPU."""
    from gemma_trainer.train.trainer_sft import training_config

    config = training_config(make_plan(models("gemma3").path), tmp_path, "none", evaluates=False)
    assert config.bf16 is False and config.use_cpu is True


def test_bfloat16_is_refused_where_the_gpu_has_none():
    from gemma_trainer.plan.hardware import Gpu, Hardware

    old = Hardware("cuda", 8, 32.0, "Linux", [Gpu("Tesla T4", 15.0, 7.5)])
    assert choose_dtype(None, "qlora", old)[0] == "float32"
    with pytest.raises(Failure, match="bfloat16"):
        choose_dtype("bfloat16", "qlora", old)
    new = Hardware("cuda", 8, 32.0, "Linux", [Gpu("L4", 22.5, 8.9)])
    assert choose_dtype(None, "qlora", new)[0] == "bfloat16"


def test_saved_run_stops_at_the_end_of_the_turn(models, tmp_path):
    """A saved adapter has no generation config of its own; without one, generation runs on to <eos>."""
    from gemma_trainer.models.load import load_model, load_tokenizer_files
    from gemma_trainer.train.engine_trl import adapt
    from gemma_trainer.train.save import save_result

    tiny = models("gemma3")
    model = adapt(load_model(str(tiny.path), dtype="float32", device="cpu"), make_plan(tiny.path, mode="lora"))
    tokenizer = load_tokenizer_files(str(tiny.path), tiny.renderer.family.plain_template)
    save_result(model, tokenizer, tmp_path, tiny.stop_ids)
    stops = json.loads((tmp_path / "generation_config.json").read_text())["eos_token_id"]
    assert set(stops) >= {tiny.tokenizer.backend.token_to_id(t) for t in ("<end_of_turn>", "<eos>")}
    assert (tmp_path / "chat_template.jinja").read_text() == tiny.renderer.family.plain_template
    assert tokenizer.pad_token == "<pad>"


def test_the_trl_release_without_a_cpu_path_is_named():
    clash = next(c for c in CLASHES if c.package == "trl" and c.low <= _numbers("1.15.0") < c.high)
    assert "1.15" in clash.message
    assert not [c for c in CLASHES if c.package == "trl" and c.low <= _numbers("1.14.2") < c.high]
    assert not [c for c in CLASHES if c.package == "trl" and c.low <= _numbers("1.16.0") < c.high]
