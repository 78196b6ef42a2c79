"""Preference rows as ids and masks: the rendering of supervised tuning, both sides whole or none."""

import pytest

from gemma_trainer.data.options import Row
from gemma_trainer.data.render import Renderer
from gemma_trainer.families.catalogue import get_family
from gemma_trainer.rows.problems import Failure
from gemma_trainer.train.pairs import encode_pairs
from gemma_trainer.train.rows import masked_sample
from preparing import assistant, user
from training import Tiny, make_tiny, pair_rows


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Tiny:
    return make_tiny(tmp_path_factory.mktemp("model"))


def encode(tiny, rows, max_length=64, overlong="drop"):
    loaded = [Row(row, "pairs.jsonl", at, at) for at, row in enumerate(rows, start=1)]
    return encode_pairs(loaded, tiny.renderer, tiny.tokenizer, max_length=max_length, overlong=overlong)


def pair(asked: int, chosen: int, rejected: int) -> dict:
    """A row of so many words."""
    words = (" ".join(["name"] * count) for count in (asked, chosen, rejected))
    return dict(zip(("prompt", "chosen", "rejected"), ([make(text)] for make, text in zip((user, assistant, assistant), words, strict=True)), strict=True))  # fmt: skip


def test_a_side_is_encoded_as_the_conversation_it_ends(tiny):
    for row, encoded in zip(pair_rows(12), encode(tiny, pair_rows(12)).rows, strict=True):
        for side in ("chosen", "rejected"):
            alone = tiny.tokenizer.encode(tiny.renderer.render({"messages": row["prompt"] + row[side]}))
            assert getattr(encoded, side) == alone


def test_earlier_answers_of_the_prompt_carry_no_loss(tiny):
    row = {"prompt": [user("id"), assistant("year"), user("name")], "chosen": [assistant("price")], "rejected": [assistant("users")]}  # fmt: skip
    only = encode(tiny, [row]).rows[0]
    for side, word in ((only.chosen, "price"), (only.rejected, "users")):
        said = [i for i, m in zip(side.ids, side.mask, strict=True) if m]
        text = tiny.tokenizer.backend.decode(said, skip_special_tokens=False)
        assert text.startswith(word) and text.rstrip() == f"{word}<end_of_turn>"


@pytest.mark.parametrize("lengths", [(5, 100, 3), (5, 3, 100)])
@pytest.mark.parametrize("overlong, kept", [("drop", 1), ("truncate", 2), ("error", None)])
def test_one_long_side_makes_a_long_pair(lengths, overlong, kept, tiny):
    rows = [pair(5, 4, 3), pair(*lengths)]
    if kept is None:
        with pytest.raises(Failure) as failure:
            encode(tiny, rows, overlong=overlong)
        assert failure.value.problem.code == "overlong-refused" and failure.value.problem.line == 2
        return
    result = encode(tiny, rows, overlong=overlong)
    assert (len(result.rows), result.overlong, result.longest <= 64) == (kept, 1, True)
    assert [problem.code for problem in result.warnings] == ["rows-overlong"]


@pytest.mark.parametrize("asked", range(50, 66))
def test_a_cut_never_leaves_an_answer_empty(asked, tiny):
    result = encode(tiny, [pair(asked, 3, 40), pair(2, 2, 1)], overlong="truncate")
    assert all(any(side.mask) for row in result.rows for side in (row.chosen, row.rejected))
    assert len(result.rows) + result.untrained == 2 and result.rows[-1].chosen.ids
    assert len(result.sources) == len(result.rows)


def test_a_cut_never_leaves_both_sides_alike(tiny):
    result = encode(tiny, [pair(3, 90, 100), pair(3, 2, 100)], overlong="truncate")
    assert [row.chosen.ids == row.rejected.ids for row in result.rows] == [False] and result.untrained == 1


def test_margins_come_along_and_lengths_are_told(tiny):
    result = encode(tiny, [{**pair(2, 4, 2), "margin": 0.5}, pair(2, 4, 2)])
    assert [row.margin for row in result.rows] == [0.5, None]
    ends = len([m for m in result.rows[0].rejected.mask if m]) - 2
    assert result.facts()["answer_tokens"] == {"chosen": 4 + ends, "rejected": 2 + ends}
    assert result.tokens == sum(len(side.ids) for row in result.rows for side in row[:2])


def test_the_sample_shows_both_sides(tiny):
    shown = masked_sample(encode(tiny, [pair(2, 3, 1)]), colour=False)
    head, first, second = shown.split("--- ")
    assert head == "" and first.startswith("pairs.jsonl line 1 chosen, ") and "«name name name<end_of_turn>»" in first
    assert second.startswith("pairs.jsonl line 1 rejected, ") and "«name<end_of_turn>»" in second


def test_a_refusing_template_names_the_row(tiny):
    renderer = Renderer(get_family("gemma2"))
    rows = [{**pair(1, 1, 1), "prompt": [{"role": "system", "content": "a"}, user("b")]}]
    with pytest.raises(Failure) as failure:
        encode_pairs([Row(rows[0], "pairs.jsonl", 7, 7)], renderer, tiny.tokenizer, max_length=64, overlong="drop")
    assert (failure.value.problem.code, failure.value.problem.line) == ("rows-not-renderable", 7)
