"""Reward training inside the process: the loss, the measures, what is trained, where it starts from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from gemma_trainer.data.reading.sources import data_hash
from gemma_trainer.models.load import load_adapter, load_model, load_tokenizer_files
from gemma_trainer.models.reward import load_base
from gemma_trainer.train.trainer_rm import build_trainer
from training import Losses, build, make_plan, make_tiny, moved, pair_rows, question_rows

LORA = {"mode": "lora", "method": "rm"}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("gemma3"))


@pytest.fixture(scope="module")
def adapter(tiny, tmp_path_factory):
    """The adapter of a short SFT run."""
    folder = tmp_path_factory.mktemp("sft")
    trainer, _ = build(
        tiny,
        make_plan(tiny.path, mode="lora", learning_rate=0.02, steps=6),
        folder / "work",
        tiny.encode(question_rows(32)),
    )
    trainer.train()
    trainer.model.save_pretrained(folder / "sft")
    return {"path": str(folder / "sft"), "hash": "", "rank": 8, "alpha": 16}


def build_rm(tiny, folder, pairs, held_out=None, center=0.01, **changes):
    """(trainer, losses) as rm_train.py makes them."""
    plan = make_plan(tiny.path, **{**LORA, "objective": {"center_coefficient": center}, **changes})
    losses = Losses()
    model = load_base(plan.model, dtype=plan.dtype, device="cpu", quantize=plan.mode == "qlora")
    files = load_tokenizer_files(plan.model, None)
    return build_trainer(model, files, plan, pairs, held_out or [], folder, "none", [losses]), losses


def trained_head(trainer):
    return next(p for name, p in trainer.model.named_parameters() if "score" in name and p.requires_grad)


@torch.no_grad()
def plain_scores(trainer, pairs):
    """[pairs, 2] rewards, one plain forward pass a sequence."""
    trainer.model.eval()
    sides = [side.ids for pair in pairs for side in (pair.chosen, pair.rejected)]
    return torch.stack([trainer.model(input_ids=torch.tensor([ids])).logits[0, 0] for ids in sides]).view(-1, 2)


@pytest.mark.parametrize("margin", [False, True])
@pytest.mark.parametrize("center", [0.0, 0.1])
def test_the_loss_is_that_of_the_formula(margin, center, tiny, tmp_path):
    rows = pair_rows(5)
    pairs = tiny.encode_pairs([{**row, "margin": i / 2} for i, row in enumerate(rows)] if margin else rows)
    trainer = moved(build_rm(tiny, tmp_path, pairs, pairs, center, micro_batch_size=5)[0])
    chosen, rejected = plain_scores(trainer, pairs).T
    wanted = torch.arange(5) / 2 if margin else torch.zeros(5)
    loss = -torch.log(torch.sigmoid(chosen - rejected - wanted)) + center * (chosen + rejected) ** 2
    assert float((chosen - rejected).abs().max()) > 0.01
    batch = trainer.data_collator([trainer.train_dataset[i] for i in range(5)])
    assert trainer.compute_loss(trainer.model, batch).item() == pytest.approx(loss.mean().item(), abs=1e-5)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(loss.mean().item(), abs=1e-5)


def test_measures_count_pairs_and_not_batches(tiny, tmp_path):
    pairs = tiny.encode_pairs(pair_rows(5))
    trainer = moved(build_rm(tiny, tmp_path, pairs, pairs, micro_batch_size=4)[0])
    chosen, rejected = plain_scores(trainer, pairs).T
    measured = trainer.evaluate()
    assert measured["eval_accuracy"] == pytest.approx((chosen > rejected).float().mean().item())
    assert measured["eval_margin"] == pytest.approx((chosen - rejected).mean().item(), abs=1e-5)


def test_an_untrained_head_tells_nothing_apart(tiny, tmp_path):
    pairs = tiny.encode_pairs(pair_rows(4))
    measured = build_rm(tiny, tmp_path, pairs, pairs)[0].evaluate()
    assert (measured["eval_accuracy"], measured["eval_margin"]) == (0.5, 0.0)
    assert measured["eval_loss"] == pytest.approx(0.6931, abs=1e-4)


def test_a_run_of_one_batch_by_eight_equals_eight_by_one(tiny, tmp_path):
    pairs = tiny.encode_pairs(pair_rows(24))
    curves = []
    for micro in (8, 2):
        trainer, losses = build_rm(
            tiny, tmp_path / str(micro), pairs, steps=6, micro_batch_size=micro, accumulation_steps=8 // micro
        )
        trainer.train()
        curves.append(losses.values)
    assert curves[0][-1] < curves[0][0] - 0.1 and curves[1] == pytest.approx(curves[0], abs=1e-4)


@pytest.mark.parametrize("kind", ["gemma3-vision", "gemma4", "gemma4-vision"])
def test_checkpointing_changes_memory_and_nothing_else(kind, tmp_path):
    tiny = make_tiny(tmp_path / "model", kind)
    curves = []
    for checkpointing in (False, True):
        trainer, losses = build_rm(
            tiny, tmp_path / "run", tiny.encode_pairs(pair_rows(32)), gradient_checkpointing=checkpointing
        )
        trainer.train()
        curves.append(losses.values)
    assert curves[0][-1] < curves[0][0] and curves[1] == pytest.approx(curves[0], abs=1e-5)


@pytest.mark.parametrize("mode, dtype", [("lora", "float32"), ("lora", "bfloat16"), ("qlora", "bfloat16"), ("full", "float32")])  # fmt: skip
def test_the_head_is_trained_in_float32_and_saved(mode, dtype, tiny, tmp_path):
    trainer, _ = build_rm(tiny, tmp_path / "run", tiny.encode_pairs(pair_rows(16)), mode=mode, dtype=dtype)
    head = trained_head(trainer)
    assert head.dtype == torch.float32
    trainer.train()
    assert head.abs().max() > 1e-4
    trainer.model.save_pretrained(tmp_path / "saved")
    file = "model.safetensors" if mode == "full" else "adapter_model.safetensors"
    saved = next(t for name, t in load_file(tmp_path / "saved" / file).items() if name.endswith("score.weight"))
    assert torch.equal(saved, head)


def test_dropout_is_used(tiny, tmp_path):
    lora = {"rank": 8, "alpha": 16, "dropout": 0.5}
    trainer, _ = build_rm(tiny, tmp_path, tiny.encode_pairs(pair_rows(8)), lora=lora)
    assert {m.p for m in trainer.model.modules() if isinstance(m, torch.nn.Dropout)} == {0.5}


@pytest.mark.parametrize("mode", ["lora", "full"])
def test_training_starts_from_an_adapter_and_leaves_it_as_it_is(mode, tiny, adapter, tmp_path):
    def hashes():
        return [data_hash(sorted(Path(folder).iterdir())) for folder in (tiny.path, adapter["path"])]

    before = hashes()
    trainer, _ = build_rm(tiny, tmp_path, tiny.encode_pairs(pair_rows(8)), mode=mode, adapter=adapter)
    ids = torch.tensor([tiny.encode(question_rows(1))[0].ids])

    def states(model):
        with torch.no_grad():
            return model.base_model(input_ids=ids).last_hidden_state

    base = load_model(str(tiny.path), dtype="float32", device="cpu").eval()
    untuned = states(base)
    tuned = states(load_adapter(base, adapter["path"]).eval().get_base_model())
    trainer.model.eval()
    started = states(trainer.model.get_base_model() if mode == "lora" else trainer.model)
    assert (started - tuned).abs().max() < 1e-5 < (tuned - untuned).abs().max()
    trainer.train()
    assert trained_head(trainer).abs().max() > 0 and hashes() == before


def test_towers_stay_as_they_are(tmp_path):
    tiny = make_tiny(tmp_path / "model", "gemma4-vision")
    for mode in ("full", "lora"):
        trainer, _ = build_rm(tiny, tmp_path / mode, tiny.encode_pairs(pair_rows(8)), mode=mode)
        trained = {name for name, p in trainer.model.named_parameters() if p.requires_grad}
        assert any("language_model" in name for name in trained) and not any("vision" in name for name in trained)
