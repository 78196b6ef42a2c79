"""Facts of a data set: right, the same however the rows are split, and of bounded size."""

from __future__ import annotations

import json
import pickle
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma_trainer.data import stats as module
from gemma_trainer.data.histogram import above, bars, bucket, quantiles
from gemma_trainer.data.stats import BATCH, NEWEST, Stats, script_of
from preparing import TOOLS, assistant, call, chat, result, user, validator

SYSTEM = {"role": "system", "content": "Be brief."}
PAIR = {"prompt": [user("Tide?")], "chosen": [assistant("Twice a day.")], "rejected": [assistant("No.")]}
TOOL_CHAT = chat(
    SYSTEM, user("Tide?"), assistant(None, tool_calls=[call()]), result(tool_call_id="c1"), assistant("3.2 metres."),
    tools=TOOLS,
)  # fmt: skip
ROWS = [
    chat(user("Name a bread."), assistant("Rye.")),
    chat(SYSTEM, user("Хлеб?"), assistant("Ржаной.", weight=0), user("Ещё?"), assistant("Белый.")),
    chat(user([{"type": "image"}, {"type": "text", "text": "What?"}]), assistant("Tea.", reasoning_content="Leaves.")),
    TOOL_CHAT,
    PAIR,
    {"prompt": [user("Why?")]},
    {"text": "Once upon a time."},
    {"input_ids": [2, 5, 6, 7], "labels": [-100, -100, 6, 7]},
]


def counted(rows, length=None) -> Stats:
    stats = Stats()
    for at, row in enumerate(rows):
        stats.add(row, length(at) if length else None, 1 if length else None)
    return stats


def merged(rows, size: int, length=None) -> Stats:
    whole = Stats()
    for at in range(0, len(rows), size):
        part = counted(rows[at : at + size], (lambda i, at=at: length(at + i)) if length else None)
        whole.merge(pickle.loads(pickle.dumps(part)))
    return whole


def test_facts_of_known_rows():
    facts = counted(ROWS).as_dict(max_length=3)
    assert facts["rows"] == 8
    assert facts["kinds"] == {"messages": 4, "preference": 1, "prompt": 1, "text": 1, "input_ids": 1}
    assert facts["turns_per_row"] == [[0, 0, 1], [1, 1, 4], [2, 2, 1]]
    assert facts["messages_per_row"] == [[1, 1, 1], [2, 2, 3], [3, 3, 0], [4, 4, 0], [5, 5, 2]]
    assert list(facts["roles"]) == ["system", "user", "assistant", "tool", "text"]
    assert {role: fact["messages"] for role, fact in facts["roles"].items()} == {
        "system": 2, "user": 7, "assistant": 8, "tool": 1, "text": 1,
    }  # fmt: skip
    assert facts["roles"]["tool"] == {"messages": 1, "characters": 3, "p50": 3, "p95": 3, "max": 3}
    assert facts["system"] == {"rows": 2, "share": 0.25, "distinct": 1, "more": False}
    assert facts["tools"] == {"rows": 1, "calls": 1, "results": 1, "by_name": {"get_tide": 1}, "other": 0}
    assert facts["thinking"] == {"rows": 1, "share": 0.125, "messages": 1, "characters": 7}
    assert facts["media"] == {"image": 1} and facts["weight_0_messages"] == 1
    assert facts["scripts"]["Cyrillic"]["rows"] == 1 and 0.1 < facts["scripts"]["Cyrillic"]["share"] < 0.3
    assert facts["preferences"] == {
        "rows": 1, "chosen_longer": 1, "chosen_longer_share": 1.0, "chosen_characters": 12.0, "rejected_characters": 3.0,
    }  # fmt: skip
    tokens = facts["tokens"]
    assert not tokens["exact"] and tokens["guessed_rows"] == 7 and tokens["trained"] is None
    assert tokens["fits"]["cut"] + tokens["fits"]["whole"] == 8


@pytest.mark.parametrize("rows", [[], *([row] for row in ROWS), ROWS], ids=range(len(ROWS) + 2))
@pytest.mark.parametrize("most", [None, 2])
def test_facts_fit_their_schema(rows, most):
    facts = counted(rows).as_dict(most)
    validator("stats.json").validate(json.loads(json.dumps(facts)))


def test_exact_lengths_count_both_sides_of_a_pair():
    stats = Stats()
    stats.add(ROWS[0], 10, 4)
    stats.add(PAIR, 20, 15, total=32)
    stats.add({"input_ids": [1] * 5, "assistant_masks": [0, 1, 1, 0, 0]}, None)
    tokens = stats.as_dict()["tokens"]
    assert tokens["exact"] and tokens["total"] == 10 + 32 + 5 and tokens["trained"] == 4 + 15 + 2
    assert tokens["max"] == 20 and tokens["p50"] == 10


@pytest.mark.parametrize("size", [BATCH, 3 * BATCH, 1000])
@pytest.mark.parametrize("length", [None, lambda at: at * 37 % 501])
def test_parts_give_what_the_whole_gives(size, length):
    rows = random.Random(7).choices(ROWS, k=2 * NEWEST + 100)
    whole, parts = counted(rows, length).as_dict(64), merged(rows, size, length).as_dict(64)
    assert parts == whole
    assert Stats.from_state(json.loads(json.dumps(counted(rows, length).as_state()))).as_dict(64) == whole


def test_a_merged_one_goes_on_counting():
    stats = merged(ROWS, 3)
    for row in ROWS:
        stats.add(row, 9)
    assert stats.rows == 16 and stats.as_dict()["tokens"]["guessed_rows"] == 7


def test_padding_of_batches_in_order():
    stats = counted([ROWS[0]] * 10, lambda at: 100 if at == 0 else 10)
    padding = stats.as_dict()["tokens"]["padding"]
    assert (padding["padded"], padding["packed"]) == (8 * 100 + 2 * 10, 190)
    assert padding["waste"] == round(1 - 190 / 820, 4)


@pytest.mark.parametrize(
    ("long_rows", "suggested"), [(0, 256), (1, 256), (2, 1024), (100, 1024)], ids=lambda value: str(value)
)
def test_suggested_max_length_holds_99_percent(long_rows, suggested):
    stats = counted([ROWS[0]] * 100, lambda at: 1000 if at < long_rows else 200)
    facts = stats.as_dict()["tokens"]
    assert facts["suggested_max_length"] == suggested == stats.suggested
    assert facts["cut_at"]["256"] == long_rows and list(facts["cut_at"].values())[-1] == 0
    assert stats.fits(200) == {
        "max_length": 200,
        "whole": 100 - long_rows,
        "cut": long_rows,
        "cut_share": long_rows / 100,
    }


@pytest.mark.parametrize(
    ("letters", "script"),
    [("aé", "Latin"), ("Я", "Cyrillic"), ("水", "Han"), ("م", "Arabic"), ("ह", "Devanagari"), ("한", "Hangul"), ("ひカ", "Kana"),
     ("Ω", "Greek"), ("ש", "Hebrew"), ("ก", "Thai"), ("ა", "other"), ("1 .😀", None)],
)  # fmt: skip
def test_script_of_a_letter(letters, script):
    assert {script_of(letter) for letter in letters} == {script}


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "MOST_SYSTEMS", 50)
    stats, rng = Stats(), random.Random(3)
    for at in range(3000):
        system = {"role": "system", "content": f"You are number {at}."}
        answer = assistant(None, tool_calls=[call(f"tool_{at}")])
        stats.add(chat(system, user("x" * rng.randrange(10**6)), answer, tools=TOOLS), 5)
    facts = stats.as_dict()
    assert facts["system"] == {"rows": 3000, "share": 1.0, "distinct": 50, "more": True}
    assert len(facts["tools"]["by_name"]) == 20 and facts["tools"]["other"] == 2980
    assert len(stats.tables["calls"]) <= module.MOST_NAMES and len(stats.tables["characters user"]) < 2000
    assert len(stats._lengths) < NEWEST


NUMBERS = st.lists(st.integers(0, 10**6), min_size=1, max_size=60)


@given(NUMBERS)
def test_quantiles_are_those_of_the_sorted_row(numbers):
    counts, ordered = {n: numbers.count(n) for n in numbers}, sorted(numbers)
    shares = (0.5, 0.95, 1)
    assert quantiles(counts, shares) == [ordered[min(len(ordered) - 1, int(len(ordered) * share))] for share in shares]


@given(NUMBERS, st.integers(1, 10**6))
def test_bars_hold_every_number_once(numbers, edge):
    ranges = bars({n: numbers.count(n) for n in numbers}, edge=edge)
    assert len(ranges) < 60
    for first, last, count in ranges:
        assert first <= last and count == sum(first <= number <= last for number in numbers)
    assert sum(count for *_, count in ranges) == len(numbers)
    assert all(left[1] + 1 == right[0] for left, right in pairwise(ranges))


def test_no_bar_crosses_the_chosen_length():
    for edge in (64, 100, 509, 512, 1000):
        counts = dict.fromkeys(range(1, 900), 1)
        assert not any(first <= edge < last for first, last, _ in bars(counts, edge=edge)), edge
        assert sum(count for first, _, count in bars(counts, edge=edge) if first > edge) == above(counts, edge)


@given(st.integers(0, 10**9))
def test_buckets_lose_less_than_one_percent(number):
    assert number * 127 / 128 <= bucket(number) <= number


def test_no_numbers():
    assert bars({}) == [] and quantiles({}, (0.5, 1)) == [0, 0]
