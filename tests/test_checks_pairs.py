"""Faults of preference pairs and of what teachers answer; length bias of a set of pairs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma_trainer.data.checking.check_lengths import LengthBias, cut_code
from gemma_trainer.data.checking.check_teacher import is_loop
from gemma_trainer.data.checking.process import process
from gemma_trainer.data.checking.setting import Setting
from gemma_trainer.data.notes import Notes
from gemma_trainer.data.options import Options
from gemma_trainer.data.shown import CALL_REASONING, CALLS
from gemma_trainer.families.catalogue import family_names, get_family
from judging import CASES, IMAGE, ROUND, SYSTEM, TEXT, is_refused, judge, noted, pair
from preparing import TOOLS, assistant, call, result, user


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (pair(), set()),
        (pair(rejected="b \n"), {"pair-identical"}),
        (pair(rejected="B."), {"pair-near-identical"}),
        (pair(rejected=""), {"answer-empty"}),
        (pair(margin=1.5), set()),
        (pair(margin="high"), {"margin-invalid"}),
        (pair(margin="1.5"), {"number-as-text"}),
        (pair(margin="inf"), {"margin-invalid"}),
        (pair(margin=True), {"margin-invalid"}),
        (pair(margin=10**400), {"margin-invalid"}),
        (pair(margin=1_000_001), {"margin-invalid"}),
        (pair(margin=-1e7), {"margin-invalid"}),
        (pair(margin="1e300"), {"margin-invalid", "number-as-text"}),
        (pair(margin=float("nan")), {"margin-invalid"}),
        (pair(margin=float("-inf")), {"margin-invalid"}),
        (pair(margin=1_000_000), set()),
        (pair(margin=-1), {"margin-negative"}),
        (pair(score_chosen=1, score_rejected=2), {"scores-inverted"}),
        (pair(chosen_rating=1, rejected_rating=2), {"scores-inverted"}),
        (pair(chosen_score="1", rejected_score="2"), {"scores-inverted", "number-as-text"}),
        (
            pair(chosen=[assistant("c")], rejected=[assistant([{"type": "text", "text": "c"}])]),
            {"pair-identical"},
        ),
        (pair(prompt=[user("a"), assistant("b")]), {"prompt-last-role"}),
        (pair(prompt=[SYSTEM]), {"prompt-last-role"}),
        (pair(chosen=[assistant("b"), user("c"), assistant("d")]), {"answer-role"}),
        (pair(images=["media/dot.png"]), {"media-count"}),
        (pair(prompt=[user([IMAGE, TEXT])]), set()),
        (pair(prompt=ROUND[:3], tools=TOOLS), set()),
        (
            pair(prompt=[user("a")], chosen=[assistant("", tool_calls=[call()])], rejected="c", tools=TOOLS),
            set(),
        ),
        (pair(rejected="c<turn|>"), {"terminator-in-answer"}),
        (pair(rejected="<|turn>c"), {"control-token"}),
        (pair(score_chosen=2, score_rejected=2.0), {"scores-equal"}),
        (pair(prompt="Name a  bread.", rejected="name a bread."), {"answer-echo"}),
        (pair(prompt=[user([{**IMAGE, "image": "media/no.png"}, TEXT])]), {"media-missing"}),
        (pair(chosen=[assistant("", tool_calls=[call(arguments={"hour": 6})])], tools=TOOLS), {"argument-missing"}),
        (pair(chat_template_kwargs={"enable_thinking": "no"}), {"template-kwargs-invalid"}),
    ],
)
def test_fault_of_a_pair(row, expected):
    assert judge(row, task="dpo")[1] == expected


TWICE = [assistant("x"), assistant("d")]
CALLED = [assistant("", tool_calls=[call()]), result(tool_call_id="c1")]


@pytest.mark.parametrize("side", ["chosen", "rejected"])
@pytest.mark.parametrize("prompt", [[user("a")], [SYSTEM, user("a")], ROUND[:3]])
def test_turns_inside_an_answer_are_checked_as_those_of_a_conversation(side, prompt):
    """Paths count from the answer; a prompt's own faults are told once."""

    def told(answer: list[dict], family: str) -> set[tuple[str, str]]:
        row = pair(prompt=prompt, tools=TOOLS if "tool" in str(prompt + answer) else None, **{side: answer})
        found = [(note.code, note.path) for note in noted(row, family, "dpo")[1].found]
        assert len(found) == len(set(found))
        return set(found)

    assert told(TWICE, "gemma4") == {("answers-glued", f"{side}[1]")} and told(TWICE[:1], "gemma4") == set()
    assert told(TWICE, "functiongemma") == set()
    assert told([*CALLED, assistant("d")], "gemma4") == set()
    assert told(CALLED, "gemma4") == {("ends-with-tool", f"{side}[1]")}
    if prompt[-1]["role"] == "user":
        for family in ("gemma1", "gemma2", "gemma3", "gemma3n"):
            assert told(TWICE, family) == {("roles-not-alternating", f"{side}[1].role")}
    data, codes = judge(pair(prompt=prompt, **{side: TWICE}), task="dpo", asked=frozenset({"merge-turns"}))
    assert data[side] == [assistant("x\n\nd")] and codes - {"tool-undeclared", "tool-linked"} == {"turns-merged"}


def calling(arguments: object, id: str = "c1", then: object = None, **more: object) -> list[dict]:
    """A call, its result and an answer; a call alone without `then`."""
    message = assistant("", tool_calls=[call(arguments=arguments, id=id)], **more)
    return [message] if then is None else [message, result(then, tool_call_id=id), assistant("So.")]


ARGUMENTS = [
    {"station": "North", "hour": 6},
    {"hour": 6, "station": "North"},
    {"hour": 6.5},
    {"where": {"a": 1, "b": [2]}},
]
ARGUMENTS += [{"where": {"b": [2], "a": 1}}, {"hour": "6"}]
ANSWERS = st.one_of(
    st.builds(calling, st.sampled_from(ARGUMENTS), st.sampled_from(["c1", "c2"]), st.sampled_from([None, "x", {"a": 1}, {"a": 2}])),
    st.builds(calling, st.just(ARGUMENTS[0]), reasoning_content=st.sampled_from(["r", "s"])),
    st.lists(st.builds(assistant, st.sampled_from(["a", " a\n", "b", "ab", "a <b>"])), min_size=1, max_size=2),
    st.builds(lambda thought, text: [assistant(f"<|channel>thought\n{thought}\n<channel|>{text}")], st.sampled_from("rs"), st.sampled_from("ab")),
    st.builds(lambda thought, text: [assistant(text, reasoning_content=thought)], st.sampled_from("rs"), st.sampled_from("ab")),
    st.builds(lambda texts: [assistant([{"type": "text", "text": text} for text in texts])], st.lists(st.sampled_from(["a", "b "]), min_size=1, max_size=2)),
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(chosen=ANSWERS, rejected=ANSWERS, family=st.sampled_from(family_names()))
def test_pairs_are_identical_where_the_template_writes_the_same(chosen, rejected, family):
    """Ids, the order of keys, reasoning and thoughts that are left out, texts that are joined: all in one."""
    row, notes = noted(pair(chosen=chosen, rejected=rejected), family, "dpo")
    told = {note.code for note in notes.found}
    if row is None or is_refused(row, told - {"pair-identical"}):
        return
    render = get_family(family).render
    texts = ["".join(piece.text for piece in render([*row["prompt"], *row[side]])) for side in ("chosen", "rejected")]
    assert ("pair-identical" in told) == (texts[0] == texts[1])


def test_a_pair_of_inline_thoughts_is_identical_until_they_are_moved():
    row = pair(**{side: [assistant(f"<|channel>thought\n{side}\n<channel|>b")] for side in ("chosen", "rejected")})
    (note,) = [note for note in noted(row, task="dpo")[1].found if note.code == "pair-identical"]
    assert "`convert`" in note.fix
    data, told = judge(row, task="dpo", asked=frozenset({"move-thoughts"}))
    assert not is_refused(data, told) and data["chosen"][0]["reasoning_content"] == "chosen"


def test_reasoning_that_the_template_in_use_hides_tells_no_pair_apart():
    row = pair(chosen=[assistant("b", reasoning_content="r")], rejected=[assistant("b", reasoning_content="s")])
    assert "pair-identical" not in judge(row, task="dpo")[1] and "pair-identical" in judge(row, "gemma3", "dpo")[1]
    chosen, notes = get_family("gemma4"), Notes()
    process(row, Options(task="dpo", family=chosen), Setting(chosen, CASES, frozenset({CALLS, CALL_REASONING})), notes)
    assert [note.code for note in notes.found if note.code.startswith("pair")] == ["pair-identical"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, set()),
        ({"response": " "}, {"response-empty"}),
        ({"finish_reason": "length"}, {"response-cut"}),
        ({"finish_reason": "MAX_TOKENS"}, {"response-cut"}),
        ({"finish_reason": "content_filter"}, {"response-blocked"}),
        ({"finish_reason": "eos_token"}, set()),
        ({"response": "name a  bread."}, {"response-echo"}),
        ({"response": "To " * 80}, {"response-loop"}),
        ({"response": "I must respectfully decline to answer this question."}, {"response-refusal"}),
        ({"response": "I apologize, but I don’t feel comfortable answering that."}, {"response-refusal"}),
        ({"response": "I’m not able to help with that request. Is there anything else?"}, {"response-refusal"}),
        (
            {
                "response": "I'm sorry, but I can't assist with that request. "
                + "Ask me of bread, seeds, knots and tides, of boats and their sails, of wheels and spokes, of the moon, of "
                "chess and its openings, or of what to cook tonight; the harbour has a library as well, where people who "
                "know far more than I do will gladly look into older books for you, on every day but Sunday."
            },
            {"response-refusal"},
        ),
        ({"response": "I can't come on Sunday, but I can help on Monday."}, set()),
        ({"response": '"I can\'t help falling in love" is a song by Elvis.'}, set()),
        ({"response": "I cannot recommend swimming here: the current is strong."}, set()),
        ({"response": "I'm sorry, but I can't help with that."}, {"response-refusal"}),
        ({"response": "As an AI language model, I am unable to provide this."}, {"response-refusal"}),
        ({"response": "I'm sorry that your flour arrived late. We sent a new bag."}, set()),
        ({"response": "Sorry, I cannot come to the harbour tomorrow."}, set()),
        ({"response": "<|channel>thought\n<channel|>Rye."}, {"empty-thought"}),
    ],
)
def test_fault_of_a_teacher_row(changes, expected):
    row = {"id": "p1", "prompt": "Name a bread.", "response": "Rye.", "finish_reason": "stop", **changes}
    assert judge(row, task="responses")[1] == expected


@pytest.mark.parametrize(
    ("text", "loop"),
    [
        ("no " * 40, True),
        ("the tide is high and " * 10, True),
        ("A good start. " + "It goes on and on and on, as it did before. " * 8, True),
        ("ha" * 60, True),
        ("row\n" * 20, True),
        ("| a | b |\n| --- | --- |\n" + "\n".join(f"| {n} | {n * n} |" for n in range(20)), False),
        ("-" * 80 + "\nHeading\n" + "-" * 80, False),
        ("One two three four five six seven eight nine ten. " * 1, False),
        ("SELECT a, b FROM t WHERE a > 1 AND b > 1 AND c > 1 ORDER BY a, b, c LIMIT 5 OFFSET 1", False),
    ],
)
def test_loops(text, loop):
    assert is_loop(text) is loop


def test_length_bias_is_told_of_whole_sets_and_merges():
    even, long = [(100, 100)] * 12, [(300, 100)] * 13
    whole, first, second = LengthBias(), LengthBias(), LengthBias()
    for part, sizes in ((whole, even + long), (first, even), (second, long)):
        for size in sizes:
            part.add(*size)
    assert first.problem() is None and second.problem() is None  # too few to tell
    first.merge(second)
    assert first == whole and whole.problem().code == "length-bias"
    assert "52 % of 25 pairs (204 and 100 characters on average)" in whole.problem().message
    for _ in range(5):
        whole.add(50, 100)
    assert whole.problem() is None and whole.shorter == 5


@pytest.mark.parametrize(
    ("prompt", "total", "limit", "code"),
    [
        (10, 20, 20, None),
        (10, 21, 20, "answer-cut"),
        (19, 21, 20, "answer-cut"),
        (20, 21, 20, "answer-wholly-cut"),
        (30, 31, None, None),
    ],
)
def test_answers_that_cutting_would_hurt(prompt, total, limit, code):
    assert cut_code(prompt, total, limit) == code
