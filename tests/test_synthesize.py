"""distill_dataset.py synthesize: what each kind asks for, what it keeps, what it refuses."""

import json
import re
from collections import Counter

import pytest

from gemma_trainer.distill.draw_documents import check_sample
from gemma_trainer.distill.request import Reply
from gemma_trainer.distill.seeds import PASSAGE, cut_text, read_tools
from gemma_trainer.distill.synthesize import Synthesize
from gemma_trainer.rows.problems import DATA_INVALID, UNSUPPORTED, USAGE, Failure
from judging import judge
from preparing import TOOLS, assistant, call, chat, row_validator, user
from teaching import Answering, made

SEEDS = [
    chat(user("Which tide comes with the full moon?"), assistant("Spring tide.")),
    chat(user("How long does a sour dough rest before it is baked?"), assistant("Overnight.")),
    chat(user("What is a bowline good for on a boat?"), assistant("A loop that holds.")),
]
SUBJECTS = [
    "rope",
    "sail",
    "anchor",
    "lantern",
    "compass",
    "harbour",
    "gull",
    "lighthouse",
    "kelp",
    "barnacle",
    "pilot",
    "ferry",
    "buoy",
    "trawler",
    "dinghy",
    "keel",
]


@pytest.fixture
def seeds(tmp_path):
    path = tmp_path / "seeds.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in SEEDS))
    return path


def fresh(request, kind="prompt"):
    """A new question that no other draw has, and that says nothing like the seeds."""
    number = request.sample // 100 + 5 * (request.sample % 100)
    return f"{SUBJECTS[number % len(SUBJECTS)].title() * 3} {number * 7919}: {SUBJECTS[-number % len(SUBJECTS)]}?"


def writer(request):
    """A teacher that writes new prompts where it is asked for them and answers everything else."""
    text = request.messages[-1]["content"]
    if found := re.search(r"Write (\d+) new prompts", text):
        made_up = [{"prompt": f"{fresh(request)} {'abcdefgh'[at] * 9}"} for at in range(int(found[1]))]
        return json.dumps({"prompts": made_up})
    if "Rewrite it into another prompt" in text:
        return json.dumps({"prompt": fresh(request)})
    if "Write the user's next message" in text:
        return json.dumps({"message": f"And then, after {len(text)} letters?"})
    return f"The answer to that is {hash_of(text)}."


def hash_of(text):
    return sum(ord(letter) * at for at, letter in enumerate(text, 7))


def reasons(rejects):
    return Counter(word for reject in rejects for word in reject.reasons)


def all_valid(rows):
    for row in rows:
        row_validator("sft").validate(row)
        data, found = judge(row)
        assert data is not None and not found - {"reasoning-template"}


@pytest.mark.parametrize(("kind", "items"), [("instruct", 3), ("evolve", 10), ("multi-turn", 10)])
def test_new_rows_of_seeds(seeds, kind, items):
    teacher = Answering(writer)
    rows, rejects, job = made(Synthesize, teacher, "synthesize", "--seeds", seeds, "--kind", kind, "--count", 10)
    assert len(list(job.items())) == items and len(rows) == 10 and not rejects
    all_valid(rows)
    assert {row["meta"]["kind"] for row in rows} == {kind}
    assert all(len(row["messages"]) >= (4 if kind == "multi-turn" else 2) for row in rows)
    ids = {request.id for request in teacher.requests}
    assert {row["meta"]["id"] for row in rows} <= ids


def test_a_larger_count_goes_on_where_a_smaller_one_ended(seeds):
    words = ("synthesize", "--seeds", seeds, "--kind", "evolve", "--count")
    first, second = Answering(writer), Answering(writer)
    few, _, _ = made(Synthesize, first, *words, 4)
    many, _, _ = made(Synthesize, second, *words, 9)
    assert many[:4] == few
    assert {request.id for request in first.requests} < {request.id for request in second.requests}


def test_another_seed_draws_something_else(seeds):
    asked = []
    for number in (0, 1, 0):
        teacher = Answering(writer)
        made(Synthesize, teacher, "synthesize", "--seeds", seeds, "--count", 8, "--seed", number)
        asked.append([request.messages for request in teacher.requests])
    assert asked[0] == asked[2] != asked[1]


def test_examples_are_shown_and_their_system_text_is_taken_over(tmp_path):
    path = tmp_path / "seeds.jsonl"
    rows = [
        chat({"role": "system", "content": f"Be {how}."}, *SEEDS[at]["messages"])
        for at, how in enumerate(["brief", "long", "brief"])
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    teacher = Answering(writer)
    rows, _, _ = made(Synthesize, teacher, "synthesize", "--seeds", path, "--count", 64)
    assert {row["messages"][0]["content"] for row in rows} == {"Be brief.", "Be long."}
    for request in teacher.requests:
        if "new prompts" in request.messages[0]["content"]:
            assert ("sour dough" in request.messages[0]["content"]) != ("full moon" in request.messages[0]["content"])


def test_what_is_like_a_seed_or_an_earlier_prompt_is_not_new(seeds):
    copies = iter(
        [
            "Which tide comes with the full moon?",
            "which tide  comes with THE full moon",
            *["Tell me how gulls sleep."] * 2,
        ]
    )
    teacher = Answering(
        lambda request: (
            json.dumps({"prompt": next(copies)})
            if "Rewrite" in request.messages[0]["content"]
            else f"{request.messages[0]['content'][:4]} {request.sample}"
        )
    )
    rows, rejects, _ = made(Synthesize, teacher, "synthesize", "--seeds", seeds, "--kind", "evolve", "--count", 4)
    assert [row["messages"][0]["content"] for row in rows] == ["Tell me how gulls sleep."]
    assert reasons(rejects) == {"not-novel": 3}
    assert (
        "a seed" in rejects[0].row["details"]["not-novel"]
        and rows[0]["meta"]["id"] in rejects[2].row["details"]["not-novel"]
    )


@pytest.mark.parametrize(
    "reply", ["I'd love to!", "", '{"prompts": []}', '{"prompts": [{"prompt": "  "}]}', '[{"answer": "a"}]']
)
def test_a_writer_that_gives_nothing_is_asked_twice_and_told(seeds, reply):
    teacher = Answering(lambda request: reply)
    rows, rejects, _ = made(Synthesize, teacher, "synthesize", "--seeds", seeds, "--count", 4)
    assert not rows and reasons(rejects) == {"schema-invalid": 1} and len(teacher.requests) == 2
    assert rejects[0].row["messages"][-1] == assistant(reply)


@pytest.mark.parametrize("name", ["instruction", "question", "task"])
def test_prompts_under_another_name_are_found(seeds, name):
    def answer(request):
        return writer(request).replace('"prompt":', f'"{name}":')

    rows, rejects, _ = made(Synthesize, Answering(answer), "synthesize", "--seeds", seeds, "--count", 4)
    assert len(rows) == 4 and not rejects


def test_prompts_without_a_name_are_found(seeds):
    def answer(request):
        said = writer(request)
        return (
            json.dumps([one["prompt"] for one in json.loads(said)["prompts"]])
            if "new prompts" in str(request)
            else said
        )

    rows, rejects, _ = made(Synthesize, Answering(answer), "synthesize", "--seeds", seeds, "--count", 4)
    assert len(rows) == 4 and not rejects


def test_whole_prompts_of_a_cut_reply_are_kept_and_the_rest_is_asked_for(seeds):
    def answer(request):
        said = writer(request)
        return (said[:-30], "length") if "Write 4 new" in request.messages[0]["content"] else said

    rows, rejects, _ = made(Synthesize, Answering(answer), "synthesize", "--seeds", seeds, "--count", 4)
    assert len(rows) == 4
    assert reasons(rejects)["schema-invalid"] == 1


def test_a_writer_that_gives_too_few_is_asked_again_and_told(seeds):
    def answer(request):
        said = writer(request)
        return json.dumps({"prompts": json.loads(said)["prompts"][:1]}) if "new prompts" in str(request) else said

    rows, rejects, _ = made(Synthesize, Answering(answer), "synthesize", "--seeds", seeds, "--count", 4)
    assert len(rows) == 2 and reasons(rejects) == {"too-few": 1}
    assert rejects[0].row["details"] == {"too-few": "2 of 4 samples came"}


def test_bad_answers_are_refused(seeds):
    bad = iter(["", ("half an ans", "length"), "I'm sorry, but I can't help with that.", "fine " * 60])
    teacher = Answering(
        lambda request: writer(request) if "new prompts" in request.messages[0]["content"] else next(bad)
    )
    rows, rejects, _ = made(Synthesize, teacher, "synthesize", "--seeds", seeds, "--count", 4)
    assert not rows and reasons(rejects) == {"empty": 1, "cut": 1, "refusal": 1, "loop": 1}


def test_a_conversation_ends_with_its_first_bad_turn(seeds):
    answers = iter(["Spring tide.", "", *["Fine."] * 20])
    teacher = Answering(
        lambda request: writer(request) if "next message" in request.messages[0]["content"] else next(answers)
    )
    rows, rejects, _ = made(Synthesize, teacher, "synthesize", "--seeds", seeds, "--kind", "multi-turn", "--count", 1)
    assert not rows and reasons(rejects) == {"empty": 1}
    assert [message["role"] for message in rejects[0].row["messages"]] == ["user", "assistant"] * 2


DOCUMENT = """# Tides

The tide comes in twice a day at most places. It is highest at new moon and at full moon, when sun and moon pull along
one line; this is the spring tide.

## Neap tide

At half moon sun and moon pull at a right angle, and the tide is lowest. It is called the neap tide.
"""
SAMPLE = {
    "question": "When is the tide highest?",
    "answer": "It is highest at new moon and at full moon.",
    "quote": "It is highest at new moon and at full moon",
}


def test_documents_are_asked_about_with_quotes(tmp_path):
    path = tmp_path / "tides.md"
    path.write_text(DOCUMENT)
    samples = [
        SAMPLE,
        {
            "question": "What is a neap tide?",
            "answer": "The low tide at half moon.",
            "quote": "IT IS CALLED  the neap tide",
        },
        {**SAMPLE, "question": "How does the passage explain it?", "answer": "By sun and moon."},
    ]
    teacher = Answering(lambda request: json.dumps({"samples": samples}))
    rows, rejects, _ = made(Synthesize, teacher, "synthesize", "--documents", path, "--count", 3)
    all_valid(rows)
    assert [row["messages"][0]["content"] for row in rows] == [sample["question"] for sample in samples[:2]]
    assert rows[0]["messages"][1] == assistant(SAMPLE["answer"])
    assert rows[0]["meta"]["source"] == {"file": str(path), "passage": 1, "quote": SAMPLE["quote"]}
    assert reasons(rejects) == {"leans-on-passage": 1}
    assert DOCUMENT.strip()[:60] in teacher.requests[0].messages[0]["content"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, []),
        ({"quote": "the tide comes in twice a DAY — at most places"}, []),
        ({"quote": "It is highest at half moon"}, ["quote"]),
        ({"quote": "tide"}, ["quote"]),
        ({"quote": ""}, ["quote"]),
        ({"question": "What does the text say of tides?"}, ["leans-on-passage"]),
        ({"answer": "According to the passage, at new moon."}, ["leans-on-passage"]),
        ({"question": "Which text did the captain write?"}, []),
    ],
)
def test_quotes_and_questions_that_stand_alone(changes, words):
    assert [reason.word for reason in check_sample({**SAMPLE, **changes}, DOCUMENT)] == words


def test_text_is_cut_at_its_joints():
    paragraphs = [f"Paragraph {n}. " + "It tells of tides and boats. " * 20 for n in range(12)]
    pieces = cut_text("\n\n".join(paragraphs))
    assert all(len(piece) <= PASSAGE for piece in pieces) and len(pieces) > 2
    assert all(piece.startswith("Paragraph") for piece in pieces)
    assert re.sub(r"\s", "", "".join(pieces)) == re.sub(r"\s", "", "".join(paragraphs))
    for long in ("word " * 2000, "潮" * 5000, "One sentence. " * 400):
        pieces = cut_text(long)
        assert all(0 < len(piece) <= PASSAGE for piece in pieces)
        assert re.sub(r"\s", "", "".join(pieces)) == re.sub(r"\s", "", long)
    assert cut_text("") == cut_text(" \n\n ") == []
    assert cut_text("# One\n\nText one.\n\n# Two\n\nMore.", 20) == ["# One\n\nText one.", "# Two\n\nMore."]


@pytest.fixture
def tools(tmp_path):
    path = tmp_path / "tools.json"
    other = json.loads(json.dumps(TOOLS[0]).replace("get_tide", "get_wind").replace("Tide height", "Wind speed"))
    path.write_text(json.dumps([*TOOLS, other]))
    return path


def caller(called=lambda request, name: call(name), result='{"result": {"height": 3.2}}', answer="It is 3.2 metres."):
    """A teacher that asks for what a function gives, calls it, plays it, and answers."""

    def act(request):
        text = request.messages[-1]["content"]
        if request.messages[-1]["role"] == "tool" and not text.startswith("error"):
            return answer
        if "Write a request of a user" in text:
            wanted = re.search(r"has to call `(\w+)`", text)
            what = f"the {wanted[1][4:]} at North" if wanted else "a poem"
            return json.dumps({"request": f"{fresh(request)} Tell me {what}."})
        if "You play a function" in text:
            return result
        first = next(message["content"] for message in request.messages if message["role"] == "user")
        wanted = re.search(r"the (tide|wind) at", first)
        if not wanted:
            return "Waves and waves."
        said = called(request, f"get_{wanted[1]}")
        if isinstance(said, str):
            return said
        return Reply(request.id, "", tool_calls=[said], finish_reason="tool_calls")

    return Answering(act)


def test_rows_with_tool_calls(tools):
    rows, rejects, _ = made(Synthesize, caller(), "synthesize", "--tools", tools, "--count", 16, "--seed", 3)
    assert len(rows) == 16 and not rejects
    all_valid(rows)
    called = [row for row in rows if len(row["messages"]) == 4]
    assert 0 < len(rows) - len(called) < 8  # some requests that no tool is for
    _, said, result, answer = called[0]["messages"]
    assert said["tool_calls"][0]["function"] == call("get_tide")["function"]
    assert result == {"role": "tool", "name": "get_tide", "tool_call_id": "call_1_1", "content": '{"height": 3.2}'}
    assert answer["content"] == "It is 3.2 metres."
    assert {len(row["tools"]) for row in rows} == {1, 2}
    assert {row["messages"][1]["tool_calls"][0]["function"]["name"] for row in called} == {"get_tide", "get_wind"}


def test_a_call_that_cannot_be_made_is_told_and_asked_for_again(tools):
    def called(request, name):
        told = request.messages[-1]
        return call(name) if told["role"] == "tool" else call(name, {"stations": ["North"]})

    teacher = caller(called)
    rows, rejects, _ = made(Synthesize, teacher, "synthesize", "--tools", tools, "--count", 3)
    assert len(rows) == 3 and not rejects
    assert not any("error" in json.dumps(row["messages"]) or "stations" in json.dumps(row["messages"]) for row in rows)
    told = [request.messages[-1]["content"] for request in teacher.requests if request.messages[-1]["role"] == "tool"]
    assert any(text.startswith("error: get_tide: ") for text in told)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"called": lambda request, name: call(name, {"station": 3})}, "tool-call-invalid"),
        ({"called": lambda request, name: call("get_moon")}, "tool-call-invalid"),
        ({"called": lambda request, name: call(name, {})}, "tool-call-invalid"),
        ({"called": lambda request, name: "It is 3 metres, I guess."}, "no-tool-call"),
        ({"result": "no idea"}, "schema-invalid"),
        ({"answer": ""}, "empty"),
        ({"answer": Reply("x", "", tool_calls=[call()], finish_reason="tool_calls")}, "tool-call-invalid"),
    ],
)
def test_rows_whose_calls_are_not_right_are_refused(tools, changes, word):
    rows, rejects, _ = made(Synthesize, caller(**changes), "synthesize", "--tools", tools, "--count", 6)
    assert all("tool_calls" not in message for row in rows for message in row["messages"])
    assert word in reasons(rejects) and len(rejects) + len(rows) == 6


def test_a_request_that_names_the_function_is_refused(tools):
    teacher = caller()
    act = teacher.answer
    teacher.answer = lambda request: (
        act(request).replace("Tell me", "Call get_tide:")
        if "Write a request" in request.messages[-1]["content"]
        else act(request)
    )
    _, rejects, _ = made(Synthesize, teacher, "synthesize", "--tools", tools, "--count", 2)
    assert reasons(rejects)["names-tool"]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (json.dumps(TOOLS), ["get_tide"]),
        (json.dumps({"tools": TOOLS}), ["get_tide"]),
        (json.dumps(TOOLS[0]["function"]), ["get_tide"]),
        (json.dumps(TOOLS[0]) + "\n" + json.dumps(TOOLS[0]).replace("get_tide", "b"), ["get_tide", "b"]),
        (json.dumps([{"name": "a", "input_schema": {"type": "object", "properties": {}}}]), ["a"]),
        (json.dumps([{"functionDeclarations": [{"name": "a", "parameters": {"type": "OBJECT"}}]}]), ["a"]),
        ("[]", None),
        ("{", None),
        ("3", None),
        ('[{"type": "function"}]', None),
    ],
)
def test_tools_are_read_in_their_usual_forms(tmp_path, text, names):
    path = tmp_path / "tools.json"
    path.write_text(text)
    if names:
        assert [tool["function"]["name"] for tool in read_tools(path)] == names
        return
    with pytest.raises(Failure) as failure:
        read_tools(path)
    assert failure.value.exit_code == USAGE


def test_flags_that_do_not_go_together_and_seeds_that_are_none(seeds, tools, tmp_path):
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"prompt": "a"}\n{"prompt": "b"\n')
    for words, code in (
        ([], USAGE),
        (["--kind", "tools", "--seeds", seeds], USAGE),
        (["--seeds", seeds, "--tools", tools], USAGE),
        (["--seeds", tmp_path / "none.jsonl"], USAGE),
        (["--documents", tmp_path / "none.md"], USAGE),
        (["--seeds", seeds, "--language", "xx"], USAGE),
        (["--seeds", broken], DATA_INVALID),
        (["--tools", tools, "--family", "gemma3"], UNSUPPORTED),
    ):
        with pytest.raises(Failure) as failure:
            made(Synthesize, Answering(writer), "synthesize", *words)
        assert failure.value.exit_code == code, words


def test_a_verifier_and_a_judge_look_at_what_is_made(seeds, tmp_path):
    checks = tmp_path / "checks.py"
    checks.write_text(
        "def even(answer, row):\n    return row['prompt'][-1]['content'] and int(answer[22:-1]) % 2 == 0\n"
    )
    scored = []

    def answer(request):
        text = request.messages[-1]["content"]
        if "Give the answer a score" not in text:
            return writer(request)
        scored.append(text)
        return json.dumps({"reason": "so", "score": 4 + len(scored) % 2 * 4})

    words = ("synthesize", "--seeds", seeds, "--count", 12, "--verifier", f"{checks}:even", "--judge-threshold", 7)
    rows, rejects, _ = made(Synthesize, Answering(answer), *words)
    counts = reasons(rejects)
    assert len(rows) + counts["judge-low"] == len(scored) == 12 - counts["verifier-failed"] < 12
    assert rows and counts["judge-low"]


@pytest.mark.parametrize("mark", ["\0", "\ufffd", "<start_of_turn>", "<turn|>", "<unused7>"])
@pytest.mark.parametrize("kind", ["instruct", "evolve", "multi-turn"])
def test_what_the_teacher_asks_is_held_to_the_same_as_what_it_answers(seeds, kind, mark):
    def spoilt(request):
        said = writer(request)
        if said.startswith("{"):
            value = json.loads(said)
            asked = value.get("prompts", [value])[0]
            asked |= {key: f"{text[:9]}{mark}{text[9:]}" for key, text in asked.items()}
            return json.dumps(value)
        return said

    rows, rejects, _ = made(Synthesize, Answering(spoilt), "synthesize", "--seeds", seeds, "--kind", kind, "--count", 4)
    assert len(rows) == (3 if kind == "instruct" else 0) and set(reasons(rejects)) <= {"invalid", "control-tokens"}
    assert rejects
    all_valid(rows)


def test_marks_in_seeds_are_the_users_own(tmp_path):
    path = tmp_path / "seeds.jsonl"
    path.write_text(json.dumps(chat(user("What does <start_of_turn> mean?"), assistant("A mark."))) + "\n")
    rows, rejects, _ = made(
        Synthesize, Answering(writer), "synthesize", "--seeds", path, "--kind", "multi-turn", "--count", 2
    )
    assert len(rows) == 2 and not rejects
