"""Judges, rankings and verifiers."""

import asyncio
import json
import time
from types import SimpleNamespace

import pytest

from gemma_trainer.distill.judge import RUBRIC, Judge, read_rubric
from gemma_trainer.distill.rank import ByJudge, ByMajority, ByReward, ByVerifier, by_scores, final_answer
from gemma_trainer.distill.verify import Verifier
from gemma_trainer.rows.problems import USAGE, Failure
from preparing import assistant, user
from teaching import Answering

PROMPT = [{"role": "system", "content": "Be brief."}, user("How long is the rope?")]
ROW = {"prompt": PROMPT, "answer": "3 m"}
ANSWERS = [assistant(text) for text in ("long", "3", "3 m", "3 metres, I guess")]


def prefers(key, position=None):
    """A judge that takes the answer with the larger key, or always the one in a position."""

    def answer(request):
        text = request.messages[0]["content"]
        first, second = (text.split(f"[answer {name}]\n")[1].split("\n[end of")[0] for name in "AB")
        better = position or ("A" if key(first) > key(second) else "B" if key(first) < key(second) else "tie")
        return json.dumps({"reason": "it is", "better": better})

    return Answering(answer)


def compare(teacher, first, second):
    return asyncio.run(Judge("judge").compare(teacher.ask, PROMPT, assistant(first), assistant(second)))[0]


def test_the_better_answer_wins_wherever_it_stands():
    assert compare(prefers(len), "3 m", "3") == "first"
    assert compare(prefers(len), "3", "3 m") == "second"
    assert compare(prefers(len), "3", "4") == "tie"


@pytest.mark.parametrize("position", ["A", "B", "tie"])
def test_a_judge_that_goes_by_position_gives_a_tie(position):
    teacher = prefers(len, position)
    assert compare(teacher, "3 m", "3") == "tie"
    assert len(teacher.requests) == 2


def test_a_verdict_that_cannot_be_read_is_a_tie():
    teacher = Answering(lambda request: "Both are fine.")
    assert compare(teacher, "3 m", "3") == "tie"
    assert len(teacher.requests) == 4  # each order, and its repair round


def test_what_a_judge_is_asked():
    teacher = prefers(len)
    compare(teacher, "3 m", "3")
    (message,) = teacher.requests[0].messages
    for text in (RUBRIC, "Be brief.", "How long is the rope?", "3 m"):
        assert text in message["content"]
    assert teacher.requests[0].sampling.temperature == 0 and teacher.requests[0].model == "judge"
    assert teacher.requests[0].schema["properties"]["better"]["enum"] == ["A", "B", "tie"]


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ('{"reason": "good", "score": 8}', 8),
        ('Well.\n```json\n{"reason": "good", "score": 7.5}\n```', 7.5),
        ('{"reason": "good", "score": 11}', None),
        ('{"reason": "good", "score": "eight"}', None),
        ("8", None),
    ],
)
def test_a_score_is_within_its_scale(reply, score):
    found, ids = asyncio.run(Judge("judge").score(Answering(lambda request: reply).ask, PROMPT, ANSWERS[0]))
    assert found == score and ids


def test_thinking_is_not_judged_and_calls_are():
    teacher = prefers(len)
    calls = [{"type": "function", "function": {"name": "measure", "arguments": {"what": "rope"}}}]
    answer = assistant("", reasoning_content="secret thoughts", tool_calls=calls)
    asyncio.run(Judge("judge").compare(teacher.ask, PROMPT, answer, assistant("3")))
    text = teacher.requests[0].messages[0]["content"]
    assert "secret" not in text and "measure({'what': 'rope'})" in text


def test_rubrics_are_read(tmp_path):
    path = tmp_path / "rubric.md"
    path.write_text("Units are given.\n")
    assert read_rubric(path) == "Units are given."
    path.write_text(" ")
    for bad in (path, tmp_path / "none.md"):
        with pytest.raises(Failure) as failure:
            read_rubric(bad)
        assert failure.value.exit_code == USAGE


def rank(ranker, answers=ANSWERS, teacher=None):
    return asyncio.run(ranker.rank(teacher and teacher.ask, ROW, answers))


def test_by_judge():
    ranking = rank(ByJudge(Judge("judge")), teacher=prefers(len))
    assert (ranking.best, ranking.worst, ranking.margin) == (3, 1, None)
    assert len(ranking.ids) == 12
    ranking = rank(ByJudge(Judge("judge")), teacher=prefers(len, "A"))  # all ties: nothing is known
    assert (ranking.best, ranking.worst) == (0, None)


def test_by_reward():
    seen = []

    def score(rows):
        seen.extend(rows)
        return [float(len(row["messages"][-1]["content"])) for row in rows]

    ranking = rank(ByReward(SimpleNamespace(score=score)))
    assert (ranking.best, ranking.worst, ranking.margin) == (3, 1, 16.0)
    assert seen[0] == {"messages": [*PROMPT, ANSWERS[0]]}


@pytest.mark.parametrize(
    ("scores", "best", "worst", "margin"),
    [
        ([1.0, 3.0, 2.0], 1, 0, 2.0),
        ([2.0, 2.0], 0, None, None),
        ([None, 1.0, 0.0], 1, 2, 1.0),
        ([None, None], None, None, None),
        ([0.5], 0, None, None),
    ],
)
def test_scores(scores, best, worst, margin):
    ranking = by_scores(scores)
    assert (ranking.best, ranking.worst, ranking.margin) == (best, worst, margin)


@pytest.mark.parametrize(
    ("answers", "best", "worst"),
    [
        (["It is 4.", "so 5", "The answer is 4.", "= 4"], 0, 1),
        (["5", "4", "4"], 1, 0),
        (["4", "4"], 0, None),
        (["4", "5", "6"], None, None),
        (["4", "5", "5", "4"], None, None),
        (["4"], 0, None),
    ],
)
def test_by_majority(answers, best, worst):
    ranking = rank(ByMajority(), [assistant(text) for text in answers])
    assert (ranking.best, ranking.worst) == (best, worst)
    assert ranking.word == ("" if best is not None else "no-majority")


@pytest.mark.parametrize(
    ("text", "final"),
    [
        ("So we get \\boxed{42}.", "42"),
        ("\\boxed{\\frac{1}{2}}", "frac{1}{2}"),
        ("12 + 30\n#### 42", "42"),
        ("The answer is **42**.", "42"),
        ("First 12, then 30. Final answer: 42.0 \nDone in 3 steps.", "42"),
        ("It costs 1,250.50 in all", "1250.5"),
        ("Therefore x = 1,200", "1200"),
        ("Answer: Paris.", "paris"),
        ("Die Antwort lautet 7.", "7"),
        ("It is a bread.\nRye.", "rye"),
        ("", ""),
    ],
)
def test_final_answers(text, final):
    assert final_answer(text) == final


CHECKS = """
import os, time, subprocess
print("noise while loading")
def units(answer, row):
    print("noise")
    return answer.endswith(" m")
def right(answer, row):
    return 1.0 * (row["answer"] in answer) + 0.1 * len(answer)
def slow(answer, row):
    if answer == "long":
        subprocess.Popen(["sleep", "30"])
        time.sleep(30)
    return True
def broken(answer, row):
    return {}[answer]
def dies(answer, row):
    os._exit(3)
def says_nothing(answer, row):
    pass
def endless(answer, row):
    return float("inf")
number = 3
"""


@pytest.fixture
def checks(tmp_path):
    path = tmp_path / "checks.py"
    path.write_text(CHECKS)
    made = []

    def make(name, **options):
        made.append(Verifier(f"{path}:{name}", workers=2, **options))
        return made[-1]

    yield make
    for verifier in made:
        verifier.close()


def test_by_verifier(checks):
    ranking = rank(ByVerifier(checks("units")))
    assert (ranking.best, ranking.worst, ranking.margin) == (2, 0, 1.0)
    ranking = rank(ByVerifier(checks("right")))
    assert (ranking.best, ranking.worst) == (3, 1)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("broken", "KeyError: 'long'"),
        ("dies", "process ended"),
        ("says_nothing", "TypeError"),
        ("endless", "score is inf"),
    ],
)
def test_a_verifier_that_fails_refuses(checks, name, fault):
    ranking = rank(ByVerifier(checks(name)))
    assert ranking.best is None and ranking.word == "verifier-failed" and fault in ranking.why


def test_a_verifier_that_hangs_is_ended_and_the_others_go_on(checks):
    started = time.monotonic()
    ranking = rank(ByVerifier(checks("slow", seconds=0.5)))
    assert ranking.scores == [None, 1.0, 1.0, 1.0] and ranking.best == 1
    assert time.monotonic() - started < 10


def test_verifiers_that_are_none_are_refused(checks, tmp_path):
    for name in ("missing", "number"):
        with pytest.raises(Failure) as failure:
            checks(name)
        assert failure.value.problem.code == "verifier-broken"
    (tmp_path / "broken.py").write_text("import nothing_of_this_name\n")
    for reference in (f"{tmp_path}/broken.py:f", f"{tmp_path}/none.py:f", "checks.py", "checks.py:1+1"):
        with pytest.raises(Failure) as failure:
            Verifier(reference)
        assert failure.value.exit_code == USAGE


LOUD = """
import os, sys, time

def loud(answer, row):
    {what}
    return len(answer)
"""


@pytest.mark.parametrize(
    "what",
    [
        "[os.write(fd, b'junk\\n') for fd in range(3, 20) if is_open(fd)]",
        "[os.write(fd, b'junk') for fd in range(3, 20) if is_open(fd)]",
        '[os.write(fd, b\'{"number": 1, "score": 99}\\n\' * 3) for fd in range(3, 20) if is_open(fd)]',
        "[os.write(fd, b'[1]\\n') for fd in range(3, 20) if is_open(fd)]",
        "[os.close(fd) for fd in range(3, 20) if is_open(fd)]",
    ],
)
def test_a_verifier_that_writes_to_every_file_it_finds_refuses_that_answer(tmp_path, what):
    file = tmp_path / "loud.py"
    helper = (
        "import stat\n\ndef is_open(fd):\n    try:\n        os.fstat(fd)\n        return True\n    except OSError:\n"
    )
    condition = f"if answer == 'bad':\n        {what}"
    file.write_text(f"{helper}        return False\n{LOUD.format(what=condition)}")
    verifier = Verifier(f"{file}:loud", seconds=3, workers=1)
    try:
        found = [asyncio.run(verifier.score(answer, ROW)) for answer in ("ab", "bad", "abcd", "x")]
    finally:
        verifier.close()
    assert found[1][0] is None and found[1][1]
    assert [score for score, _ in (found[0], *found[2:])] == [2, 4, 1]


def test_a_verifier_that_reads_stdin_takes_no_question_away(tmp_path):
    file = tmp_path / "reads.py"
    file.write_text("import sys\n\ndef reads(answer, row):\n    return len(answer) + len(sys.stdin.read())\n")
    verifier = Verifier(f"{file}:reads", workers=1)
    try:
        assert [asyncio.run(verifier.score(answer, ROW))[0] for answer in ("ab", "abc")] == [2, 3]
    finally:
        verifier.close()
