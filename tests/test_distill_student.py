"""Rows are counted with the tokens of the model that is to be trained."""

from pathlib import Path

import pytest

from gemma_trainer.data.model import describe_model
from gemma_trainer.distill.student import fitting, longest
from gemma_trainer.distill.work import Item, Result


@pytest.fixture(scope="module")
def student(tmp_path_factory, small_tokenizer):
    folder: Path = tmp_path_factory.mktemp("student")
    small_tokenizer("gemma3").save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text('{"model_type": "gemma3_text"}')
    return describe_model("auto", str(folder))


def conversation(*lengths: int, **meta) -> dict:
    """A row with answers of so many words."""
    turns = [({"role": "user", "content": "go on"}, {"role": "assistant", "content": "the cat " * n}) for n in lengths]
    return {"messages": [message for turn in turns for message in turn], "meta": {"id": "x", **meta}}


def fit(student, row: dict, max_length: int) -> Result:
    return next(fitting(iter([(Item("a", None), Result([row]))]), student, max_length))[1]


def test_a_row_at_the_limit_is_kept_and_one_over_it_is_not(student):
    row = conversation(30)
    length = longest(row, student)
    assert fit(student, row, length).rows == [row]
    refused = fit(student, row, length - 1)
    assert refused.rows == [] and refused.rejects[0].reasons == ["too-long"]
    assert str(length) in refused.rejects[0].row["details"]["too-long"] and refused.rejects[0].ids == ["x"]


def test_a_conversation_of_the_teacher_keeps_the_turns_that_fit(student):
    row = conversation(3, 3, 200, kind="multi-turn")
    row["messages"][-1]["reasoning_content"] = "hm"
    row["chat_template_kwargs"] = {"enable_thinking": True}
    (kept,) = fit(student, row, 100).rows
    assert kept["messages"] == row["messages"][:4] and kept["meta"]["turns_cut"]
    assert "chat_template_kwargs" not in kept
    assert fit(student, conversation(3, 3, 200), 100).rows == []  # the earlier answers are the prompt's
    assert fit(student, conversation(200, 3, kind="multi-turn"), 100).rows == []


def test_the_longer_side_of_a_pair_counts(student):
    prompt = [{"role": "user", "content": "go"}]
    sides = [[{"role": "assistant", "content": "cat " * n}] for n in (2, 50)]
    for chosen, rejected in (sides, sides[::-1]):
        row = {"prompt": prompt, "chosen": chosen, "rejected": rejected, "meta": {"id": "x"}}
        assert longest(row, student) == longest({"messages": prompt + sides[1]}, student)


def test_what_the_template_refuses_is_a_reject(student):
    row = {
        "messages": [{"role": "user", "content": "a"}] * 2 + [{"role": "assistant", "content": "b"}],
        "meta": {"id": "x"},
    }
    assert fit(student, row, 100).rejects[0].reasons == ["invalid"]
