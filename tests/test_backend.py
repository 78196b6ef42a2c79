"""Which engine a plan chooses, why, and what it refuses."""

from __future__ import annotations

import pytest

from gemma_trainer.plan import packages
from gemma_trainer.plan import plan as planning
from gemma_trainer.plan.choices import Wishes
from gemma_trainer.plan.emulate import emulate
from gemma_trainer.plan.fit import fit
from gemma_trainer.plan.packages import broken_pins, unsloth_install
from gemma_trainer.plan.size import size_of
from gemma_trainer.rows.problems import Failure
from scripts import run
from training import make_tiny


@pytest.fixture
def ready(monkeypatch):
    """As where Unsloth is installed with what it wants."""
    monkeypatch.setattr(planning, "unsloth_lack", lambda: None)


@pytest.mark.parametrize(
    ("hardware", "method", "mode", "dropout", "backend", "word"),
    [
        ("1xRTX4090-24G", "sft", None, 0.0, "unsloth", "QLoRA"),
        ("1xRTX4090-24G", "dpo", "qlora", 0.0, "unsloth", "QLoRA"),
        ("1xRTX4090-24G", "sft", "lora", 0.0, "trl", "QLoRA"),
        ("1xRTX4090-24G", "sft", "full", 0.0, "trl", "adapters"),
        ("1xRTX4090-24G", "sft", None, 0.1, "trl", "dropout"),
        ("1xRTX4090-24G", "rm", None, 0.0, "trl", "reward"),
        ("8xH100-80G", "sft", None, 0.0, "trl", "one GPU"),
        ("mps-32G", "sft", None, 0.0, "trl", "Apple"),
        ("cpu-16G", "sft", "qlora", 0.0, "trl", "without a GPU"),
    ],
)
def test_auto_takes_unsloth_for_qlora_on_one_gpu(hardware, method, mode, dropout, backend, word, ready):
    chosen, why = planning.choose_backend("auto", emulate(hardware), method, mode, dropout)
    assert chosen == backend and word in why and "\n" not in why


def test_auto_tells_what_unsloth_lacks(monkeypatch):
    monkeypatch.setattr(
        planning, "unsloth_lack", lambda: "unsloth 2026.10.9 wants trl <=1.15.0, and 1.16.0 is installed"
    )
    chosen, why = planning.choose_backend("auto", emulate("1xRTX4090-24G"))
    assert chosen == "trl" and "wants trl <=1.15.0" in why


@pytest.mark.parametrize(
    ("hardware", "method", "mode", "dropout"),
    [
        ("8xH100-80G", "sft", None, 0.0),
        ("mps-32G", "sft", None, 0.0),
        ("1xRTX4090-24G", "sft", "full", 0.0),
        ("1xRTX4090-24G", "sft", "qlora", 0.05),
        ("1xRTX4090-24G", "rm", None, 0.0),
        ("tpu-v5e-8", "sft", None, 0.0),
    ],
)
def test_unsloth_where_it_cannot_work_is_exit_5(hardware, method, mode, dropout, ready):
    with pytest.raises(Failure) as raised:
        planning.choose_backend("unsloth", emulate(hardware), method, mode, dropout)
    assert raised.value.exit_code == 5


def test_unsloth_that_is_not_ready_is_exit_4_with_the_command(monkeypatch):
    monkeypatch.setattr(planning, "unsloth_lack", lambda: "unsloth is not installed")
    with pytest.raises(Failure) as raised:
        planning.choose_backend("unsloth", emulate("cpu-16G"))
    assert raised.value.exit_code == 4 and "constraints/unsloth.txt" in raised.value.problem.fix


def test_versions_are_compared_with_the_pins_that_unsloth_brings(monkeypatch):
    here = {
        "unsloth": "2026.10.9",
        "unsloth_zoo": "2026.10.9",
        "transformers": "5.24.0",
        "trl": "1.14.2",
        "torch": "2.13.0+cpu",
    }
    pins = ["transformers!=5.0.0,<=5.17.0", "trl<=1.15.0", "torch<2.15.0,>=2.4.0", "torchvision", 'peft>1; extra == "x"',
            'bitsandbytes>9; sys_platform == "nowhere"']  # fmt: skip
    monkeypatch.setattr(packages, "installed", here.get)
    monkeypatch.setattr(packages, "requires", lambda package: pins)
    assert broken_pins("unsloth") == [("transformers", "5.24.0", "!=5.0.0,<=5.17.0")]
    assert packages.unsloth_lack() == "unsloth 2026.10.9 wants transformers !=5.0.0,<=5.17.0, and 5.24.0 is installed"
    here["transformers"] = "5.17.0"
    assert packages.unsloth_lack() is None
    del here["unsloth_zoo"]
    assert packages.unsloth_lack() == "unsloth_zoo is not installed"


def test_the_plan_knows_that_unsloth_quantises_experts():
    """26B-A4B: transformers' 4-bit mode leaves them in 16 bits."""
    model, card = size_of("google/gemma-4-26B-A4B-it"), emulate("1xRTX4090-24G")
    theirs, ours = (fit(model, card, Wishes(backend=backend)) for backend in ("trl", "unsloth"))
    assert ours.fits and not theirs.fits and "experts" in theirs.why and "experts" not in ours.why
    assert ours.estimate.optimizer == 2 * theirs.estimate.optimizer  # float32 adapters


def test_a_run_that_asks_for_an_engine_it_cannot_have(tmp_path):
    tiny = make_tiny(tmp_path / "tiny")
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n')
    words = ("--model", tiny.path, "--data", rows, "--backend", "unsloth", "--mode", "full", "--plan", "--json")
    done = run("sft_train.py", *words)
    assert done.code == 5 and done.codes == {"backend-unsupported"}


def test_the_install_command_names_files_that_are_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pins, skill = unsloth_install().split()[-2:]
    assert (tmp_path / pins).is_file() and (
        tmp_path / skill.strip("'").removesuffix("[unsloth]") / "pyproject.toml"
    ).is_file()
