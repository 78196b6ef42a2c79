"""Numbers of flags and of the environment that no run can have are told in words."""

import argparse

import pytest

from gemma_trainer.plan.processes import Place, find_place
from gemma_trainer.rows.problems import Failure
from gemma_trainer.train.arguments import add_dpo_arguments, add_rm_arguments, add_sft_arguments


def numbers():
    """Each flag of any method that takes a number, once."""
    parsers = [argparse.ArgumentParser() for _ in range(3)]
    for parser, add in zip(parsers, (add_sft_arguments, add_dpo_arguments, add_rm_arguments), strict=True):
        add(parser)
    actions = {action.dest: action for parser in parsers for action in parser._actions if action.type is not None}
    return [action for action in actions.values() if action.dest != "help"]


@pytest.mark.parametrize("text", ["1e308", "1e7", "10000000000", "9" * 400, "nan", "inf", "-inf", "-1", "zwei", ""])
@pytest.mark.parametrize("action", numbers(), ids=lambda action: action.dest)
def test_a_number_that_no_run_can_have_is_refused(action, text):
    assert len(numbers()) > 12
    with pytest.raises((ValueError, argparse.ArgumentTypeError)):
        action.type(text)


PLACE = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "h", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}


@pytest.mark.parametrize("name", ["RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"])
@pytest.mark.parametrize("text", ["z", "", "-1", "1.0", "²"])
def test_a_place_that_cannot_be_is_told(name, text, monkeypatch):
    for each, value in {**PLACE, name: text}.items():
        monkeypatch.setenv(each, value)
    with pytest.raises(Failure) as failure:
        find_place()
    assert failure.value.exit_code == 2 and f"{name} is {text!r}" in failure.value.problem.message


@pytest.mark.parametrize("more", [{"LOCAL_WORLD_SIZE": "0"}, {"RANK": "2"}])
def test_places_lie_in_their_world(more, monkeypatch):
    for each, value in PLACE.items():
        monkeypatch.setenv(each, value)
    assert find_place() == Place(rank=1, world=2, local=1, beside=2, sharded=False)
    for each, value in more.items():
        monkeypatch.setenv(each, value)
    with pytest.raises(Failure):
        find_place()
