"""Secrets, damaged files, flags that contradict each other, and the commands that a run gives to go on with."""

import json

import pytest

from distilling import distill, read_lines, respond, write_prompts
from gemma_trainer import cli
from gemma_trainer.distill.options import add_arguments
from mock_teacher import MockTeacher, serving
from scripts import run

SECRET = "sk-a-key-that-nobody-else-may/see-2024"


class Recording(MockTeacher):
    """Keeps the Authorization headers it is sent."""

    async def _respond(self, writer, path, headers, body):
        self.counts[f"key {headers.get('authorization')}"] += 1
        return await super()._respond(writer, path, headers, body)


@pytest.fixture
def recording(monkeypatch):
    monkeypatch.setattr("mock_teacher.MockTeacher", Recording)


def keys(teacher) -> set[str]:
    return {name.removeprefix("key ") for name in teacher.counts if name.startswith("key ")}


def test_the_teachers_key_goes_to_the_teacher_alone(tmp_path, recording):
    prompts = write_prompts(tmp_path, 2)
    answer = lambda body: {"role": "assistant", "content": "No."}  # noqa: E731

    def compare(teacher, student, out, *more):
        return distill(
            "compare", prompts, "--base-url", teacher, "--teacher", "m", "--student-base-url", student,
            "--student-name", "s", "--out", tmp_path / out, "--json", *more, OPENAI_API_KEY=SECRET, STUDENT="of-student",
        )  # fmt: skip

    with serving() as teacher, serving(answer=answer, models=("s",)) as student:
        assert compare(teacher.base_url, student.base_url, "a.jsonl").code == 0
        assert keys(teacher) == {f"Bearer {SECRET}"} and keys(student) == {"None"}
        assert compare(teacher.base_url, student.base_url, "b.jsonl", "--student-api-key-env", "STUDENT").code == 0
        assert keys(student) == {"None", "Bearer of-student"}
    with serving(models=("m", "s")) as both:
        compare(both.base_url, both.base_url, "c.jsonl")
        assert keys(both) == {f"Bearer {SECRET}"}


@pytest.mark.parametrize("status", [200, 400, 401, 500])
def test_a_server_that_repeats_the_key_puts_it_nowhere(tmp_path, status):
    prompts = write_prompts(tmp_path, 2)
    told = f"you said Bearer {SECRET}"

    def answer(body):
        message = {"role": "assistant", "content": f"It is so: {told}", "reasoning_content": told}
        return message if status == 200 else (status, {"error": {"message": told}})

    with serving(answer=answer) as teacher:
        done = respond(prompts, teacher.base_url, "--retries", 0, "--concurrency", 1, OPENAI_API_KEY=SECRET)
    written = "".join(file.read_text() for file in tmp_path.iterdir())
    for text in (written, done.stdout, done.stderr):
        assert SECRET not in text and "nobody-else" not in text
    assert "[key]" in written + done.stdout


BAD_URLS = [
    *("http://user:s3cret@host/v1", "http://host/v1?key=s3cret", "http://host/v1#s3cret", "http://[::1/v1"),
    *("http://host:99999/v1", "http://host:x/v1", "ftp://host/v1", "host:8000", "http://", "http://a b/v1"),
    "http://host/v1/chat/completions",
]


@pytest.mark.parametrize("url", BAD_URLS)
@pytest.mark.parametrize("flag", ["--base-url", "--student-base-url"])
def test_what_is_no_base_url_is_refused_by_its_flag_and_not_repeated(tmp_path, flag, url):
    prompts = write_prompts(tmp_path, 1)
    urls = {"--base-url": "http://127.0.0.1:9/v1", "--student-base-url": "http://127.0.0.1:9/v1", flag: url}
    given = [word for pair in urls.items() for word in pair]
    done = distill(
        "compare", prompts, *given, "--teacher", "m", "--student-name", "s", "--out", tmp_path / "o.jsonl", "--json"
    )
    assert done.code == 2 and done.json["errors"][0]["message"].startswith(flag), done.stdout
    assert "s3cret" not in done.stdout + done.stderr
    if url.endswith("completions"):
        assert done.json["errors"][0]["fix"] == f"{flag} http://host/v1"


def test_a_key_is_stripped_and_one_that_no_header_holds_is_refused(tmp_path, recording):
    prompts = write_prompts(tmp_path, 1)
    with serving() as teacher:
        assert respond(prompts, teacher.base_url, OPENAI_API_KEY="key\r\n").code == 0
        assert keys(teacher) == {"Bearer key"}
        for key in ("a\nb", "a b", "schlüssel", "a\x7f"):
            done = respond(prompts, teacher.base_url, "--api-key-env", "MINE", MINE=key)
            assert done.code == 2 and "MINE" in done.json["errors"][0]["message"] and key not in done.stdout


def test_advice_names_the_variable_and_the_path_that_are_missing(tmp_path, monkeypatch):
    prompts = write_prompts(tmp_path, 1)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with serving(key="k") as teacher:
        assert "OPENAI_API_KEY is not set" in respond(prompts, teacher.base_url).json["errors"][0]["fix"]
        bare = teacher.base_url.removesuffix("/v1")
        assert teacher.base_url in respond(prompts, bare, OPENAI_API_KEY="k").json["errors"][0]["fix"]


DAMAGE = {
    "garbage": lambda line: b"\xff\xfe what\n",
    "empty": lambda line: b"\n",
    "no id of ours": lambda line: b'{"id":"zz"}\n',
    "cut in the middle": lambda line: line[: len(line) // 2] + b"\n",
    "zeros": lambda line: b"\0" * 50 + b"\n",
    "another type": lambda line: line.replace(b'"content":"The', b'"content":5,"x":"The'),
    "a list": lambda line: b"[1, 2]\n",
    "deep": lambda line: b"[" * 100_000 + b"\n",
    "a call that is none": lambda line: line.replace(b'"tool_calls":null', b'"tool_calls":[5]'),
    "usage of words": lambda line: line.replace(b'"reasoning_tokens":0', b'"reasoning_tokens":"none"'),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_line_of_the_journal_is_told_and_its_request_asked_again(tmp_path, damage):
    prompts = write_prompts(tmp_path, 4)
    with serving() as teacher:
        respond(prompts, teacher.base_url)
        whole, journal = (tmp_path / "train.jsonl").read_bytes(), tmp_path / "train.replies.jsonl"
        lines = journal.read_bytes().splitlines(keepends=True)
        changed = DAMAGE[damage](lines[1])
        assert changed != lines[1]
        journal.write_bytes(b"".join([lines[0], changed, *lines[2:]]))
        assert respond(prompts, teacher.base_url, "--plan").code == 0
        again = respond(prompts, teacher.base_url)
    assert again.code == 0 and again.json["result"]["requests"] == 1 and teacher.counts["requests"] == 5
    (warning,) = [one for one in again.json["warnings"] if one["code"] == "journal-damaged"]
    assert warning["file"] == str(journal) and warning["line"] == 2
    assert (tmp_path / "train.jsonl").read_bytes() == whole


def test_a_journal_that_was_written_anew_by_another_program_is_read(tmp_path):
    prompts = write_prompts(tmp_path, 3)
    with serving() as teacher:
        respond(prompts, teacher.base_url)
        journal = tmp_path / "train.replies.jsonl"
        journal.write_text("".join(json.dumps(line, sort_keys=True) + "\n" for line in read_lines(journal)))
        again = respond(prompts, teacher.base_url)
        assert again.code == 0 and again.json["result"]["requests"] == 0 and not again.json["warnings"]


@pytest.mark.parametrize("line", [b"garbage\n", b"{}\n", b"[]\n", b"\0\0\n", b'{"id": 5, "reason": "x"}\n'])
def test_damaged_lines_of_failed_requests_are_told(tmp_path, line):
    prompts = write_prompts(tmp_path, 2)
    with serving() as teacher:
        respond(prompts, teacher.base_url)
        (tmp_path / "train.failed.jsonl").write_bytes(line)
        again = respond(prompts, teacher.base_url)
    assert again.code == 0 and again.codes == {"journal-damaged"}


@pytest.mark.parametrize("text", ["", "{", "[]", "5", '{"settings": []}', '{"settings": 5}', '{"settings": ["a"]}'])
def test_a_manifest_that_cannot_be_read_ends_with_the_way_out(tmp_path, text):
    prompts = write_prompts(tmp_path, 2)
    with serving() as teacher:
        respond(prompts, teacher.base_url)
        (tmp_path / "train.manifest.json").write_text(text)
        refused = respond(prompts, teacher.base_url)
        assert refused.code == 2 and refused.codes == {"resume-mismatch"}, refused.stdout
        assert "--overwrite" in refused.json["errors"][0]["fix"]
        again = respond(prompts, teacher.base_url, "--overwrite")
        assert again.code == 0 and again.json["result"]["requests"] == 0


def test_a_run_that_is_refused_changes_no_file_of_the_one_that_works(tmp_path):
    import fcntl

    prompts = write_prompts(tmp_path, 3)
    with serving() as teacher:
        respond(prompts, teacher.base_url)
        before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
        with (tmp_path / "train.replies.jsonl").open("rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            for more in ([], ["--overwrite"], ["--overwrite", "--temperature", 0.1]):
                refused = respond(prompts, teacher.base_url, *more)
                assert refused.codes == {"run-in-progress"}
        assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_a_run_that_was_killed_before_its_manifest_goes_on(tmp_path):
    prompts = write_prompts(tmp_path, 2)
    (tmp_path / "train.replies.jsonl").touch()
    with serving() as teacher:
        assert respond(prompts, teacher.base_url).code == 0


def test_files_are_the_same_however_they_are_spelled(tmp_path, monkeypatch):
    prompts = write_prompts(tmp_path, 3)
    with serving() as teacher:
        respond(prompts, teacher.base_url)
        monkeypatch.chdir(tmp_path)
        for given, out in (("prompts.jsonl", "./train.jsonl"), (f"../{tmp_path.name}/prompts.jsonl", "train.jsonl")):
            done = distill("respond", given, "--base-url", teacher.base_url, "--teacher", "m", "--out", out, "--json")
            assert done.code == 0 and done.json["result"]["requests"] == 0, done.stdout
        other = tmp_path / "other.jsonl"
        other.write_text(prompts.read_text())
        assert respond(other, teacher.base_url).codes == {"resume-mismatch"}


def test_answers_that_nobody_asks_for_any_more_are_told(tmp_path):
    prompts = write_prompts(tmp_path, 5)
    with serving() as teacher:
        assert not respond(prompts, teacher.base_url).json["warnings"]
        write_prompts(tmp_path, 3)
        done = respond(prompts, teacher.base_url)
        assert done.code == 0 and done.codes == {"answers-unused"} and done.json["result"]["rows"] == 3
        assert "2 finished" in done.json["warnings"][0]["message"]


USELESS = [
    ("respond", ["--max-cost", 1], "--price-in"),
    ("respond", ["--max-length", 100], "--student"),
    ("respond", ["--reward-model", "x"], "--best-of reward"),
    ("respond", ["--judge-rubric", "x"], "--judge-threshold"),
    ("respond", ["--judge-model", "x"], "--judge-threshold"),
    ("compare", ["--student-model", "x", "--samples", 3], "--by"),
    ("compare", ["--by", "judge", "--student-model", "x"], "--by student"),
    ("compare", ["--student-model", "x", "--student-api-key-env", "X"], "--student-base-url"),
    ("compare", ["--by", "judge", "--samples", 4, "--temperature", 0], "--temperature"),
    ("compare", ["--by", "judge", "--temperature", 0], "--temperature"),
    ("respond", ["--samples", 2, "--temperature", 0], "--temperature"),
    ("respond", ["--concurrency", 10**8], "4,096"),
    ("respond", ["--max-new-tokens", 10**23], "1,000,000"),
    ("respond", ["--samples", 10**9], "1,000"),
    ("synthesize", ["--count", 10**9], "10,000,000"),
]


@pytest.mark.parametrize("action, flags, named", USELESS)
def test_flags_without_effect_or_without_measure_are_refused(tmp_path, action, flags, named):
    prompts = write_prompts(tmp_path, 1)
    source = ["--seeds", prompts] if action == "synthesize" else [prompts]
    done = distill(
        action, *source, "--base-url", "http://127.0.0.1:9/v1", "--teacher", "m", "--out", tmp_path / "o.jsonl", *flags,
        "--json",
    )  # fmt: skip
    problem = done.json["errors"][0]
    assert done.code == 2 and problem["code"] == "usage" and named in problem["message"], done.stdout


def test_a_plan_shows_the_request_as_it_goes_out(tmp_path):
    prompts = write_prompts(tmp_path, 1)
    with serving() as teacher:
        planned = respond(prompts, teacher.base_url, "--plan", "--top-p", 0.5).json["result"]["first_request"]
        respond(prompts, teacher.base_url, "--top-p", 0.5)
        assert planned == teacher.bodies[0]


def test_rows_keep_the_columns_of_their_prompts(tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    row = {"prompt": "Why is the sky blue?", "id": "p-7", "answer": "light", "meta": {"from": "a book"}, "topic": 3}
    prompts.write_text(json.dumps(row) + "\n")
    with serving() as teacher:
        respond(prompts, teacher.base_url)
    (made,) = read_lines(tmp_path / "train.jsonl")
    assert (made["answer"], made["topic"], made["meta"]["prompt_id"]) == ("light", 3, "p-7")
    assert made["meta"]["prompt_meta"] == {"from": "a book"} and made["meta"]["teacher"] == "m"
    checked = run("dataset_prep.py", "validate", tmp_path / "train.jsonl", "--json")
    assert checked.json["result"]["valid"] == 1 and not checked.json["warnings"]


@pytest.mark.parametrize("action", ["respond", "synthesize", "compare"])
def test_help_of_a_command_has_its_examples_and_exit_codes(action, capsys):
    with pytest.raises(SystemExit):
        text = "examples:\n  python assets/distill_dataset.py respond a\n  python assets/distill_dataset.py compare b\n"
        cli.main("distill_dataset.py", text, add_arguments, print, [action, "--help"])
    shown = capsys.readouterr().out
    assert "exit codes:" in shown and ("respond a" in shown) == (action == "respond")


def test_codes_of_languages_may_have_a_country():
    import argparse

    parser = argparse.ArgumentParser()
    add_arguments(parser)
    for given in ("EN", "en-US", "en_GB"):
        assert parser.parse_args(["respond", "x", "--language", given]).language == "en"
