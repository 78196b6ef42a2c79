"""Preference training inside the process: the reference, the losses, the masks, what is saved."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch.nn.functional import logsigmoid

from gemma_trainer.models.load import load_adapter, load_model, load_tokenizer_files
from gemma_trainer.train.dpo import PreferenceTuning
from gemma_trainer.train.trainer_dpo import PairCollator, as_dataset, build_trainer
from preparing import TOOLS, assistant, call, result, user
from scripts import ASSETS
from training import Losses, build, make_plan, make_tiny, moved, pair_rows, question_rows

EXAMPLE = ASSETS / "examples" / "preferences"
OBJECTIVE = {"loss": "sigmoid", "beta": 0.1, "label_smoothing": 0.0, "sft_weight": 0.0, "precompute_ref": False}
LORA = {"mode": "lora", "method": "dpo", "lora": {"rank": 4, "alpha": 8, "dropout": 0.0}}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("gemma3"))


@pytest.fixture(scope="module")
def tiny4(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("gemma4"), "gemma4")


def tuned_adapter(tiny, folder):
    """The adapter of a short SFT run."""
    plan = make_plan(tiny.path, mode="lora", learning_rate=0.02, steps=6)
    trainer, _ = build(tiny, plan, folder / "work", tiny.encode(question_rows(32)))
    trainer.train()
    trainer.model.save_pretrained(folder / "sft")
    return {"path": str(folder / "sft"), "hash": "", "rank": 8, "alpha": 16}


@pytest.fixture(scope="module")
def adapter(tiny, tmp_path_factory):
    return tuned_adapter(tiny, tmp_path_factory.mktemp("sft"))


def build_dpo(tiny, folder, train=None, held_out=None, **changes):
    """(trainer, losses) as dpo_train.py makes them; `changes` of the plan and of its objective."""
    objective = OBJECTIVE | {name: changes.pop(name) for name in OBJECTIVE.keys() & changes.keys()}
    plan = make_plan(tiny.path, **{**LORA, "objective": objective, **changes})
    if plan.mode == "full":
        plan.lora = None
    losses = Losses()
    train = train or tiny.encode_pairs(pair_rows(16))
    trainer = build_trainer(
        load_model(plan.model, dtype=plan.dtype, device="cpu", quantize=plan.mode == "qlora"),
        load_tokenizer_files(plan.model, None),
        plan,
        train,
        held_out or train,
        folder,
        "none",
        [losses],
    )
    return trainer, losses


@torch.no_grad()
def answer_logps(model, pairs):
    """[pairs, 2] sums and lists of the log-probabilities of answer tokens, one plain forward pass a sequence."""
    sums, counts = [], []
    model.eval()
    for pair in pairs:
        for side in (pair.chosen, pair.rejected):
            scores = model(input_ids=torch.tensor([side.ids])).logits[0, :-1].float().log_softmax(-1)
            every = scores.gather(1, torch.tensor(side.ids[1:])[:, None])[:, 0]
            kept = every[torch.tensor(side.mask[1:]) == 1]
            sums.append(kept.sum())
            counts.append(len(kept))
    return torch.stack(sums).view(-1, 2), torch.tensor(counts).view(-1, 2)


def formula(loss, beta, smoothing, sft_weight, policy, reference, counts):
    """The papers' losses, written once more."""
    ratio = policy - reference
    h = ratio[:, 0] - ratio[:, 1]
    per_pair = {
        "sigmoid": lambda: -torch.log(torch.sigmoid(beta * h)),
        "hinge": lambda: torch.clamp(1 - beta * h, min=0),
        "ipo": lambda: ((ratio / counts)[:, 0] - (ratio / counts)[:, 1] - 1 / (2 * beta)).square(),
        "robust": lambda: (
            (-(1 - smoothing) * logsigmoid(beta * h) + smoothing * logsigmoid(-beta * h)) / (1 - 2 * smoothing)
        ),
    }[loss]()
    return per_pair.mean() - sft_weight * policy[:, 0].sum() / counts[:, 0].sum()


def agent_rows():
    """Pairs with tools, calls, results and thinking, on both sides and in the prompt."""
    call_again = assistant("", tool_calls=[call(id="c2")])
    said = [
        assistant("", tool_calls=[call()]),
        result("id name price", tool_call_id="c1"),
        assistant("the year", reasoning_content="List"),
    ]
    asked = [
        user("SELECT"),
        assistant("", tool_calls=[call(id="c0")]),
        result("books", tool_call_id="c0"),
        assistant("orders"),
        user("users"),
    ]
    rows = [
        {"prompt": asked, "chosen": said, "rejected": [assistant("cities", reasoning_content="id")], "tools": TOOLS},
        {"prompt": [user("name")], "chosen": [assistant("all price")], "rejected": [call_again, result("year", tool_call_id="c2"), assistant("id")], "tools": TOOLS},
    ]  # fmt: skip
    return rows


@pytest.mark.parametrize("loss, sft_weight", [("sigmoid", 0.0), ("ipo", 0.0), ("hinge", 0.0), ("robust", 0.0), ("sigmoid", 0.3), ("ipo", 0.5)])  # fmt: skip
def test_losses_are_those_of_the_papers(loss, sft_weight, tiny, adapter, tmp_path):
    pairs = tiny.encode_pairs(pair_rows(6))
    smoothing = 0.2 if loss == "robust" else 0.0
    objective = {"loss": loss, "sft_weight": sft_weight, "label_smoothing": smoothing, "beta": 0.3}
    trainer = moved(build_dpo(tiny, tmp_path, pairs, adapter=adapter, micro_batch_size=6, **objective)[0])
    reference, counts = answer_logps(
        load_adapter(load_model(str(tiny.path), dtype="float32", device="cpu"), adapter["path"]), pairs
    )
    policy, _ = answer_logps(trainer.model, pairs)
    expected = float(formula(loss, 0.3, smoothing, sft_weight, policy, reference, counts))
    batch = trainer.data_collator([trainer.train_dataset[i] for i in range(6)])
    assert trainer.compute_loss(trainer.model, batch).item() == pytest.approx(expected, abs=1e-5)
    measured = trainer.evaluate()
    assert measured["eval_loss"] == pytest.approx(expected, abs=1e-5)
    assert measured["eval_logps/chosen"] == pytest.approx(float(policy[:, 0].mean()), abs=1e-4)
    margins = 0.3 * ((policy - reference)[:, 0] - (policy - reference)[:, 1])
    assert measured["eval_rewards/margins"] == pytest.approx(float(margins.mean()), abs=1e-4)
    assert measured["eval_rewards/accuracies"] == pytest.approx(float((margins > 0).float().mean()))


def test_tools_and_thinking_are_measured_as_in_a_plain_computation(tiny4, tmp_path):
    pairs = tiny4.encode_pairs(agent_rows())
    trainer = moved(build_dpo(tiny4, tmp_path, pairs)[0])
    reference, counts = answer_logps(load_model(str(tiny4.path), dtype="float32", device="cpu"), pairs)
    policy, _ = answer_logps(trainer.model, pairs)
    batch = trainer.data_collator([trainer.train_dataset[i] for i in range(2)])
    expected = float(formula("sigmoid", 0.1, 0, 0, policy, reference, counts))
    assert abs(expected - math.log(2)) > 1e-3
    assert trainer.compute_loss(trainer.model, batch).item() == pytest.approx(expected, abs=1e-5)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, abs=1e-5)


def test_the_mask_covers_what_the_assistant_says_behind_the_prompt(tiny4):
    pairs = tiny4.encode_pairs(agent_rows())
    decode = tiny4.tokenizer.backend.decode
    trained = [
        decode([i for i, m in zip(side.ids, side.mask, strict=True) if m], skip_special_tokens=False)
        for pair in pairs
        for side in pair[:2]
    ]
    assert "tide" in trained[0] and "the year" in trained[0] and "List" in trained[0]
    for words in ("id name price", "orders", "books", "users"):  # a result, and what stands in the prompt
        assert words not in trained[0]
    assert "cities" in trained[1] and "orders" not in trained[1]
    assert "year" not in trained[3] and "tide" in trained[3]
    batch = PairCollator(0)(as_dataset(pairs).to_list())
    assert batch["completion_mask"].sum().item() == sum(sum(side.mask) for pair in pairs for side in pair[:2])
    assert batch["input_ids"][2, : len(pairs[0].rejected.ids)].tolist() == pairs[0].rejected.ids
    assert batch["attention_mask"].sum(1).tolist() == [len(s.ids) for n in ("chosen", "rejected") for s in (getattr(p, n) for p in pairs)]  # fmt: skip


def test_the_reference_is_the_sft_model_and_not_its_base(tiny, adapter, tmp_path):
    pairs = tiny.encode_pairs(pair_rows(8))
    trainer, losses = build_dpo(tiny, tmp_path, pairs, adapter=adapter, learning_rate=0.01)
    base = load_model(str(tiny.path), dtype="float32", device="cpu")
    of_base, _ = answer_logps(base, pairs)
    of_sft, _ = answer_logps(load_adapter(base, adapter["path"]), pairs)
    assert (of_base - of_sft).abs().min() > 0.1
    trainer.train()
    assert losses.values[0] == pytest.approx(math.log(2), abs=1e-6) and losses.values[-1] < 0.69
    with trainer.reference() as reference:
        now, _ = answer_logps(reference, pairs)
    assert torch.allclose(now, of_sft, atol=1e-4)
    trained = {name for name, parameter in trainer.model.named_parameters() if parameter.requires_grad}
    assert trained and all(".default." in name for name in trained)


@pytest.mark.parametrize("mode", ["lora", "full"])
def test_without_an_adapter_the_reference_is_the_model(mode, tiny, tmp_path):
    pairs = tiny.encode_pairs(pair_rows(8))
    trainer, losses = build_dpo(tiny, tmp_path, pairs, mode=mode, learning_rate=0.01)
    assert (trainer.ref_model is None) == (mode == "lora")  # no second copy of the weights beside adapters
    expected, _ = answer_logps(load_model(str(tiny.path), dtype="float32", device="cpu"), pairs)
    trainer.train()
    assert losses.values[0] == pytest.approx(math.log(2), abs=1e-6) and losses.values[-1] < 0.69
    with trainer.reference() as reference:
        assert torch.allclose(answer_logps(reference, pairs)[0], expected, atol=1e-4)


def test_full_training_merges_a_starting_adapter(tiny, adapter, tmp_path):
    pairs = tiny.encode_pairs(pair_rows(8))
    trainer, losses = build_dpo(tiny, tmp_path, pairs, mode="full", adapter=adapter, learning_rate=1e-3)
    sft = load_adapter(load_model(str(tiny.path), dtype="float32", device="cpu"), adapter["path"])
    expected, _ = answer_logps(sft, pairs)
    for model in (trainer.model, trainer.ref_model):
        assert torch.allclose(answer_logps(model, pairs)[0], expected, atol=1e-3)
    trainer.train()
    assert losses.values[0] == pytest.approx(math.log(2), abs=1e-6) and losses.values[-1] < 0.69


@pytest.mark.parametrize("start", ["model", "adapter", "full"])
def test_precomputed_references_give_the_same_losses(start, tiny, adapter, tmp_path):
    plan = {
        "learning_rate": 0.03,
        "steps": 2,
        "mode": "full" if start == "full" else "lora",
        "micro_batch_size": 4,
        "accumulation_steps": 2,
    }
    plan |= {"adapter": adapter} if start == "adapter" else {}
    runs = []
    for precompute in (False, True):
        trainer, losses = build_dpo(tiny, tmp_path / str(precompute), precompute_ref=precompute, **plan)
        trainer.train()
        measured = trainer.evaluate()
        runs.append((losses.values, measured["eval_loss"], measured["eval_rewards/margins"], trainer))
    assert runs[0][0] == pytest.approx(runs[1][0], abs=1e-5) and runs[0][0][0] != runs[0][0][-1]
    assert runs[0][1:3] == pytest.approx(runs[1][1:3], abs=1e-4)
    assert runs[1][3].ref_model is None


def test_accumulation_does_not_change_the_losses(tiny, adapter, tmp_path):
    runs = []
    for micro in (8, 2):
        cut = {"micro_batch_size": micro, "accumulation_steps": 8 // micro}
        trainer, losses = build_dpo(tiny, tmp_path / str(micro), adapter=adapter, learning_rate=0.03, steps=2, **cut)
        trainer.train()
        runs.append(losses.values)
    assert runs[0] == pytest.approx(runs[1], abs=1e-5)


@pytest.mark.parametrize("kind", ["gemma3", "gemma3-vision", "gemma3n", "gemma4", "gemma4-vision"])
def test_kl_is_the_exact_one_of_every_architecture(kind, tmp_path):
    tiny = make_tiny(tmp_path / "model", kind)
    pairs = tiny.encode_pairs(pair_rows(4))
    trainer = moved(build_dpo(tiny, tmp_path, pairs, micro_batch_size=3)[0])
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    measured = trainer.evaluate()
    divergence, count = 0.0, 0
    with torch.no_grad():
        for side in (side for pair in pairs for side in pair[:2]):
            ids, kept = torch.tensor([side.ids]), torch.tensor(side.mask[1:]) == 1
            policy = trainer.model(input_ids=ids).logits[0, :-1][kept].float().log_softmax(-1)
            with trainer.model.disable_adapter():
                reference = trainer.model(input_ids=ids).logits[0, :-1][kept].float().log_softmax(-1)
            divergence += float((policy.exp() * (policy - reference)).sum())
            count += int(kept.sum())
    assert measured["eval_kl"] == pytest.approx(divergence / count, abs=1e-5) and divergence > 0
    assert all(torch.equal(value, trainer.model.state_dict()[name]) for name, value in before.items())


def test_checkpoints_hold_one_adapter_that_peft_loads_as_it_is(tiny, adapter, tmp_path):
    from peft import AutoPeftModelForCausalLM

    trainer, _ = build_dpo(tiny, tmp_path, adapter=adapter, learning_rate=0.01, save_steps=2)
    trainer.train()
    checkpoint = tmp_path / "checkpoint-4"
    assert list(checkpoint.rglob("adapter_model.safetensors")) == [checkpoint / "adapter_model.safetensors"]
    assert not list(checkpoint.glob("*/"))
    loaded = AutoPeftModelForCausalLM.from_pretrained(checkpoint)
    ids = torch.tensor([[2, 5, 9, 30]])
    trainer.model.eval()
    assert torch.allclose(loaded(input_ids=ids).logits, trainer.model(input_ids=ids).logits, atol=1e-5)


def test_before_the_first_step_nobody_is_preferred(tiny, adapter, tmp_path):
    measured = build_dpo(tiny, tmp_path, adapter=adapter)[0].evaluate()
    assert measured["eval_rewards/accuracies"] == 0.5 and measured["eval_kl"] == measured["eval_rewards/margins"] == 0.0
    assert measured["eval_loss"] == pytest.approx(math.log(2), abs=1e-9)


def test_new_layers_take_dropout_and_continued_ones_do_not(tiny, adapter, tmp_path):
    with_dropout = {"lora": {"rank": 4, "alpha": 8, "dropout": 0.5}}
    rates = []
    for changes in (with_dropout, {"adapter": adapter}):
        model = build_dpo(tiny, tmp_path, **changes)[0].model
        rates.append({module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)})
    assert 0.5 in rates[0] and rates[1] <= {0.0}


@pytest.mark.parametrize("held_out", ["eval_", ""])
@pytest.mark.parametrize("lost, told", [(0.7, True), (0.3, False), (-0.5, False)])
def test_a_collapse_of_the_chosen_answers_is_told(lost, told, held_out, tiny):
    """`lost` nats a token; training lines count where nothing was held out."""
    plan = make_plan(tiny.path, objective=OBJECTIVE, data={"answer_tokens": {"chosen": 20.0, "rejected": 9.0}})
    lines = [{"step": step, "rewards/chosen": -0.1 * 20 * 0.7} for step in (1, 2)] if held_out else []
    lines += [{"step": step, f"{held_out}rewards/chosen": reward} for step, reward in ((0, 0.0), (3, -0.1 * 20 * lost))]
    lines = lines if held_out else lines[1:]
    problems = PreferenceTuning().findings(plan, lines)
    assert [problem.code for problem in problems] == ["chosen-collapsed"] * told
    assert PreferenceTuning().findings(plan, []) == []


def test_the_example_is_learned(tmp_path):
    """A few steps from random weights; test_dpo_train.py has the whole of it, from a tuned start, for Gemma 3 and 4."""
    train, held_out = (
        [json.loads(line) for line in (EXAMPLE / f"{name}.jsonl").read_text("utf-8").splitlines()[:count]]
        for name, count in (("train", 320), ("eval", 60))
    )
    tiny = make_tiny(tmp_path / "tiny", texts=[m["content"] for row in train for m in row["prompt"] + row["chosen"]])
    pairs = (tiny.encode_pairs(rows) for rows in (train, held_out))
    size = {"micro_batch_size": 16, "effective_batch_size": 16, "steps": 14, "learning_rate": 7e-3}
    trainer, _ = build_dpo(tiny, tmp_path, *pairs, **size)
    assert trainer.evaluate()["eval_rewards/accuracies"] == 0.5
    trainer.train()
    measured = trainer.evaluate()
    assert measured["eval_rewards/accuracies"] >= 0.9 and measured["eval_loss"] < 0.6
