"""A run whose numbers break: what is kept of it, what is told, and how it goes on."""

import math

import pytest
from transformers import TrainerCallback, TrainerControl, TrainerState

from gemma_trainer.rows.problems import Failure
from gemma_trainer.train.guards import Checkpoints, FiniteLoss, Recorder, StopOnSignal
from gemma_trainer.train.run import run_loop
from gemma_trainer.train.run_dir import RunDirectory
from gemma_trainer.train.sound import check_finite
from training import build, make_plan, make_tiny, question_rows


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
    finite = FiniteLoss(run)
    for callback in (*callbacks, Recorder(run, plan.steps), Checkpoints(), finite):
        trainer.add_callback(callback)
    run_loop(trainer, resume, plan.steps)
    return trainer, finite, plan, run


def refused(finite, trainer, plan, run):
    with pytest.raises(Failure) as failure:
        check_finite(finite, trainer.model, plan, run)
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
    assert finite.broken_at == 3 and finite.broken == [key]
    assert {path.name for path in run.checkpoints.iterdir()} == {"checkpoint-1", "checkpoint-2"}


def test_a_broken_start_is_blamed_on_the_weight_or_on_the_values(tiny, tmp_path):
    plan = make_plan(tiny.path, mode="lora", adapter=None)
    trainer, _ = build(tiny, plan, tmp_path / "out", tiny.encode(question_rows(4)))
    run = RunDirectory(tmp_path / "run")
    finite = FiniteLoss(run)
    finite.on_log(None, TrainerState(global_step=0), TrainerControl(), {"eval_loss": math.nan})
    failure = refused(finite, trainer, plan, run)
    assert failure.exit_code == 2 and failure.problem.code == "start-not-finite" and "--beta" in failure.problem.fix
    weight = dict(trainer.model.named_parameters())["base_model.model.model.norm.weight"]
    weight.data[0] = math.nan
    failure = refused(finite, trainer, plan, run)
    assert "model.norm.weight" in failure.problem.message and failure.problem.fix == "Give another --model."


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
