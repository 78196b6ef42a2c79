"""Packed rows: all there, whole, and blind to their neighbours in every family; a packed run learns what a padded one does."""

from __future__ import annotations

import json
import random
import signal

import jsonschema
import pytest

from gemma_trainer.data.encode import Encoded
from gemma_trainer.rows.problems import Failure
from gemma_trainer.train.packing import pack, packed_lengths, padding
from scripts import ASSETS, run, signal_after
from training import build, make_place, make_plan, make_tiny, question_rows

KINDS = ["gemma1", "gemma2", "gemma3", "gemma3n", "gemma4", "gemma3-vision", "gemma4-vision"]


@pytest.mark.parametrize("seed", range(5))
def test_every_row_is_packed_whole_and_once(seed):
    chance = random.Random(seed)
    lengths = [chance.randint(1, 100) for _ in range(400)]
    sequences = pack(lengths, 100)
    assert sorted(row for sequence in sequences for row in sequence) == list(range(400))
    sizes = packed_lengths(lengths, 100)
    assert max(sizes) <= 100 and sequences == pack(lengths, 100)
    assert len(sequences) <= 1.05 * sum(lengths) / 100 + 1  # nearly nothing is left free


def test_best_fit_takes_the_fullest_sequence_with_room():
    assert pack([6, 5, 4, 3, 2], 10) == [[0, 2], [1, 3, 4]]
    assert pack([], 10) == [] and pack([10, 10], 10) == [[0], [1]]
    assert pack([12, 3], 10) == [[0], [1]]  # a row that is too long is alone


def test_padding_is_what_the_longest_row_of_a_pass_leaves():
    assert padding([10, 10, 4, 4], micro=2, step=4, seed=0) == 0  # cut by length within the step
    assert padding([10, 6], micro=2, step=2, seed=0) == pytest.approx(4 / 20)


# Plans


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a tiny model and rows."""
    return make_place(tmp_path_factory.mktemp("place"), 150)


def words(*more: object) -> tuple:
    size = ("--max-length", 100, "--effective-batch-size", 4, "--micro-batch-size", 2)
    return ("sft_train.py", "--model", "tiny", "--data", "rows.jsonl", *size, "--json", *more)


def test_a_plan_counts_packed_sequences(place):
    single, packed = (run(*words("--plan", *more), cwd=place) for more in ((), ("--packing",)))
    assert single.code == packed.code == 0, packed.stdout
    plans = [done.json["result"]["plan"] for done in (single, packed)]
    for plan in plans:
        jsonschema.validate(plan, json.loads((ASSETS / "schemas" / "plan.json").read_text()))
    rows, sequences = plans[0]["data"]["train_rows"], plans[0]["data"]["sequences"]
    assert plans[1]["data"]["sequences"] == sequences < rows / 2
    assert [plan["steps"] for plan in plans] == [3 * -(-units // 4) for units in (rows, sequences)]
    assert plans[0]["memory"]["memory_gib"]["activations"] < plans[1]["memory"]["memory_gib"]["activations"]
    assert "not asked for" in plans[0]["why"]["packing"] and f"{sequences} packed" in plans[1]["why"]["packing"]
    shares = plans[1]["data"]["padding"]
    assert 0 <= shares["packed"] < 0.2 and 0 <= shares["rows"] < 0.5
    assert "packing-few-steps" not in packed.codes
    few = run(*words("--plan", "--packing", "--effective-batch-size", 16), cwd=place)
    assert few.code == 0 and "packing-few-steps" in few.codes


@pytest.mark.slow
def test_a_killed_packed_run_resumes_in_two_processes(place):
    more = ("--packing", "--max-steps", 24, "--learning-rate", 0.01, "--save-steps", 2, "--output-dir")
    assert run(*words(*more, "whole"), cwd=place).code == 0
    code, _ = signal_after(place / "killed", 15, signal.SIGKILL, *words(*more, "killed"), cwd=place)
    assert code == -signal.SIGKILL
    done = run(*words(*more, "killed", "--processes", 2), cwd=place)
    assert done.code == 0, done.stdout
    whole, killed = (
        [json.loads(line) for line in (place / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("whole", "killed")
    )
    for key in ("loss", "eval_loss"):
        values = [[line[key] for line in lines if key in line] for lines in (whole, killed)]
        assert values[0] == pytest.approx(values[1], abs=1e-4) and values[0][0] > values[0][-1]


# Rows and their neighbours


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """{kind: a tiny model that has not been trained}, each loaded as a run loads it, and its folder."""
    from gemma_trainer.models.load import load_model

    found = {}

    def get(kind: str):
        if kind not in found:
            folder = tmp_path_factory.mktemp(kind)
            tiny = make_tiny(folder, kind) if kind not in OLD else old_model(kind, folder)
            found[kind] = load_model(str(tiny.path), dtype="float32", device="cpu")
        return found[kind]

    return get


OLD = ("gemma1", "gemma2")


def old_model(kind: str, folder):
    """A tiny Gemma 1, or a Gemma 2 with soft caps."""
    import transformers

    tiny = make_tiny(folder, "gemma3", kind)
    sizes = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "head_dim": 16}
    name = kind.title().removesuffix("1")
    more = {"sliding_window": 8, "query_pre_attn_scalar": 16} if kind == "gemma2" else {}
    config = getattr(transformers, f"{name}Config")(
        **sizes, num_attention_heads=4, num_key_value_heads=2, pad_token_id=0, eos_token_id=1, bos_token_id=2, **more
    )
    getattr(transformers, f"{name}ForCausalLM")(config).save_pretrained(folder)
    return tiny


def rows_of(*lengths: int, seed: int = 0) -> list[Encoded]:
    chance = random.Random(seed)
    return [Encoded([2, *(chance.randint(10, 250) for _ in range(n - 1))], [1] * n) for n in lengths]


def losses_of(model, rows: list[Encoded], max_length: int):
    """Loss of each trained token of the rows, packed into one sequence with padding behind it."""
    import torch

    from gemma_trainer.train.trainer_sft import PackedCollator, as_packed_dataset

    data = as_packed_dataset(rows, max_length).remove_columns("length")
    other = as_packed_dataset(rows_of(max_length), max_length).remove_columns("length")  # a longer one in the batch
    batch = PackedCollator(0, return_position_ids=True)([data[0], other[0]])
    assert len(data) == 1 and "attention_mask" not in batch
    with torch.no_grad():
        logits = model(**{k: v for k, v in batch.items() if k != "labels"}, use_cache=False).logits[0, :-1]
    labels = batch["labels"][0, 1:]
    return torch.nn.functional.cross_entropy(logits, labels, reduction="none", ignore_index=-100)


@pytest.mark.parametrize("kind", KINDS)
def test_a_packed_row_does_not_see_its_neighbour(kind, models):
    """And its loss is that of the row alone. Rows are longer than a sliding window."""
    import torch

    model = models(kind)
    first, middle, last = rows_of(60, 50, 37)
    (changed,) = rows_of(60, seed=1)
    packed, other = (losses_of(model, [each, middle, last], 160) for each in (first, changed))
    assert not torch.equal(packed[:59], other[:59])  # the neighbour is another one
    assert torch.equal(packed[59:], other[59:])
    assert packed[59] == packed[109] == 0 and not packed[146:].any()  # nothing is predicted across rows
    for start, row in ((0, first), (60, middle), (110, last)):
        ids = torch.tensor(row.ids)
        with torch.no_grad():
            alone = torch.nn.functional.cross_entropy(
                model(input_ids=ids[None], use_cache=False).logits[0, :-1], ids[1:], reduction="none"
            )
        assert torch.allclose(packed[start : start + len(row.ids) - 1], alone, atol=1e-5)


def test_a_model_that_ignores_where_rows_begin_is_refused(models, monkeypatch):
    from transformers import masking_utils

    from gemma_trainer.train.trainer_sft import check_parted

    model = models("gemma3").train()
    check_parted(model)
    assert model.training
    monkeypatch.setattr(masking_utils, "find_packed_sequence_indices", lambda position_ids: None)
    with pytest.raises(Failure) as caught:
        check_parted(model)
    assert (caught.value.exit_code, caught.value.problem.code) == (5, "packing-leaks")


# Training


def test_a_step_of_packed_rows_is_that_of_the_same_rows_padded(tmp_path):
    """All rows in one step, the same loss, gradient norm and held-out loss; the first token of a row counts in neither."""
    tiny = make_tiny(tmp_path / "tiny")
    rows, held_out = tiny.encode(question_rows(24)), tiny.encode(question_rows(30)[24:])
    rows = [Encoded(row.ids, [1, *row.mask[1:]]) for row in rows]  # a trained <bos>
    logs = []
    for packing, micro in ((False, 24), (True, 2)):
        sizes = {"effective_batch_size": 24, "micro_batch_size": micro, "accumulation_steps": 12 if packing else 1}
        plan = make_plan(tiny.path, packing=packing, max_length=100, steps=2, learning_rate=1e-3, **sizes)
        trainer, losses = build(tiny, plan, tmp_path / str(packing), rows, held_out)
        assert 3 <= len(trainer.train_dataset) < 24 if packing else len(trainer.train_dataset) == 24
        before = trainer.evaluate()["eval_loss"]
        trainer.train()
        norms = [line["grad_norm"] for line in trainer.state.log_history if "grad_norm" in line]
        logs.append([before, *losses.values, *norms])
    assert logs[1] == pytest.approx(logs[0], rel=1e-4)
