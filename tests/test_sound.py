"""A run whose numbers break: what is kept of it, what is told, and how it goes on."""

import math
from random import Random

import pytest
import torch
from transformers import TrainerCallback, TrainerControl, TrainerState

from gemma_trainer.data.options import Row
from gemma_trainer.rows.problems import Failure
from gemma_trainer.train import guards
from gemma_trainer.train.guards import BoundedLoss, Checkpoints, DiskRoom, FiniteLoss, Recorder, StopOnSignal
from gemma_trainer.train.rows import EncodedSet
from gemma_trainer.train.run import run_loop
from gemma_trainer.train.run_dir import RunDirectory
from gemma_trainer.train.sound import _less, check_bounded, check_finite, check_room
from gemma_trainer.train.step_rows import rows_of_steps
from gemma_trainer.train.verify import verify_adapter
from training import build, make_plan, make_tiny, numbered, question_rows


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("tiny"))


class Breaker(TrainerCallback):
    """Puts NaN into a trained weight after a step."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step == self.step:
            next(p for p in model.parameters() if p.requires_grad).data.fill_(math.nan)


def train(tiny, folder, held_out=False, callbacks=(), resume=None, **changes):
    """(trainer, FiniteLoss, plan, run) of a run of LoRA that writes a checkpoint after each step."""
    run = RunDirectory(folder)
    if resume is None:
        run.start({"plan": {}})
    plan = make_plan(tiny.path, **{"mode": "lora", "save_steps": 1, "steps": 6, **changes})
    rows = tiny.encode(question_rows(24))
    trainer, _ = build(tiny, plan, run.checkpoints, rows, rows[:4] if held_out else None)
    trainer.rows = EncodedSet(rows, [Row({}, "rows.jsonl", at, at) for at in range(1, 25)])
    finite = FiniteLoss(run)
    for callback in (*callbacks, Recorder(run, plan.steps), Checkpoints(run), finite):
        trainer.add_callback(callback)
    run_loop(trainer, resume, plan.steps)
    return trainer, finite, plan, run


def refused(finite, trainer, plan, run):
    with pytest.raises(Failure) as failure:
        check_finite(finite, trainer, trainer.rows, plan, run)
    return failure.value


# A broken weight shows in the next step's loss; three steps are an epoch, whose end measures the held-out rows.
@pytest.mark.parametrize("step, held_out, broken_at", [(1, False, 2), (2, False, 3), (3, True, 3), (6, True, 6)])
def test_no_checkpoint_from_a_broken_step_on_is_kept(step, held_out, broken_at, tiny, tmp_path):
    trainer, finite, plan, run = train(tiny, tmp_path / "run", held_out, [Breaker(step)])
    assert finite.broken_at == broken_at == trainer.state.global_step
    steps = [int(path.name.split("-")[1]) for path in run.checkpoints.glob("checkpoint-*")]
    assert all(step < broken_at for step in steps) and steps
    failure = refused(finite, trainer, plan, run)
    assert failure.exit_code == 6 and failure.problem.code == "loss-not-finite"
    assert f"checkpoint-{max(steps)} is the newest" in failure.problem.message
    assert "--learning-rate 0.0003" in failure.next[0]


def test_a_break_without_a_checkpoint_is_told(tiny, tmp_path):
    trainer, finite, plan, run = train(tiny, tmp_path / "run", callbacks=[Breaker(2)], save_steps=100)
    failure = refused(finite, trainer, plan, run)
    assert failure.exit_code == 1 and "no checkpoint is left" in failure.problem.message


@pytest.mark.parametrize("key", ["loss", "grad_norm", "eval_loss", "rewards/margins", "eval_kl"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_every_measure_that_breaks_ends_the_run(key, value, tmp_path):
    run = RunDirectory(tmp_path)
    for step in (1, 2, 3):
        (run.checkpoints / f"checkpoint-{step}").mkdir(parents=True)
    finite, state = FiniteLoss(run, ("rewards/margins", "kl")), TrainerState(global_step=2)
    finite.on_log(None, state, TrainerControl(), {"loss": 0.5, "eval_kl": None})
    control = TrainerControl(should_save=True, should_evaluate=True)
    state.global_step = 3
    finite.on_log(None, state, control, {"loss": 0.5, key: value})
    assert (control.should_save, control.should_evaluate, control.should_training_stop) == (False, False, True)
    assert finite.broken_at == 3 and finite.broken == (key,)
    assert {path.name for path in run.checkpoints.iterdir()} == {"checkpoint-1", "checkpoint-2"}


def test_a_broken_start_is_blamed_on_the_weight_or_on_the_values(tiny, tmp_path):
    plan = make_plan(tiny.path, mode="lora", adapter=None)
    trainer, _ = build(tiny, plan, tmp_path / "out", tiny.encode(question_rows(4)))
    trainer.rows = EncodedSet()
    run = RunDirectory(tmp_path / "run")
    finite = FiniteLoss(run)
    finite.on_log(None, TrainerState(global_step=0), TrainerControl(), {"eval_loss": math.nan})
    failure = refused(finite, trainer, plan, run)
    assert failure.exit_code == 2 and failure.problem.code == "start-not-finite"
    weight = dict(trainer.model.named_parameters())["base_model.model.model.norm.weight"]
    weight.data[0] = math.nan
    failure = refused(finite, trainer, plan, run)
    assert "model.norm.weight" in failure.problem.message and failure.problem.fix == "Give another --model."


@pytest.mark.parametrize(
    "changes, told, not_told",
    [
        ({"mode": "full"}, [], ["margin", "beta", "alpha", "dtype"]),
        ({"mode": "lora", "dtype": "bfloat16"}, ["--lora-alpha", "--dtype"], ["margin", "--beta"]),
        ({"method": "dpo", "objective": {"beta": 0.1}}, ["--beta"], ["margin", "dtype"]),
        ({"method": "rm", "mode": "lora", "adapter": {"path": "x"}}, ["margin"], ["--beta", "--lora-alpha"]),
    ],
)
def test_what_may_be_too_large_is_what_the_run_has(changes, told, not_told, tiny):
    fix = _less(make_plan(tiny.path, **changes))
    assert (fix is None) == (not told)
    assert all(word in (fix or "") for word in told) and not any(word in (fix or "") for word in not_told)


@pytest.mark.parametrize("weight, code, exit_code", [(0.0, "adapter-untrained", 2), (1e-30, "adapter-untrained", 2), (0.1, None, 0)])  # fmt: skip
def test_steps_too_small_for_any_effect_are_told(weight, code, exit_code, tiny, tmp_path):
    trainer, _ = build(tiny, make_plan(tiny.path, mode="lora"), tmp_path / "out", tiny.encode(question_rows(4)))
    for name, parameter in trainer.model.named_parameters():
        if "lora_B" in name:
            parameter.data.fill_(weight)
    trainer.model.save_pretrained(tmp_path)
    ids = tiny.encode(question_rows(1))[0].ids
    if code is None:
        assert verify_adapter(trainer.model, tmp_path, ids)["effect"] > 0
        return
    with pytest.raises(Failure) as failure:
        verify_adapter(trainer.model, tmp_path, ids)
    assert (failure.value.problem.code, failure.value.exit_code) == (code, exit_code)
    assert "--learning-rate" in failure.value.problem.fix


def test_a_finished_loop_makes_no_step_more(tiny, tmp_path):
    trainer, _, _, run = train(tiny, tmp_path / "run", steps=4)  # in the middle of the second epoch
    last, lines = run.newest_checkpoint(), run.metrics()
    again, *_ = train(tiny, tmp_path / "run", resume=last, steps=4)
    assert again.state.global_step == 4 and run.metrics() == lines
    trained = dict(trainer.model.named_parameters())
    assert all((p == trained[name]).all() for name, p in again.model.named_parameters() if p.requires_grad)


@pytest.mark.parametrize("stop", [2, 3])  # in the middle of an epoch, and at its end
def test_a_stopped_and_resumed_run_measures_as_often_as_an_undisturbed_one(stop, tiny, tmp_path):
    class Stop(StopOnSignal):
        def on_step_end(self, args, state, control, **kwargs):
            self.received = 15 if state.global_step == stop else None
            super().on_step_end(args, state, control, **kwargs)

    _, _, _, whole = train(tiny, tmp_path / "whole", held_out=True)
    _, _, _, run = train(tiny, tmp_path / "run", held_out=True, callbacks=[Stop()])
    assert run.newest_checkpoint().name == f"checkpoint-{stop}"
    train(tiny, tmp_path / "run", held_out=True, resume=run.newest_checkpoint())
    measured = [[line["step"] for line in each.metrics() if "eval_loss" in line] for each in (run, whole)]
    assert measured == [[3, 6], [3, 6]]


# Which rows


class Taken:
    """The token ids of the passes of each step."""

    def __init__(self, trainer):
        self.steps, inner = {}, trainer.training_step

        def step(model, inputs, *more):
            self.steps.setdefault(trainer.state.global_step + 1, []).extend(inputs["input_ids"].tolist())
            return inner(model, inputs, *more)

        trainer.training_step = step


@pytest.mark.parametrize("micro, accumulation, steps", [(8, 1, 6), (2, 4, 6), (3, 2, 9)])
def test_the_rows_of_a_step_are_those_that_it_took(micro, accumulation, steps, tiny, tmp_path):
    """24 rows; batches of 6 and 8, so that epochs end within the run."""
    plan = make_plan(tiny.path, mode="lora", steps=steps, micro_batch_size=micro, accumulation_steps=accumulation)
    encoded = EncodedSet(
        tiny.encode(numbered(question_rows(24))), [Row({}, "rows.jsonl", at, at) for at in range(1, 25)]
    )
    trainer, _ = build(tiny, plan, tmp_path, encoded.rows)
    taken = Taken(trainer)
    trainer.train()
    pad = trainer.processing_class.pad_token_id
    by_ids = {tuple(row.ids): at for at, row in enumerate(encoded.rows, start=1)}
    for step, sequences in taken.steps.items():
        expected = sorted(by_ids[tuple(i for i in ids if i != pad)] for ids in sequences)
        assert [row.line for row in rows_of_steps(trainer, encoded, step, step)] == expected
    first = {row.line for step in (1, 2) for row in rows_of_steps(trainer, encoded, step, step)}
    assert {row.line for row in rows_of_steps(trainer, encoded, 1, 2)} == first


def test_rows_of_a_broken_step_are_named_by_file_and_line(tiny, tmp_path):
    trainer, finite, plan, run = train(tiny, tmp_path / "run", callbacks=[Breaker(1)])
    lines = sorted(row.line for row in rows_of_steps(trainer, trainer.rows, 2, 2))
    message = refused(finite, trainer, plan, run).problem.message
    assert f"at step 2, whose rows are rows.jsonl:{','.join(map(str, lines))};" in message and len(lines) == 8


# A loss that explodes


def fed(folder, losses, metrics=()):
    """(BoundedLoss, TrainerControl) after logged losses; `metrics` were logged before a resume."""
    run = RunDirectory(folder)
    for step, loss in enumerate(metrics, start=1):
        run.log({"step": step, "loss": loss})
    bounded, state, control = BoundedLoss(run), TrainerState(global_step=len(metrics)), TrainerControl()
    bounded.on_train_begin(None, state, control)
    for loss in losses:
        state.global_step += 1
        bounded.on_log(None, state, control, {"loss": loss})
        if control.should_training_stop:
            break
    return bounded, control


def noisy(seed, level, spread, count=400):
    random = Random(seed)
    return [level * math.exp(random.gauss(0, spread) - at / 200) for at in range(count)]


@pytest.mark.parametrize("resumed", [0, 7, 25])
def test_an_exploded_loss_ends_the_run(resumed, tmp_path):
    losses = [2.0 - at / 30 for at in range(30)] + [3.0, 9.0, 4.0, 8.0, 9.0, 8.5, 9.0, 7.0, *[9.0] * 9]
    bounded, control = fed(tmp_path, losses[resumed:], losses[:resumed])
    assert control.should_training_stop and (bounded.sound, bounded.broken_at) == (31, 41)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("level, spread", [(0.7, 0.9), (3.0, 0.5), (0.02, 1.5), (25.0, 0.7)])
def test_noise_does_not_end_a_run(seed, level, spread, tmp_path):
    """As single pairs of DPO, rows of SFT, a nearly learned set and IPO give it."""
    assert fed(tmp_path, noisy(seed, level, spread))[0].broken_at is None


class Shaker(TrainerCallback):
    """Moves the trained weights far off, again and again, after step 10."""

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step > 10:
            for parameter in model.parameters():
                parameter.data += torch.randn_like(parameter) * parameter.requires_grad


def test_an_explosion_is_told_with_step_rows_and_what_to_try(tiny, tmp_path):
    run = RunDirectory(tmp_path)
    bounded = BoundedLoss(run)
    trainer, _, plan, run = train(tiny, tmp_path, callbacks=[Shaker(), bounded], mode="full", steps=40, save_steps=10)
    with pytest.raises(Failure) as failure:
        check_bounded(bounded, trainer, trainer.rows, plan, run)
    told, message = failure.value, failure.value.problem.message
    assert told.exit_code == 6 and told.problem.code == "loss-exploded" and trainer.state.global_step == 21
    assert "from step 12 on" in message and "rows.jsonl:" in message and "checkpoint-10 is the newest" in message
    assert "--learning-rate 0.0003" in told.next[0]


# A full disk


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_no_checkpoint_is_begun_that_the_disk_cannot_take(kept, tiny, tmp_path, monkeypatch):
    """The free space falls after step `kept`; what is whole before stays, the newest at least."""
    room, state = DiskRoom(RunDirectory(tmp_path / "run")), {"free": 2**40}
    monkeypatch.setattr(guards.shutil, "disk_usage", lambda path: type("Usage", (), state))

    class Fill(TrainerCallback):
        def on_step_end(self, args, trained, control, **kwargs):
            state["free"] = 2**40 if trained.global_step <= kept else 2**26

    trainer, _, _, run = train(tiny, tmp_path / "run", callbacks=[Fill(), room])
    assert trainer.state.global_step == kept + 1
    assert [path.name for path in run.checkpoints.glob("checkpoint-*")] == [f"checkpoint-{kept}"] * bool(kept)
    with pytest.raises(Failure) as failure:
        check_room(room, run)
    assert failure.value.exit_code == (6 if kept else 1) and failure.value.problem.code == "disk-full"
    monkeypatch.undo()
    run.release()
    again, *_ = train(tiny, tmp_path / "run", resume=run.newest_checkpoint())
    assert again.state.global_step == 6


class Predicted(TrainerCallback):
    def on_step_end(self, args, state, control, model=None, optimizer=None, **kwargs):
        self.size = guards._checkpoint_size(model, optimizer)


@pytest.mark.parametrize("mode", ["lora", "full"])
def test_a_checkpoint_is_as_large_as_predicted(mode, tiny, tmp_path):
    predicted = Predicted()
    _, _, _, run = train(tiny, tmp_path, callbacks=[predicted], mode=mode, steps=1)
    assert predicted.size < guards.size_of(run.newest_checkpoint()) < predicted.size + guards.SPARE
