"""Rows are ordered by length within a step: the same rows and the same loss of every step, in one process or several, after
a resume too."""

from __future__ import annotations

import random
from itertools import pairwise
from types import SimpleNamespace

import pytest

from gemma_trainer.train import batches
from gemma_trainer.train.batches import SharedRowsMixin, StepsByLength
from training import build, make_plan, make_tiny, pair_rows, question_rows

STEP = 12
LENGTHS = random.Random(3).choices(range(1, 500), k=100)


def steps(rows: list[int]) -> list[list[int]]:
    return [rows[at : at + STEP] for at in range(0, len(rows), STEP)]


@pytest.mark.parametrize("epoch", [0, 1, 5])
def test_a_step_has_the_rows_that_shuffling_draws(epoch):
    from accelerate.data_loader import SeedableRandomSampler

    by_length, shuffled = StepsByLength(LENGTHS, STEP, seed=7), SeedableRandomSampler(data_source=LENGTHS, data_seed=7)
    for sampler in (by_length, shuffled):
        sampler.set_epoch(epoch)
    ours, theirs = steps(list(by_length)), steps(list(shuffled))
    assert [sorted(step) for step in ours] == [sorted(step) for step in theirs] and ours != theirs
    for step in ours:
        sizes = [LENGTHS[row] for row in step]
        assert sizes == sorted(sizes, reverse=True)
    assert list(by_length) == [row for step in ours for row in step]  # as often as one asks


class Gathers:
    def gather(self, values):
        return values


def loaders(processes: int, micro: int) -> list:
    """The loader of each process, as accelerate and the trainer make them."""
    from accelerate.data_loader import prepare_data_loader
    from torch.utils.data import DataLoader

    made = []
    for rank in range(processes):
        plain = DataLoader(range(len(LENGTHS)), batch_size=micro, sampler=StepsByLength(LENGTHS, STEP, seed=7))
        loader = prepare_data_loader(plain, num_processes=processes, process_index=rank, use_seedable_sampler=True)
        one = SimpleNamespace(args=SimpleNamespace(world_size=processes), accelerator=Gathers())
        made.append(SharedRowsMixin._shared(one, loader))
    return made


def rounds(processes: int, micro: int, epoch: int, skipped: int = 0) -> list[list[list[int]]]:
    """[round][process] rows, from the micro batch `skipped` on, as a resumed run skips."""
    from accelerate import skip_first_batches

    taken = []
    for loader in loaders(processes, micro):
        for earlier in range(epoch if not skipped else 0):
            loader.set_epoch(earlier)
            list(loader)
        loader = skip_first_batches(loader, skipped) if skipped else loader
        loader.set_epoch(epoch)
        taken.append([batch.tolist() for batch in loader])
    return list(zip(*taken, strict=True))


@pytest.mark.parametrize("processes, micro", [(1, 4), (2, 3), (3, 2)])
@pytest.mark.parametrize("epoch", [0, 1])
def test_a_resumed_epoch_goes_on_with_its_rows(processes, micro, epoch):
    whole = rounds(processes, micro, epoch)
    assert whole != rounds(processes, micro, epoch + 1)
    each = STEP // processes // micro
    assert rounds(processes, micro, epoch, 3 * each) == whole[3 * each :]


@pytest.mark.parametrize("processes, micro", [(2, 3), (3, 2), (2, 2), (4, 3)])
def test_processes_share_the_rows_of_a_step_in_parts_of_about_one_length(processes, micro):
    alone = [row for (batch,) in rounds(1, micro, 1) for row in batch]
    shared = rounds(processes, micro, 1)
    each = STEP // processes // micro
    for number, step in enumerate(steps(alone)):
        parts = shared[number * each : (number + 1) * each]
        assert sorted(row for part in parts for batch in part for row in batch) == sorted(step)
        sizes = [[LENGTHS[row] for batch in part for row in batch] for part in parts]
        assert all(min(longer) >= max(shorter) for longer, shorter in pairwise(sizes))


# Trainers


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("tiny"))


def watched(trainer) -> list[list[list[int]]]:
    """Token ids of every micro batch that the trainer will make."""
    seen, collate = [], trainer.data_collator

    def watching(rows):
        seen.append([list(row["input_ids"]) for row in rows])
        return collate(rows)

    trainer.data_collator = watching
    return seen


@pytest.mark.parametrize("packing", [False, True])
def test_a_resumed_trainer_goes_on_with_its_rows(packing, tiny, tmp_path):
    sizes = {"micro_batch_size": 2, "effective_batch_size": 4, "accumulation_steps": 2}
    plan = make_plan(tiny.path, packing=packing, max_length=48, steps=9, save_steps=1, mode="lora", **sizes)
    rows = tiny.encode(question_rows(22 if not packing else 40))
    trainer, _ = build(tiny, plan, tmp_path / "run", rows)
    trainer.args.save_total_limit = None
    whole = watched(trainer)
    trainer.train()
    per_epoch = -(-len(trainer.train_dataset) // 2)
    assert per_epoch < len(whole) and whole[:per_epoch] != whole[per_epoch : 2 * per_epoch]
    for step in (2, 8):  # in the first epoch and in the second
        again, _ = build(tiny, plan, tmp_path / "run", rows)
        left = watched(again)
        again.train(resume_from_checkpoint=str(tmp_path / "run" / f"checkpoint-{step}"))
        assert left == whole[-len(left) :] and len(left) < len(whole)


def in_order(sampler) -> list[int]:
    """A step's rows in an order of no length."""
    import torch

    chance = torch.Generator().manual_seed(sampler.seed + sampler.epoch)
    return iter(torch.randperm(len(sampler.lengths), generator=chance).tolist())


@pytest.mark.parametrize("method", ["sft", "dpo", "dpo-sft", "rm"])
def test_every_step_has_the_loss_of_its_rows_in_any_order(method, tiny, tmp_path, monkeypatch):
    """And of the whole batch in one pass: also the last step of an epoch, whose micro batches differ in size. The SFT term
    of DPO is a mean per token of a micro batch, so there rows keep their order."""
    from test_dpo import build_dpo
    from test_rm import build_rm

    def curve(name: str, micro: int) -> list[float]:
        sizes = {"micro_batch_size": micro, "accumulation_steps": 8 // micro, "effective_batch_size": 8}
        more = {**sizes, "steps": 4, "mode": "lora", "learning_rate": 0.01}  # of 8, 6, 8 and 6
        pairs = tiny.encode_pairs(pair_rows(14))
        if method == "sft":
            trainer, losses = build(tiny, make_plan(tiny.path, **more), tmp_path / name, tiny.encode(question_rows(14)))
        elif method == "rm":
            trainer, losses = build_rm(tiny, tmp_path / name, pairs, **more)
        else:
            weight = 0.5 if method == "dpo-sft" else 0.0
            trainer, losses = build_dpo(tiny, tmp_path / name, pairs, sft_weight=weight, **more)
        trainer.train()
        return losses.values

    by_length = curve("by-length", 4)
    monkeypatch.setattr(StepsByLength, "__iter__", in_order)
    assert len(by_length) == 4
    assert curve("any", 4) == pytest.approx(by_length, abs=1e-5)
    if method != "dpo-sft":
        assert curve("whole", 8) == pytest.approx(by_length, abs=1e-5)


def test_lengths_are_those_of_the_rows(tiny):
    from gemma_trainer.train import trainer_dpo, trainer_rm, trainer_sft

    rows, pairs = tiny.encode(question_rows(5)), tiny.encode_pairs(pair_rows(5))
    assert list(trainer_sft.as_dataset(rows)[batches.LENGTH]) == [len(row.ids) for row in rows]
    longer = [max(len(pair.chosen.ids), len(pair.rejected.ids)) for pair in pairs]
    for module in (trainer_dpo, trainer_rm):
        assert list(module.as_dataset(pairs)[batches.LENGTH]) == longer


def test_batches_hold_little_padding():
    def padded(taken: list[list[int]]) -> float:
        return 1 - sum(LENGTHS) / sum(max(LENGTHS[row] for row in batch) * len(batch) for batch in taken)

    sampler = StepsByLength(LENGTHS, 32, seed=1)
    ordered = list(sampler)
    shuffled = list(in_order(sampler))
    cut = [[rows[at : at + 4] for at in range(0, len(rows), 4)] for rows in (ordered, shuffled)]
    assert padded(cut[0]) < 0.12 < 0.3 < padded(cut[1])


def test_held_out_rows_come_by_length_and_measure_the_same(tiny, tmp_path):
    """Whatever the size of a batch: the loss is the mean over tokens, as evaluate.py has it."""
    import torch

    held_out = tiny.encode(question_rows(11))
    found = []
    for micro in (1, 3, 11):
        plan = make_plan(tiny.path, micro_batch_size=micro, effective_batch_size=micro)
        trainer, _ = build(tiny, plan, tmp_path / str(micro), held_out, held_out)
        seen = watched(trainer)
        found.append(trainer.evaluate()["eval_loss"])
        sizes = [len(row) for batch in seen for row in batch]
        assert sizes == sorted(sizes, reverse=True) and len(sizes) == 11
    trainer.model.eval()
    total, count = 0.0, 0
    with torch.no_grad():
        for row in held_out:
            ids, kept = torch.tensor(row.ids), torch.tensor(row.mask[1:]) == 1
            logits = trainer.model(input_ids=ids[None]).logits[0, :-1].log_softmax(-1)
            total -= float(logits.gather(1, ids[1:, None])[:, 0][kept].sum())
            count += int(kept.sum())
    assert found == pytest.approx([total / count] * 3, rel=1e-5)
