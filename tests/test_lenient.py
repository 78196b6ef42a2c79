"""JSON in teachers' replies: what is whole is taken, what is cut or broken is told."""

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma_trainer.distill.lenient import find_values, samples_in

A, B, C = {"prompt": "Name a bread."}, {"prompt": "Name a seed."}, {"prompt": "Name a knot."}
BOTH = json.dumps([A, B])


@pytest.mark.parametrize(
    "text",
    [
        BOTH,
        f"\ufeff{BOTH}\n",
        f"```json\n{BOTH}\n```",
        f"```\n{BOTH}\n```",
        f"~~~json\n{BOTH}\n~~~",
        f"````json\n{BOTH}\n````",
        f"  ```json\n  {BOTH}\n  ```",
        f"```json\n{BOTH}",  # the fence is never closed
        f"Sure! Here are [two] of them {{as asked}}:\n\n```json\n{BOTH}\n```\nLet me know if you [need] {{more}}!",
        f"Here you go: {BOTH} Hope that helps :-]",
        f"{json.dumps(A)}\n{json.dumps(B)}\n",
        f"{json.dumps(A)},\n{json.dumps(B)},",
        f"1. {json.dumps(A)}\n2. {json.dumps(B)}",
        f"```json\n{json.dumps(A)}\n```\nand\n```json\n{json.dumps(B)}\n```",
        f"[{json.dumps(A)}]\n[{json.dumps(B)}]",
        json.dumps({"samples": [A, B]}),
        json.dumps({"result": {"count": 2, "data": {"items": [A, B]}}}),
        json.dumps({"1": A, "2": B}),
        json.dumps([[A], [B]]),
        json.dumps([A, B], indent=4),
        "[{'prompt': 'Name a bread.'}, {'prompt': 'Name a seed.'}]",
        '[{"prompt": "Name a bread.",}, {"prompt": "Name a seed."},]',
        '[{"prompt": "Name a bread."} {"prompt": "Name a seed."}]',
        '[{prompt: "Name a bread."}, {prompt: "Name a seed."}]',
        "[{“prompt”: “Name a bread.”}, {“prompt”: “Name a seed.”}]",
        "I thought of [this: {\n" + BOTH,  # brackets of prose that never close
    ],
)
def test_both_samples_are_found(text):
    assert samples_in(text, ["prompt"]).values == [A, B]


@pytest.mark.parametrize("end", range(len(json.dumps([A, B, C])) - 1, len(BOTH), -1))
def test_an_array_that_is_cut_keeps_its_whole_samples(end):
    found = samples_in(json.dumps([A, B, C])[:end], ["prompt"])
    whole = end >= len(json.dumps([A, B, C])) - 1
    assert found.values == ([A, B, C] if whole else [A, B])
    assert found.fault


def test_a_list_of_texts_is_taken_for_the_one_key_that_is_wanted():
    assert samples_in('{"prompts": ["a", "b"]}', ["prompt"]).values == [{"prompt": "a"}, {"prompt": "b"}]
    assert samples_in('["a", "b"]', ["prompt"]).values == [{"prompt": "a"}, {"prompt": "b"}]
    assert samples_in('["a", "b"]', ["question", "answer"]).values == []
    assert samples_in('{"notes": ["x"], "list": [{"prompt": "a"}]}', ["prompt"]).values == [{"prompt": "a"}]


def test_a_cut_sample_gives_none_of_its_parts():
    text = '[{"messages": [{"role": "user", "content": "a"}]}, {"messages": [{"role": "user", "content": "b"}, {"role'
    assert len(samples_in(text, ["messages"]).values) == 1
    assert find_values('{"a": {"b": 1}, "c": ').values == []


def test_one_broken_sample_leaves_the_others():
    broken = '[{"prompt": "a"}, {"prompt": "b", "prompt": "d"}, {"prompt": "c"}]'
    found = samples_in(broken, ["prompt"])
    assert found.values == [{"prompt": "a"}, {"prompt": "c"}]
    assert found.fault


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{'a': True, 'b': None, 'c': False}", {"a": True, "b": None, "c": False}),
        ('{"a": "it\'s"}', {"a": "it's"}),
        ("{'a': \"it's\"}", {"a": "it's"}),
        ("{'a': 'What's up?', 'b': 'ok'}", {"a": "What's up?", "b": "ok"}),
        ('{"a": "he said "hi" to me", "b": 2}', {"a": 'he said "hi" to me', "b": 2}),
        ('{"a": "one\ntwo"}', {"a": "one\ntwo"}),
        ('{"a": "x" "b": "y"}', {"a": "x", "b": "y"}),
        ('{"a": "see ```code``` here"}', {"a": "see ```code``` here"}),
        ('{"a": "```python\\nprint(1)\\n```"}', {"a": "```python\\nprint(1)\\n```".replace("\\n", "\n")}),
        ('```json\n{"a": "```python\\nx = [1]\\n```"}\n```', {"a": "```python\nx = [1]\n```"}),
        ('"just text"', "just text"),
        ("12", 12),
        ("null", None),
    ],
)
def test_one_value(text, value):
    assert find_values(text).values == [value]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "No JSON here.",
        "I'm sorry, I can't do that.",
        "{'a': 'it''s'}",  # a repair would lose a letter,
        "{'a': 'What's up?'}",  # or keep a quote too much
        '{"a": 1, "a": 2}',  # which one is meant?
        '{"a": NaN}',
        '{"a": "\\ud800"}',
        "{placeholder}",
        "[" * 5000,
        "{" * 5000,
        '{"a":' * 5000,
        "}{][",
    ],
)
def test_nothing_is_guessed(text):
    assert samples_in(text, ["a"]).values == []


def test_long_replies_full_of_brackets_take_no_time():
    started = time.monotonic()
    for text in ("[{" * 9_000, "[1, " * 9_000, "{'a': " * 9_000, '["' * 9_000):
        samples_in(text, ["a"])
    assert time.monotonic() - started < 10


TEXTS = st.text(st.characters(blacklist_categories=("Cs",)), max_size=12) | st.sampled_from(
    ['"', "'", "}]", "[{", "```", "\\", "{'prompt': 'x'}"]
)
SAMPLES = st.lists(
    st.fixed_dictionaries(
        {"prompt": TEXTS},
        optional={"answer": TEXTS, "tags": st.lists(TEXTS, max_size=2), "n": st.integers(), "none": st.none()},
    ),
    min_size=1,
    max_size=4,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(samples=SAMPLES, indent=st.sampled_from([None, 1]), share=st.floats(0, 1), ascii_only=st.booleans())
def test_whatever_is_cut_only_whole_samples_come_out(samples, indent, share, ascii_only):
    text = json.dumps(samples, indent=indent, ensure_ascii=ascii_only)
    for written in (text, f"Sure:\n```json\n{text}\n```\nDone.", "\n".join(json.dumps(one) for one in samples)):
        assert samples_in(written, ["prompt"]).values == samples
    for head in ("", '{"samples": ', '{"count": 3, "note": "[{", "data": {"samples": '):
        cut = head + text[: int(share * len(text))]
        assert samples_in(cut, ["prompt"]).values == samples_in(cut[len(head) :], ["prompt"]).values
    cut = text[: int(share * len(text))]
    found = samples_in(cut, ["prompt"]).values
    assert found == samples[: len(found)]
    assert len(found) >= max((n for n in range(len(samples) + 1) if whole(cut, text, samples[:n])), default=0)


def whole(cut, text, first):
    """Whether a cut text still holds the first samples whole: json itself tells where they end."""
    if not first:
        return True
    decoder, at = json.JSONDecoder(), 0
    for _ in first:
        at = text.index("{", at)
        _, at = decoder.raw_decode(text, at)
    return at <= len(cut)
