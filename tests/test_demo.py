"""--demo: before and after on held-out rows, and a run directory like any other; what is not the demo's stays."""

import json
from argparse import Namespace
from pathlib import Path

import jsonschema
import pytest

from gemma_trainer.rows.problems import Failure
from gemma_trainer.train import demo, demo_pairs
from gemma_trainer.train.dpo import PreferenceTuning
from gemma_trainer.train.rm import RewardModelling
from gemma_trainer.train.sft import SupervisedTuning
from scripts import ASSETS, run

METHODS = [SupervisedTuning, PreferenceTuning, RewardModelling]


def begin(method, output, **flags):
    args = Namespace(output_dir=str(output), emulate=None, demo=True, processes="auto", seed=0, **flags)
    if method is SupervisedTuning:
        return demo.run_demo(args, [])
    return demo_pairs.run_pair_demo(method(), args, [])


def contents(folder):
    return {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("inside", ["thesis.txt", "model.safetensors", "run.json", ".lock"])
@pytest.mark.parametrize("flags", [{"plan": True, "overwrite": True}, {"plan": False, "overwrite": False}])
def test_a_folder_that_no_demo_made_is_neither_removed_nor_used(method, inside, flags, tmp_path):
    base = tmp_path / ("mine-base" if method is SupervisedTuning else "mine-start")
    for folder in (base, tmp_path / f"{base.name}.part"):
        folder.mkdir()
        (folder / inside).write_text("precious")
    before = contents(tmp_path)
    with pytest.raises(Failure) as failure:
        begin(method, tmp_path / "mine", **flags)
    assert (failure.value.exit_code, failure.value.problem.code) == (2, "output-exists")
    assert "--overwrite" not in failure.value.problem.fix and contents(tmp_path) == before


@pytest.mark.parametrize("method", METHODS[1:])
@pytest.mark.parametrize("status", ["done", "stopped"])
@pytest.mark.parametrize("plan", [{"model": "google/gemma-3-270m-it"}, {}])
@pytest.mark.parametrize("demo", [False, True])
def test_a_run_of_the_user_does_not_speak_for_the_demo(method, status, plan, demo, tmp_path):
    record = {"command": "sft_train.py", "arguments": {"demo": demo}, "plan": plan, "status": status, "started": ""}
    (tmp_path / "mine-sft").mkdir()
    (tmp_path / "mine-sft" / "run.json").write_text(json.dumps(record))
    before = contents(tmp_path)
    with pytest.raises(Failure) as failure:
        begin(method, tmp_path / "mine", plan=False, overwrite=True)
    assert failure.value.problem.code == "output-exists" and contents(tmp_path) == before


def test_the_model_of_a_demo_is_made_once_and_whole(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr("gemma_trainer.models.tiny.make_tokenizer", lambda *args: None)
    monkeypatch.setattr("gemma_trainer.models.tiny.make_model", lambda *args, **sizes: made.append(args))

    def save(model, tokenizer, folder):
        folder.mkdir()
        (folder / "model.safetensors").write_text("half")
        if len(made) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr("gemma_trainer.models.tiny.save_tiny", save)
    folder = tmp_path / "new" / "demo-base"
    with pytest.raises(KeyboardInterrupt):
        demo.make_base(folder, 0, [])
    assert list(folder.parent.iterdir()) == []
    folder.mkdir()  # one that is empty is taken
    for _ in range(2):
        demo.make_base(folder, 0, [])
    assert len(made) == 2 and {path.name for path in folder.iterdir()} == {"model.safetensors", demo.MARK}
    assert list(folder.parent.iterdir()) == [folder]


def test_what_lies_beside_a_run_directory_has_its_name(tmp_path, monkeypatch):
    place = tmp_path / "runs" / "here"
    place.mkdir(parents=True)
    monkeypatch.chdir(place)
    assert demo.beside(Path("a/b"), "base") == Path("a/b-base")
    assert demo.beside(Path(), "base") == tmp_path / "runs" / "here-base"
    assert demo.beside(Path("b/.."), "base") == tmp_path / "runs" / "here-base"
    for root in ("/", "/tmp/.."):
        with pytest.raises(Failure) as failure:
            demo.beside(Path(root), "base")
        assert failure.value.exit_code == 2


@pytest.mark.slow
@pytest.mark.main_path
def test_the_demo_measures_before_and_after(tmp_path):
    done = run("sft_train.py", "--demo", "--max-steps", "60", "--json", cwd=tmp_path)
    assert done.code == 0, done.stdout
    result = done.json["result"]
    for side in (result, result["unseen_tables"]):
        assert {"exact_match", "similarity", "sql_match", "loss"} <= side["before"].keys() & side["after"].keys()
    assert result["before"]["exact_match"] == 0.0 and result["after"]["loss"] < result["before"]["loss"] / 2
    assert result["before"]["sql_gold_broken"] == result["before"]["sql_both_empty"] == 0
    record = json.loads((tmp_path / "runs" / "demo" / "run.json").read_text())
    jsonschema.validate(record, json.loads((ASSETS / "schemas" / "run.json").read_text()))
    assert record["metrics"]["after"] == result["after"] and record["status"] == "done"
    card = (tmp_path / "runs" / "demo" / "README.md").read_text()
    assert "SQL result match" in card
    again = run("sft_train.py", "--demo", "--plan", "--json", cwd=tmp_path)
    assert again.code == 0 and again.json["result"]["plan"]["mode"] == "full"
