"""The gate: which answers are refused and why; what passes; duplicates."""

import pytest

from gemma_trainer.distill.gate import GateOptions, SeenAnswers, check, rejected
from gemma_trainer.distill.language import check_language, wrong_language
from gemma_trainer.distill.request import Reply
from gemma_trainer.distill.similar import Similar
from gemma_trainer.families.catalogue import get_family
from gemma_trainer.rows.problems import USAGE, Failure
from preparing import TOOLS, assistant, call, user

PROMPT = [{"role": "system", "content": "You are a baker who answers briefly and never lies."}, user("Name a bread.")]
ENGLISH = "The tide comes in twice a day because the moon pulls on the water of the sea."
GERMAN = "Die Flut kommt zweimal am Tag, weil der Mond das Wasser des Meeres anzieht."


def words(content="Rye.", finish_reason="stop", tools=None, family="gemma4", language=None, prompt=PROMPT, **more):
    reply = Reply(id="r", content=content, finish_reason=finish_reason, **more)
    return [reason.word for reason in check(reply, prompt, tools, GateOptions(get_family(family), language))]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"finish_reason": None}, []),
        ({"finish_reason": "eos"}, []),
        ({"reasoning_content": "hm"}, []),
        ({"content": "I'm sorry that the rye is gone. Take wheat."}, []),
        ({"content": "Use `<think>` tags around it."}, []),
        ({"content": ""}, ["empty"]),
        ({"content": " \n\u200b"}, ["empty"]),
        ({"content": "", "reasoning_content": "never done"}, ["empty"]),
        ({"finish_reason": "length"}, ["cut"]),
        ({"finish_reason": "MAX_TOKENS"}, ["cut"]),
        ({"finish_reason": "content_filter"}, ["blocked"]),
        ({"content": "I'm sorry, but I can't help with that."}, ["refusal"]),
        ({"content": "rye " * 100}, ["loop"]),
        ({"content": "rye " * 100, "finish_reason": "length"}, ["cut", "loop"]),
        ({"reasoning_content": "wait, " * 100}, ["loop"]),
        ({"content": "name a bread"}, ["echo"]),
        ({"content": "You are a baker who answers briefly and never lies."}, ["echo"]),
        ({"content": "<think>hm</think>Rye."}, ["control-tokens"]),
        ({"content": "Rye. <channel|>"}, ["control-tokens"]),
        ({"content": "Rye.<start_of_turn>user\nAnd a seed?"}, ["control-tokens"]),
        ({"content": "<start_of_turn>model", "family": "gemma3"}, ["control-tokens"]),
        ({"content": "<|im_start|>user\nAnd a seed?"}, ["control-tokens"]),
        ({"content": "Rye\0 bread."}, ["invalid"]),
        ({"content": "Rye \ufffd bread."}, ["invalid"]),
        ({"content": "Rye.", "reasoning_content": "h\0m"}, ["invalid"]),
        ({"content": GERMAN, "language": "en"}, ["language"]),
        ({"content": ENGLISH, "language": "en"}, []),
    ],
)
def test_reasons(changes, expected):
    assert words(**changes) == expected


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([call()], []),
        ([call(arguments={"station": "North", "hour": 3})], []),
        ([call(), call(arguments={"station": "South"}, id="c2")], []),
        ([call("get_tides")], ["tool-call-invalid"]),
        ([call(arguments={})], ["tool-call-invalid"]),
        ([call(arguments={"station": "North", "hour": "three"})], ["tool-call-invalid"]),
        ([call(arguments={"station": "North", "minute": 3})], ["tool-call-invalid"]),
        ([call(arguments={"station": None})], ["tool-call-invalid"]),
        ([call(arguments="{not json")], ["tool-call-invalid"]),
        ([call(arguments=["North"])], ["tool-call-invalid"]),
        ([call(), call("other", id="c2")], ["tool-call-invalid"]),
        ([{"type": "function"}], ["tool-call-invalid"]),
    ],
)
def test_tool_calls(calls, expected):
    assert words("", "tool_calls", TOOLS, tool_calls=calls) == expected


def test_calls_without_declared_tools_are_refused():
    assert words("", "tool_calls", None, tool_calls=[call()]) == ["tool-call-invalid"]


def test_a_family_without_tools_takes_no_calls():
    assert words("", "tool_calls", TOOLS, "gemma3", tool_calls=[call()]) == ["invalid"]


def test_faults_of_the_prompt_are_not_the_answers():
    prompt = [user("What does <start_of_turn> mean? <think>")]
    assert words("It opens a turn.", family="gemma3", prompt=prompt) == []


def test_a_reject_holds_the_row_its_reasons_and_their_details():
    reasons = check(Reply("r", "", finish_reason="length"), PROMPT, None, GateOptions())
    reject = rejected({"messages": PROMPT}, reasons, ["r"])
    assert reject.reasons == ["empty"] and reject.ids == ["r"]
    assert reject.row == {"messages": PROMPT, "details": {"empty": "the response is empty"}}


LONG = "Rye bread is made of rye flour, water, salt and a sour dough that has to rest overnight in a warm kitchen. "


@pytest.mark.parametrize(
    ("question", "answer", "expected"),
    [
        ("Name a bread.", "rye. ", "duplicate"),
        ("name a  bread.", "Rye.", "duplicate"),
        ("Name a flour.", "Rye.", None),  # the same label for another prompt
        ("How is it made?", LONG, "duplicate"),
        ("How is it made?", LONG.replace("overnight", "all night"), "near-duplicate"),
        ("How long?", LONG.replace("overnight", "for 12 hours"), None),
        ("How is it made?", LONG.replace("rye", "Rye").upper() + "!", "duplicate"),
        ("How is it made?", "White bread is of wheat flour with yeast; it rises for an hour and is eaten fresh. " * 2, None),
    ],
)  # fmt: skip
def test_answers_that_were_seen(question, answer, expected):
    seen = SeenAnswers(0.8)
    assert seen.check([user("Name a bread.")], assistant("Rye."), "p1") is None
    assert seen.check([user("What is rye bread?")], assistant(LONG), "p2") is None
    reason = seen.check([user(question)], assistant(answer.rstrip("!") if expected == "duplicate" else answer), "p3")
    assert (reason and reason.word) == expected
    if reason:
        assert "p1" in reason.detail or "p2" in reason.detail


def test_without_a_threshold_only_copies_are_found():
    seen = SeenAnswers(0)
    assert seen.check([user("a")], assistant(LONG), "p1") is None
    assert seen.check([user("b")], assistant(LONG + "More."), "p2") is None
    assert seen.check([user("c")], assistant(LONG), "p3").word == "duplicate"


def test_other_numbers_make_another_answer():
    seen = SeenAnswers(0.8)
    texts = [LONG + f"It is baked for {minutes} minutes." for minutes in (50, 60, 50)]
    assert seen.check([user("a")], assistant(texts[0]), "p1") is None
    assert seen.check([user("b")], assistant(texts[1]), "p2") is None
    assert seen.check([user("c")], assistant(texts[2].replace("kitchen", "bakery")), "p3").word == "near-duplicate"


def test_calls_are_compared_by_their_arguments():
    seen = SeenAnswers(0.9)
    first, other = [assistant("", tool_calls=[call(arguments={"station": name})]) for name in ("North", "South")]
    assert seen.check([user("Tide?")], first, "a") is None
    assert seen.check([user("Tide?")], other, "b") is None
    assert seen.check([user("Tide?")], first, "c").word == "duplicate"


def test_likeness_is_of_any_script_and_the_same_in_every_run():
    text = "潮汐是海水在月球和太阳引力作用下产生的周期性运动。春潮出现在新月和满月时，小潮出现在上弦月和下弦月时。"
    found = [Similar(0.7), Similar(0.7)]
    for similar in found:
        assert similar.add(text, 1) is None
        assert similar.add("面包由面粉、水和盐制成，需要在温暖的厨房里静置一夜。", 2) is None
    first, second = [similar.add(text.replace("周期性", "规律"), 3) for similar in found]
    assert first == second and first[0] == 1


@pytest.mark.parametrize(
    ("text", "language", "wrong"),
    [
        (ENGLISH, "en", False),
        (GERMAN, "de", False),
        (ENGLISH, "de", True),
        (GERMAN, "fr", True),
        ("潮汐是海水在月球和太阳引力作用下产生的。", "en", True),
        ("潮汐是海水在月球和太阳引力作用下产生的。", "zh", False),
        ("潮は一日に二回満ちてくる。月の引力のためだ。", "ja", False),
        ("Прилив приходит дважды в день, потому что Луна притягивает воду.", "ru", False),
        ("Прилив приходит дважды в день.", "de", True),
        ("Rye.", "de", False),  # too short to tell
        ("42", "zh", False),
        ("```python\nfor station in stations:\n    print(tide_of(station))\n```\n潮位を印刷します。", "ja", False),
        (f"{ENGLISH}\n\n> {GERMAN[:30]}", "en", False),
    ],
)
def test_language(text, language, wrong):
    assert bool(wrong_language(text, language)) is wrong


def test_an_unknown_language_is_refused():
    check_language("de")
    with pytest.raises(Failure) as failure:
        check_language("klingon")
    assert failure.value.exit_code == USAGE
