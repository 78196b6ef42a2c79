"""What training and evaluation say of rows that they do not take: the command or the script that fits."""

from __future__ import annotations

import json
import shlex

import pytest

from gemma_trainer.data.clean import read_clean
from gemma_trainer.data.model import describe_model
from gemma_trainer.models.tiny import make_tokenizer
from gemma_trainer.rows.problems import Failure
from preparing import GOOD, assistant, chat, lines, prep, user

PAIR = {"prompt": [user("Name a bread.")], "chosen": [assistant("Rye.")], "rejected": [assistant("Gravel.")]}
PROMPT = {"prompt": [user("Name a bread.")]}
DAMAGED = {
    "sft": (GOOD, chat(user("a"), assistant(""))),
    "dpo": (PAIR, {**PAIR, "rejected": PAIR["chosen"]}),
    "rm": (PAIR, {**PAIR, "margin": 2e6}),
    "prompts": (PROMPT, {"prompt": [user("a"), assistant("b")]}),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("a model")
    make_tokenizer(["Name a bread. Rye."], "gemma3").save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "gemma3_text"}))
    return str(folder)


def refusal(folder, rows, task, model, family="auto") -> Failure:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(Failure) as caught:
        read_clean([folder / "rows.jsonl"], task, describe_model(family, model))
    assert (caught.value.exit_code, caught.value.problem.code) == (3, "data-refused")
    return caught.value


@pytest.mark.parametrize("family", ["auto", "gemma3"])
@pytest.mark.parametrize("task", DAMAGED)
def test_the_command_that_is_told_leaves_rows_that_are_taken(task, family, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = shlex.split(refusal(tmp_path, DAMAGED[task], task, model, family).problem.fix)
    assert words[words.index("--model") + 1] == model and words[words.index("--task") + 1] == task
    code, _ = prep(*words[2:])
    assert code == 0 and len(lines(tmp_path / "rejects.jsonl")) == 1
    rows, _ = read_clean([tmp_path / "clean.jsonl"], task, describe_model(family, model))
    assert [row.data for row in rows] == [DAMAGED[task][0]]


@pytest.mark.parametrize(
    ("rows", "task", "fits"),
    [
        ([PAIR], "sft", ("dpo_train.py", "rm_train.py", "--metric reward-accuracy")),
        ([GOOD], "dpo", ("sft_train.py", "evaluate.py without")),
        ([GOOD], "rm", ("sft_train.py", "evaluate.py without")),
        ([PROMPT], "sft", ("distill_dataset.py respond",)),
        ([PROMPT], "dpo", ("distill_dataset.py respond",)),
        ([GOOD], "prompts", ("sft_train.py",)),
    ],
)
def test_rows_of_another_kind_name_the_script_that_takes_them(rows, task, fits, model, tmp_path):
    problem = refusal(tmp_path, rows, task, model).problem
    assert all(name in problem.fix for name in fits) and " convert " not in problem.fix
    assert "they are " in problem.message
