"""distill_dataset.py compare, and the best of several in respond: which pairs and rows come of which answers."""

import json
from collections import Counter
from types import SimpleNamespace

import pytest

from gemma_trainer.distill.compare import Compare
from gemma_trainer.distill.request import Reply
from gemma_trainer.distill.respond import Respond
from gemma_trainer.rows.problems import USAGE, Failure
from judging import judge
from mock_teacher import serving
from preparing import TOOLS, assistant, call, lines, row_validator, user
from scripts import run
from teaching import Answering, made
from training import make_tiny

PROMPTS = ["How long is the rope?", "How deep is the harbour?", "How far is the lighthouse?"]


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": text, "unit": "m"}) + "\n" for text in PROMPTS))
    return path


@pytest.fixture
def units(tmp_path):
    path = tmp_path / "checks.py"
    path.write_text("def units(answer, row):\n    return answer.endswith(' ' + row['unit'] + '.')\n")
    return f"{path}:units"


def samples(*texts):
    """A teacher whose n-th sample is the n-th text, for all prompts alike; it judges by length."""

    def answer(request):
        asked = request.messages[-1]["content"]
        if "Which answer is better?" in asked:
            first, second = (asked.split(f"[answer {name}]\n")[1].split("\n[end of")[0] for name in "AB")
            return json.dumps({"reason": "longer", "better": "A" if len(first) > len(second) else "B"})
        if "Give the answer a score" in asked:
            return json.dumps({"reason": "so", "score": 9 if "metres" in asked.split("[answer]")[1] else 3})
        said = texts[request.sample]
        return said if isinstance(said, tuple | Reply) else f"{asked[:9]}: {said}" if said else said

    return Answering(answer)


def reasons(rejects):
    return Counter(word for reject in rejects for word in reject.reasons)


def all_valid(rows):
    for row in rows:
        row_validator("dpo").validate(row)
        data, found = judge(row, task="dpo")
        assert data is not None and not found


STUDENT = ("--student-base-url", "http://localhost:1/v1", "--student-name", "student", "--teacher", "teacher")


def two(teacher, student):
    return Answering(
        lambda request: (student if request.model == "student" else teacher)(request.messages[-1]["content"])
    )


def test_the_teacher_against_the_student(prompts):
    asked = two(lambda text: f"{text} It is 3 m.", lambda text: "no idea " * 5)
    rows, rejects, job = made(Compare, asked, "compare", prompts, *STUDENT)
    all_valid(rows)
    assert len(rows) == 3 and not rejects and job.request_count() == 6
    assert rows[0]["prompt"] == [user(PROMPTS[0])] and rows[0]["rejected"] == [assistant("no idea " * 5)]
    assert rows[0]["chosen"] == [assistant(f"{PROMPTS[0]} It is 3 m.")] and "margin" not in rows[0]
    assert {row["meta"]["chosen"]["teacher"] for row in rows} == {"teacher"}
    assert {row["meta"]["rejected"]["teacher"] for row in rows} == {"student"}
    assert job.student_args.base_url == "http://localhost:1/v1"


@pytest.mark.parametrize(
    ("teacher", "student", "word"),
    [
        ("It is 3 m.", "it is  3 m", "tie"),
        ("", "It is 3 m.", "empty"),
        (("It is", "length"), "It is 3 m.", "cut"),
        ("I'm sorry, but I can't help with that.", "It is 3 m.", "refusal"),
        ("It is 3 m.", "", "empty"),
        ("It is 3 m.", ("It is", "length"), "cut"),
        ("It is 3 m.", "3 <end_of_turn> m", "control-tokens"),
        ("It is 3 m.", "I'm sorry, but I can't help with that.", None),  # a fine example of what not to say
        ("It is 3 m.", "rope " * 60, None),
    ],
)
def test_pairs_that_teach_nothing_are_refused(prompts, teacher, student, word):
    asked = two(lambda text: teacher, lambda text: student)
    words = ("compare", prompts, "--family", "gemma3", *STUDENT, "--near-duplicates", 0)
    rows, rejects, _ = made(Compare, asked, *words)
    assert reasons(rejects)[word] == (0 if word is None else 3)
    assert {"chosen", "rejected", "prompt"} <= rejects[0].row.keys() if rejects else rows


def test_by_verifier(prompts, units):
    rows, rejects, job = made(
        Compare, samples("3", "3 m.", "three", "3 m."), "compare", prompts, "--by", "verifier", "--verifier", units
    )
    all_valid(rows)
    assert not rejects and [row["chosen"][0]["content"][-4:] for row in rows] == ["3 m."] * 3
    assert [row["rejected"][0]["content"][-3:] for row in rows] == [": 3"] * 3
    assert {row["margin"] for row in rows} == {1.0} and job.request_count() == 12


def test_by_verifier_where_all_answers_are_alike(prompts, units):
    for texts, word in ((["3", "4", "5", "6"], "verifier-failed"), ([f"{n} m." for n in range(4)], "tie")):
        rows, rejects, _ = made(Compare, samples(*texts), "compare", prompts, "--by", "verifier", "--verifier", units)
        assert not rows and reasons(rejects) == {word: 3}


def test_by_judge(prompts):
    teacher = samples("long", "longest of all", "longer", "l")
    rows, _, job = made(Compare, teacher, "compare", prompts, "--by", "judge")
    all_valid(rows)
    assert rows[0]["chosen"][0]["content"].endswith("longest of all") and "margin" not in rows[0]
    assert rows[0]["rejected"][0]["content"].endswith(": l")
    assert len({request.id for request in teacher.requests}) <= job.request_count()


def test_by_reward(prompts, monkeypatch):
    scorer = SimpleNamespace(score=lambda rows: [float(len(row["messages"][-1]["content"])) for row in rows])
    monkeypatch.setattr("gemma_trainer.models.reward.load_reward_model", lambda folder: scorer)
    teacher = samples("3", "3 metres", ("cut", "length"), "3 m")
    rows, rejects, _ = made(Compare, teacher, "compare", prompts, "--by", "reward", "--reward-model", "run")
    all_valid(rows)
    assert [row["margin"] for row in rows] == [7.0] * 3 and not rejects


def test_tool_calls_can_be_compared(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"prompt": "Tide at North?", "tools": TOOLS}))
    good = Reply("a", "", tool_calls=[call()], finish_reason="tool_calls")
    asked = two(lambda text: good, lambda text: "I do not know.")
    rows, rejects, _ = made(Compare, asked, "compare", path, *STUDENT)
    assert not rejects and rows[0]["tools"] == TOOLS and rows[0]["chosen"][0]["tool_calls"] == [call()]
    all_valid(rows)


def test_too_few_good_answers_are_told(prompts):
    rows, rejects, _ = made(Compare, samples("3 m.", "", ("x", "length"), ""), "compare", prompts, "--by", "judge")
    assert not rows and reasons(rejects) == {"empty": 6, "cut": 3}


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--student-base-url", "http://localhost:1/v1"],
        ["--student-model", "a", "--student-base-url", "http://localhost:1/v1"],
        ["--student-base-url", "http://localhost:1/v1", "--student-name", "teacher"],  # the teacher's own name
        ["--by", "reward"],
        ["--by", "verifier"],
        ["--by", "judge", "--samples", "1"],
        ["--by", "judge", "--judge-rubric", "nothing.md"],
    ],
)
def test_flags_that_do_not_go_together(prompts, words):
    with pytest.raises(Failure) as failure:
        made(Compare, samples(), "compare", prompts, *words)
    assert failure.value.exit_code == USAGE


def respond(teacher, *words):
    return made(Respond, teacher, "respond", *words)


def test_the_best_of_several(prompts, units):
    rows, rejects, _ = respond(
        samples("3", "3 m.", "4 m."), prompts, "--samples", 3, "--best-of", "verifier", "--verifier", units
    )
    assert [row["messages"][1]["content"][-4:] for row in rows] == ["3 m."] * 3
    assert reasons(rejects) == {"not-best": 6}
    rows, rejects, _ = respond(samples("It is 4.", "= 5", "5 it is"), prompts, "--samples", 3, "--best-of", "majority")
    assert [row["messages"][1]["content"][-3:] for row in rows] == ["= 5"] * 3
    rows, rejects, _ = respond(samples("1", "2", "3"), prompts, "--samples", 3, "--best-of", "majority")
    assert not rows and reasons(rejects) == {"no-majority": 9}


def test_a_verifier_and_a_judge_refuse_single_answers(prompts, units):
    rows, rejects, _ = respond(samples("3", "3 m."), prompts, "--samples", 2, "--verifier", units)
    assert len(rows) == 3 and reasons(rejects) == {"verifier-failed": 3}
    teacher = samples("3 metres", "3")
    rows, rejects, job = respond(teacher, prompts, "--samples", 2, "--judge-threshold", 7)
    assert len(rows) == 3 and reasons(rejects) == {"judge-low": 3}
    assert rejects[0].row["details"]["judge-low"] == "3, at least 7 is asked" and len(rejects[0].ids) == 2
    assert job.request_count() == 12


def test_answers_that_have_to_be_json(prompts, tmp_path):
    path = tmp_path / "schema.json"
    path.write_text(json.dumps({"type": "object", "properties": {"m": {"type": "number"}}, "required": ["m"]}))
    replies = iter(["Sure: ```json\n{'m': 3}\n```", '{"m": "3"}', '{"m": 3.5}', "three", "three metres"])
    rows, rejects, _ = respond(Answering(lambda request: next(replies)), prompts, "--schema", path)
    assert [row["messages"][1]["content"] for row in rows] == ['{"m": 3}', '{"m": 3.5}']
    assert all(len(row["messages"]) == 2 for row in rows)  # the repair round is no part of the row
    assert reasons(rejects) == {"schema-invalid": 1} and len(rejects[0].ids) == 2


def test_thinking_is_kept_or_dropped(prompts):
    teacher = Answering(lambda request: Reply("x", f"{request.messages[0]['content']} 3 m", "hm"))
    rows, _, _ = respond(teacher, prompts)
    assert {row["messages"][1]["reasoning_content"] for row in rows} == {"hm"}
    rows, _, _ = respond(teacher, prompts, "--drop-thinking")
    assert all("reasoning_content" not in row["messages"][1] for row in rows)


def talking(body):
    """The mock server's answers: as the teacher, as the student, as a writer of prompts."""
    text = body["messages"][-1]["content"]
    if body["model"] == "student":
        return {"role": "assistant", "content": "Dunno."}
    if "Rewrite it into another prompt" in text:
        made_up = json.dumps({"prompt": f"{sum(map(ord, text)) * body['seed']} knots: how fast is that?"})
        return {"role": "assistant", "content": f"```json\n{made_up}\n```"}
    return {"role": "assistant", "content": f"<think>hm</think>{text[:40]} It is {len(text)} m."}


def test_compare_from_the_command_line(prompts, tmp_path):
    out = tmp_path / "pairs.jsonl"
    with serving(answer=talking, models=("teacher", "student"), fault_rate=0.2) as server:
        words = ["compare", prompts, "--base-url", server.base_url, "--teacher", "teacher", "--out", out]
        words += ["--student-base-url", server.base_url, "--student-name", "student", "--json"]
        first = run("distill_dataset.py", *words)
        assert first.code == 0, first.stderr
        answered = server.counts["answered"]
        again = run("distill_dataset.py", *words)
        assert again.code == 0 and server.counts["answered"] == answered == 6
    rows = lines(out)
    assert len(rows) == 3 and {row["rejected"][0]["content"] for row in rows} == {"Dunno."}
    assert {row["chosen"][0]["reasoning_content"] for row in rows} == {"hm"}
    assert run("dataset_prep.py", "validate", out, "--task", "dpo", "--json").code == 0


def test_another_model_of_the_server_can_judge(prompts, tmp_path):
    def answer(body):
        said = json.dumps({"reason": "so", "score": 9}) if body["model"] == "judge" else f"{len(str(body))} m"
        return {"role": "assistant", "content": said}

    with serving(answer=answer, models=("teacher", "judge")) as server:
        words = ["respond", prompts, "--base-url", server.base_url, "--teacher", "teacher", "--judge-model", "judge"]
        ran = run("distill_dataset.py", *words, "--judge-threshold", 8, "--out", tmp_path / "x.jsonl", "--json")
        assert ran.code == 0, ran.stderr
        assert Counter(body["model"] for body in server.bodies) == {"teacher": 3, "judge": 3}


def test_synthesize_from_the_command_line_goes_on_after_a_budget(prompts, tmp_path):
    whole, parts = tmp_path / "whole.jsonl", tmp_path / "parts.jsonl"
    with serving(answer=talking, models=("teacher",), fault_rate=0.1) as server:
        words = ["synthesize", "--seeds", prompts, "--kind", "evolve", "--count", 12, "--json"]
        words += ["--base-url", server.base_url, "--teacher", "teacher", "--out"]
        undisturbed = run("distill_dataset.py", *words, whole)
        assert undisturbed.code == 0, undisturbed.stderr
        stopped = run("distill_dataset.py", *words, parts, "--max-requests", 7)
        assert stopped.code == 6 and "budget-spent" in stopped.codes
        assert run("distill_dataset.py", *words, parts).code == 0
    assert lines(parts) == lines(whole) and len(lines(whole)) >= 10
    assert run("dataset_prep.py", "validate", whole, "--json").code == 0


def test_a_plan_asks_nothing(prompts, tmp_path):
    with serving(answer=talking, models=("teacher",)) as server:
        words = [
            "--base-url",
            server.base_url,
            "--teacher",
            "teacher",
            "--out",
            tmp_path / "x.jsonl",
            "--plan",
            "--json",
        ]
        for given in (["synthesize", "--seeds", prompts], ["compare", prompts, "--by", "judge"]):
            planned = run("distill_dataset.py", *given, *words)
            assert planned.code == 0, planned.stderr
            assert planned.json["result"]["first_request"] and planned.json["result"]["requests"] > 3
        assert not server.counts["requests"] and not (tmp_path / "x.jsonl").exists()


@pytest.mark.slow
def test_a_reward_model_of_the_pack_ranks(prompts, tmp_path):
    """respond --best-of and compare --by with a reward model on disk choose what its scores say."""
    import torch
    from transformers import AutoTokenizer

    from gemma_trainer.models.reward import load_base, load_reward_model

    tiny = make_tiny(tmp_path / "tiny", "gemma3")
    model = load_base(str(tiny.path), dtype="float32", device="cpu")
    with torch.no_grad():
        model.score.weight.copy_(torch.randn(model.score.weight.shape, generator=torch.Generator().manual_seed(3)))
    model.save_pretrained(tmp_path / "reward")
    AutoTokenizer.from_pretrained(tiny.path).save_pretrained(tmp_path / "reward")
    scorer = load_reward_model(tmp_path / "reward")

    texts = ("3", "List the names of all users", "SELECT price FROM books", "7 m")
    words = ("--reward-model", tmp_path / "reward", "--family", "gemma3", "--near-duplicates", 0)
    rows, _, _ = respond(samples(*texts), prompts, "--samples", 4, "--best-of", "reward", *words)
    pairs, _, _ = made(Compare, samples(*texts), "compare", prompts, "--by", "reward", *words)
    assert len(rows) == len(pairs) == 3
    for row, pair, asked in zip(rows, pairs, PROMPTS, strict=True):
        answers = [f"{asked[:9]}: {text}" for text in texts]
        scores = scorer.score([[user(asked), assistant(answer)] for answer in answers])
        best, worst = (answers[scores.index(end(scores))] for end in (max, min))
        assert row["messages"][1]["content"] == pair["chosen"][0]["content"] == best
        assert pair["rejected"][0]["content"] == worst
        assert pair["margin"] == pytest.approx(max(scores) - min(scores), abs=1e-4)


@pytest.mark.slow
def test_a_student_in_this_process_answers(prompts, tmp_path):
    """A tiny random student seldom ends by itself: such answers are refused as cut, and the run says so."""
    tiny = make_tiny(tmp_path / "tiny", "gemma3")
    with serving(answer=talking, models=("teacher",)) as server:
        words = ["compare", prompts, "--base-url", server.base_url, "--teacher", "teacher", "--max-new-tokens", 24]
        words += ["--student-model", tiny.path, "--out", tmp_path / "pairs.jsonl", "--json", "--batch-size", 2]
        ran = run("distill_dataset.py", *words)
        result = ran.json["result"]
        assert ran.code == (0 if result["rows"] else 3), ran.stdout
        assert result["rows"] + result["rejected"] == 3
        assert server.counts["answered"] == 3
    refused = lines(tmp_path / "pairs.rejects.jsonl")
    assert {row["meta"]["rejected"]["teacher"].split("@")[0] for row in refused} == {"tiny"}
    assert all(row["reasons"] for row in refused)
