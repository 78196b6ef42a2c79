"""distill_dataset.py respond against a server: every prompt one row, whatever happens on the way."""

import json
import random
import signal
import subprocess
import time

import jsonschema
import pytest

from distilling import asked, distill, read_lines, respond, respond_command, write_prompts
from gemma_trainer.plan import packages
from mock_teacher import plain_answer, process, serving, stats
from scripts import ASSETS, run


def test_every_prompt_becomes_a_row_that_validates(tmp_path):
    prompts = write_prompts(tmp_path, 30)
    with serving() as teacher:
        done = respond(prompts, teacher.base_url)
    assert done.code == 0, done.stdout
    jsonschema.validate(done.json, json.loads((ASSETS / "schemas" / "report.json").read_text()))
    rows = read_lines(tmp_path / "train.jsonl")
    assert asked(rows) == [json.loads(line)["prompt"] for line in prompts.read_text().splitlines()]
    meta = rows[0]["meta"]
    assert meta["teacher"] == "m" and meta["finish_reason"] == "stop" and meta["sampling"]["temperature"] == 0.7
    sent = next(b for b in teacher.bodies if b["messages"][-1]["content"] == asked(rows)[0])
    assert meta["sampling"]["seed"] == sent["seed"]
    manifest = json.loads((tmp_path / "train.manifest.json").read_text())
    assert manifest["status"] == "complete" and manifest["rows"] == 30 and manifest["tokens"]["prompt"] > 0
    checked = run("dataset_prep.py", "validate", tmp_path / "train.jsonl", "--json")
    assert checked.code == 0 and checked.json["result"]["valid"] == 30
    assert done.json["next"][0].startswith("python ") and "dataset_prep.py" in done.json["next"][0]


def test_faults_of_the_server_cost_no_row_and_double_none(tmp_path):
    prompts = write_prompts(tmp_path, 300)
    with serving(latency=0.005, fault_rate=0.1) as teacher:
        done = respond(prompts, teacher.base_url)
    assert done.code == 0, done.stdout
    assert all(teacher.counts[fault] for fault in teacher.faults), teacher.counts
    assert sorted(asked(read_lines(tmp_path / "train.jsonl"))) == sorted(
        json.loads(line)["prompt"] for line in prompts.read_text().splitlines()
    )
    assert teacher.counts["answered"] == 300
    assert done.json["result"]["retried"] == teacher.counts["requests"] - 300


def test_a_second_run_asks_nothing_and_new_prompts_only_themselves(tmp_path):
    prompts = write_prompts(tmp_path, 20)
    with serving() as teacher:
        respond(prompts, teacher.base_url)
        first = (tmp_path / "train.jsonl").read_bytes()
        again = respond(prompts, teacher.base_url)
        assert again.code == 0 and teacher.counts["requests"] == 20
        assert (tmp_path / "train.jsonl").read_bytes() == first
        assert again.json["result"]["requests"] == 0 and again.json["result"]["requests_before"] == 20
        write_prompts(tmp_path, 25)
        respond(prompts, teacher.base_url)
        assert teacher.counts["requests"] == 25 and len(read_lines(tmp_path / "train.jsonl")) == 25


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_a_valid_file_and_the_same_command_goes_on(tmp_path, number):
    prompts = write_prompts(tmp_path, 200)
    with serving(latency=0.05, slots=8) as teacher:
        with subprocess.Popen(
            respond_command(prompts, teacher.base_url), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as job:
            wait_for(lambda: teacher.counts["answered"] > 20)
            job.send_signal(number)
            told = json.loads(job.communicate(timeout=60)[0])
        assert job.returncode == 6 and told["errors"][0]["code"] == "interrupted", told
        rows = read_lines(tmp_path / "train.jsonl")
        assert 20 < len(rows) < 200 and len(rows) == told["result"]["rows"]
        assert "respond" in told["next"][0]
        done = respond(prompts, teacher.base_url)
    assert done.code == 0 and done.json["result"]["rows"] == 200
    assert done.json["result"]["requests"] == 200 - len(rows)


def test_budgets_stop_and_a_larger_one_goes_on(tmp_path):
    prompts = write_prompts(tmp_path, 40)
    with serving(latency=0.01) as teacher:
        stopped = respond(prompts, teacher.base_url, "--max-requests", 15)
        assert stopped.code == 6 and stopped.json["errors"][0]["code"] == "budget-spent"
        assert teacher.counts["requests"] == 15 and len(read_lines(tmp_path / "train.jsonl")) == 15
        again = respond(prompts, teacher.base_url, "--max-requests", 15)
        assert again.code == 6 and teacher.counts["requests"] == 15
        by_cost = respond(
            prompts, teacher.base_url, "--max-cost", 0.0001, "--price-out", 1, "--concurrency", 1, "--max-requests", 99
        )
        assert by_cost.code == 6 and "--max-cost" in by_cost.json["errors"][0]["message"]
        assert respond(prompts, teacher.base_url, "--max-tokens", 100_000).code == 0
    assert teacher.counts["requests"] == 40 and len(read_lines(tmp_path / "train.jsonl")) == 40


def test_a_plan_sends_no_question(tmp_path):
    prompts = write_prompts(tmp_path, 10)
    with serving() as teacher:
        done = respond(prompts, teacher.base_url, "--plan", "--price-in", 1, "--price-out", 2, "--samples", 3)
        assert done.code == 0 and teacher.counts["requests"] == 0
    result = done.json["result"]
    assert result["requests"] == 30 and result["prompt_tokens"] > 0
    assert result["first_request"]["messages"][0]["content"] == "What is the capital of country 0?"
    assert result["cost_at_most"] == pytest.approx((result["prompt_tokens"] + 2 * 30 * 2048) / 1e6, abs=1e-4)
    assert any("8,192" in note for note in result["notes"])
    assert list(tmp_path.iterdir()) == [prompts]
    down = respond(prompts, "http://127.0.0.1:9/v1", "--plan")
    assert down.code == 0 and "does not list" in down.json["result"]["notes"][0]


def test_flags_come_from_a_file_too(tmp_path):
    prompts = write_prompts(tmp_path, 3)
    config = tmp_path / "run.yaml"
    with serving() as teacher:
        config.write_text(
            f"prompts: [{prompts}]\nbase-url: {teacher.base_url}\nteacher: m\nout: {tmp_path}/o.jsonl\ntemperature: 0\n"
        )
        done = distill("respond", "--config", config, "--json")
    assert done.code == 0 and len(read_lines(tmp_path / "o.jsonl")) == 3 and teacher.bodies[0]["temperature"] == 0
    assert distill("respond", "--out", tmp_path / "x.jsonl", "--json").code == 2
    assert distill("respond", prompts, "--json").code == 2


def test_a_missing_package_ends_with_the_install_command(tmp_path, monkeypatch):
    monkeypatch.setattr(packages, "installed", lambda name: None if name in ("aiohttp", "torch") else "1.0")
    prompts = write_prompts(tmp_path, 1)
    for words, named in (
        (["--base-url", "http://localhost/v1", "--teacher", "m"], "pip install aiohttp"),
        (["--model", tmp_path], "pip install aiohttp torch"),
    ):
        done = distill("respond", prompts, *words, "--out", tmp_path / "o.jsonl", "--json")
        assert done.code == 4 and named in done.json["errors"][0]["message"], done.stdout


def test_the_output_of_another_command_is_not_replaced(tmp_path):
    prompts = write_prompts(tmp_path, 5)
    out = tmp_path / "train.jsonl"
    out.write_text("mine\n")
    with serving() as teacher:
        refused = respond(prompts, teacher.base_url)
        assert refused.code == 2 and refused.codes == {"output-exists"} and out.read_text() == "mine\n"
        assert respond(prompts, teacher.base_url, "--overwrite").code == 0 and len(read_lines(out)) == 5
        other = respond(prompts, teacher.base_url, "--temperature", 0.1)
        assert other.code == 2 and other.codes == {"resume-mismatch"}
        assert "--temperature" in other.json["errors"][0]["message"] and len(read_lines(out)) == 5
        assert respond(prompts, teacher.base_url, "--temperature", 0.1, "--overwrite").code == 0
        assert teacher.counts["requests"] == 10
        assert respond(prompts, teacher.base_url, "--overwrite").code == 0
        assert teacher.counts["requests"] == 10  # what was paid for is still there


def test_bad_prompts_are_refused_with_their_lines_and_repeats_are_asked_once(tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "Why?"}\n{"prompt": 3}\n')
    with serving() as teacher:
        refused = respond(prompts, teacher.base_url)
        assert refused.code == 3 and any(problem["line"] == 2 for problem in refused.json["errors"])
        assert teacher.counts["requests"] == 0
        prompts.write_text(
            '{"prompt": "Why is the sky blue?"}\n{"prompt": "why is  the sky blue?"}\n{"prompt": "Hm?"}\n'
        )
        done = respond(prompts, teacher.base_url)
        assert done.code == 0 and "prompts-repeated" in done.codes and teacher.counts["requests"] == 2


def test_answers_that_teach_nothing_are_rejects_with_reasons(tmp_path):
    prompts = write_prompts(tmp_path, 6)

    def answer(body: dict) -> dict:
        number = int(body["messages"][-1]["content"].split()[-1].rstrip("?"))
        texts = ["", "I'm sorry, but I can't help with that.", "Half of it", "one two " * 300, "The capital is Rome."]
        message = {"role": "assistant", "content": texts[min(number, 4)]}
        return {**message, "finish_reason": "length"} if number == 2 else message

    with serving(answer=answer) as teacher:
        done = respond(prompts, teacher.base_url)
    assert done.code == 0 and done.json["result"]["rows"] == 2
    rejects = read_lines(tmp_path / "train.rejects.jsonl")
    assert [reject["reasons"][0] for reject in rejects] == ["empty", "refusal", "cut", "loop"]
    assert rejects[2]["messages"][-1]["content"] == "Half of it" and rejects[2]["ids"]
    assert done.json["result"]["rejected_by_reason"] == {"empty": 1, "refusal": 1, "cut": 1, "loop": 1}


def test_thinking_is_a_field_and_can_be_dropped(tmp_path):
    prompts = write_prompts(tmp_path, 3)

    def answer(body: dict) -> dict:
        number = int(body["messages"][-1]["content"].split()[-1].rstrip("?"))
        told = {"role": "assistant", "content": f"City {number}."}
        return [
            {**told, "reasoning_content": "I know it."},
            {**told, "reasoning": "I know it."},
            {**told, "content": f"<think>\nI know it.\n</think>\n\nCity {number}."},
        ][number]

    with serving(answer=answer) as teacher:
        respond(prompts, teacher.base_url)
        rows = read_lines(tmp_path / "train.jsonl")
        assert [row["messages"][-1]["content"] for row in rows] == ["City 0.", "City 1.", "City 2."]
        assert {row["messages"][-1]["reasoning_content"] for row in rows} == {"I know it."}
        assert run("dataset_prep.py", "validate", tmp_path / "train.jsonl", "--json").json["result"]["valid"] == 3
        respond(prompts, teacher.base_url, "--drop-thinking", "--overwrite")
        assert teacher.counts["requests"] == 3
    assert "reasoning_content" not in read_lines(tmp_path / "train.jsonl")[0]["messages"][-1]


def test_several_answers_a_prompt(tmp_path):
    prompts = write_prompts(tmp_path, 4)
    with serving() as teacher:
        done = respond(prompts, teacher.base_url, "--samples", 3)
    rows = read_lines(tmp_path / "train.jsonl")
    assert done.json["result"]["rows"] == 12 and len({row["meta"]["id"] for row in rows}) == 12
    assert asked(rows)[:3] == ["What is the capital of country 0?"] * 3
    assert respond(prompts, teacher.base_url, "--samples", 2, "--temperature", 0).code == 2


def test_requests_that_fail_for_good_are_told_and_asked_again_on_request(tmp_path):
    prompts = write_prompts(tmp_path, 40)
    broken = True

    def answer(body: dict):
        poison = "country 3?" in body["messages"][-1]["content"]
        return (400, {"error": {"message": "no such country"}}) if broken and poison else plain_answer(body)

    with serving(answer=answer) as teacher:
        done = respond(prompts, teacher.base_url)
        assert done.code == 0 and "some-requests-failed" in done.codes and done.json["result"]["rows"] == 39
        assert "no such country" in str(done.json["warnings"])
        failed = read_lines(tmp_path / "train.failed.jsonl")
        assert len(failed) == 1 and "no such country" in failed[0]["reason"]
        assert "--retry-failed" in done.json["next"][0]
        respond(prompts, teacher.base_url)
        assert teacher.counts["requests"] == 40
        broken = False
        again = respond(prompts, teacher.base_url, "--retry-failed")
        assert teacher.counts["requests"] == 41 and again.json["result"]["rows"] == 40
        assert asked(read_lines(tmp_path / "train.jsonl"))[3] == "What is the capital of country 3?"
    assert not (tmp_path / "train.failed.jsonl").exists()


def test_a_server_that_dies_ends_the_run_and_keeps_what_is_done(tmp_path):
    prompts = write_prompts(tmp_path, 60)

    with serving(answer=lambda body: plain_answer(body) if teacher.counts["answered"] < 10 else (500, {})) as teacher:
        done = respond(prompts, teacher.base_url, "--retries", 0, "--concurrency", 4)
        assert done.code == 7 and done.json["errors"][0]["code"] == "teacher-failed"
        assert len(read_lines(tmp_path / "train.jsonl")) == 10
        assert teacher.counts["requests"] < 25
    gone = respond(prompts, teacher.base_url, "--retries", 1)
    assert gone.code == 7 and len(read_lines(tmp_path / "train.jsonl")) == 10


def test_the_key_comes_from_the_environment_and_is_told_nowhere(tmp_path):
    prompts = write_prompts(tmp_path, 2)
    with serving(key="s3cret-key") as teacher:
        refused = respond(prompts, teacher.base_url, OPENAI_API_KEY="wrong-key")
        assert refused.code == 7 and "401" in refused.json["errors"][0]["message"]
        assert respond(prompts, teacher.base_url, "--api-key-env", "MINE", MINE="s3cret-key").code == 0
    for file in tmp_path.iterdir():
        assert "s3cret" not in file.read_text() and "wrong-key" not in file.read_text()
    assert "wrong-key" not in refused.stdout + refused.stderr


def test_rows_too_long_for_the_student_are_rejects(tmp_path, small_tokenizer):
    student = tmp_path / "student"
    student.mkdir()
    small_tokenizer("gemma3").save(str(student / "tokenizer.json"))
    (student / "config.json").write_text('{"model_type": "gemma3_text"}')
    prompts = write_prompts(tmp_path, 4)

    def answer(body: dict) -> dict:
        is_long = "country 2?" in body["messages"][-1]["content"]
        return {"role": "assistant", "content": " ".join(f"w{n}" for n in range(200 if is_long else 5))}

    with serving(answer=answer) as teacher:
        done = respond(prompts, teacher.base_url, "--student", student, "--max-length", 150)
    assert done.json["result"]["rows"] == 3, done.stdout
    assert done.json["result"]["rejected_by_reason"] == {"too-long": 1}


def wait_for(condition) -> None:
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.slow
def test_twenty_kills_at_random_moments_change_nothing(tmp_path):
    """The final rows are those of an undisturbed run, and no request that was answered is sent again."""
    count, kills, slots, chance = 1000, 20, 8, random.Random(4)
    (tmp_path / "calm").mkdir()
    prompts, calm = write_prompts(tmp_path, count), write_prompts(tmp_path / "calm", count)
    with process("--latency", 0.05, "--slots", slots, "--fault-rate", 0.05) as url:
        for _ in range(kills):
            before, wanted = stats(url).get("answered", 0), chance.choice([-1, 0, 5, 30, 60])
            command = respond_command(prompts, url, "--concurrency", slots)
            with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as job:
                wait_for(lambda: stats(url).get("answered", 0) > before + wanted)  # noqa: B023
                time.sleep(chance.uniform(0, 0.3))
                assert job.poll() is None
                job.kill()
        done = respond(prompts, url, "--concurrency", slots)
        assert done.code == 0 and done.json["result"]["rows"] == count
        disturbed = stats(url)["answered"]
        assert respond(calm, url).code == 0
    assert (tmp_path / "train.jsonl").read_bytes().count(b"\n") == count
    assert sorted_rows(tmp_path / "train.jsonl") == sorted_rows(tmp_path / "calm" / "train.jsonl")
    ids = [line["id"] for line in read_lines(tmp_path / "train.replies.jsonl")]
    assert len(ids) == len(set(ids)) == count
    assert disturbed - count <= slots * kills, "only what was in flight is lost"


def sorted_rows(file) -> list[str]:
    return [json.dumps({**row, "meta": {**row["meta"]}}, sort_keys=True) for row in read_lines(file)]
