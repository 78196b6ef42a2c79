"""A run directory never takes away what the run starts from."""

from argparse import Namespace

import pytest

from gemma_trainer.rows.problems import Failure
from gemma_trainer.train.sources import check_apart
from training import make_plan


@pytest.fixture
def place(tmp_path, monkeypatch):
    """In the current folder: an adapter, a model, rows and a config file, each in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    for folder in ("adapters/sft", "models/base", "rows", "settings", "free"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("rows/train.jsonl", "rows/eval.jsonl", "settings/run.yaml"):
        (tmp_path / file).write_text("{}")
    (tmp_path / "link").symlink_to("adapters/sft")
    (tmp_path / "free" / "linked.jsonl").symlink_to("../rows/train.jsonl")
    return tmp_path


def check(output, place, data="rows/train.jsonl", **given):
    """The base model is named by the adapter alone, as it is with --adapter."""
    named = {"adapter": "adapters/sft", "model": None, "config": "settings/run.yaml", "eval_data": ["rows/eval.jsonl"]}
    plan = make_plan(place / "models" / "base", adapter={"path": str(place / "adapters" / "sft")})
    check_apart(place / output, Namespace(**{**named, "data": [data], **given}), plan)


@pytest.mark.parametrize("output", ["adapters/sft", "adapters", "link", "adapters/../adapters/sft", "models/base", "models", "rows", "settings", "."])  # fmt: skip
def test_an_output_that_is_or_holds_a_source_is_refused(output, place):
    with pytest.raises(Failure) as failure:
        check(output, place)
    assert failure.value.exit_code == 2 and failure.value.problem.code == "usage"


def test_a_link_to_a_source_is_a_source(place):
    with pytest.raises(Failure):
        check("free", place, data="free/linked.jsonl")


@pytest.mark.parametrize("output", ["free", "new", "adapters/sft/next", "adapters/sft-2"])
def test_beside_and_inside_a_source_there_is_room(output, place):
    check(output, place)
    (place / output).mkdir(exist_ok=True)
    check(output, place)
