"""How runs end: budgets, signals, failures, refusals of everything, and the commands and advice they end with."""

import io
import json
import shlex
import signal
import subprocess
import sys
import time
from unittest import mock

import pytest

from distilling import distill, respond, words, write_prompts
from gemma_trainer.distill.journal import Lines
from gemma_trainer.distill.run import Loop
from gemma_trainer.rows.problems import STOPPED, Failure
from mock_teacher import plain_answer, serving
from scripts import ASSETS


def follow(command: str, script_words: int = 2):
    """Run a command of `next` in this process."""
    return distill(*shlex.split(command)[script_words:])


def test_the_next_command_gets_further(tmp_path):
    prompts = write_prompts(tmp_path, 20)
    with serving() as teacher:
        planned = respond(prompts, teacher.base_url, "--max-requests", 5, "--plan")
        done, rounds = follow(planned.json["next"][0]), 0
        assert done.json["result"]["requests"] == 5
        while done.code == 6:
            done, rounds = follow(done.json["next"][0]), rounds + 1
        assert done.code == 0 and rounds == 2 and teacher.counts["requests"] == 20


def test_no_command_is_promised_where_prompts_came_from_stdin(tmp_path, monkeypatch):
    text = write_prompts(tmp_path, 10).read_bytes()
    with serving() as teacher:
        given = ["respond", "-", *words(tmp_path / "x", teacher.base_url, "--max-requests", 3)[2:]]
        for limit in ([], ["--max-requests", 20]):
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
            monkeypatch.setattr("gemma_trainer.data.reading.sources._SPOOLS", [])
            done = distill(*given, *limit)
            if not limit:
                assert done.code == 6 and done.json["next"] == [] and "stdin-once" in done.codes
    assert done.code == 0 and teacher.counts["requests"] == 10


def test_a_full_disk_ends_with_the_command_that_goes_on(tmp_path, monkeypatch):
    prompts = write_prompts(tmp_path, 5)

    def full(self, line):
        raise Failure(STOPPED, "disk-full", "no room")

    monkeypatch.setattr(Lines, "append", full)
    with serving() as teacher:
        done = respond(prompts, teacher.base_url)
    assert done.code == 6 and done.codes == {"disk-full"} and "respond" in done.json["next"][0]


def test_a_run_in_which_most_failed_is_no_success_and_says_why(tmp_path):
    prompts = write_prompts(tmp_path, 20)
    good = 18

    def answer(body):
        number = int(body["messages"][-1]["content"].split()[-1].rstrip("?"))
        return plain_answer(body) if number < good else (400, {"error": {"message": "no such country"}})

    with serving(answer=answer) as teacher:
        done = respond(prompts, teacher.base_url)
        assert done.code == 7 and done.codes == {"requests-failed"} and done.json["result"]["rows"] == 18
        assert "2 requests" in done.json["errors"][0]["message"] and "no such country" in str(done.json["errors"])
        assert done.json["result"]["status"] == "requests-failed"
        good = 19
        few = follow(done.json["next"][0])
        assert few.code == 0 and few.codes == {"some-requests-failed"} and few.json["result"]["rows"] == 19
        good = 0
        (tmp_path / "none").mkdir()
        none = respond(write_prompts(tmp_path / "none", 3), teacher.base_url)
        assert none.code == 7 and none.json["result"]["status"] != "complete"
        assert "no such country" in none.json["errors"][0]["message"]


FAULTS = {
    "cut": ({"content": "Half of", "finish_reason": "length"}, [], "--max-new-tokens"),
    "too-long": ({"content": "w " * 4000}, ["--max-new-tokens", 8], "--max-length"),
    "language": ({"content": "Die Flut kommt zweimal am Tag, weil der Mond das Wasser anzieht."}, ["--language", "en"], "--system"),
    "schema-invalid": ({"content": "What?"}, ["--schema", "schema.json"], "grammars"),
    "verifier-failed": ({"content": "Rome."}, ["--verifier", "broken.py:check"], "verifier"),
}  # fmt: skip


@pytest.mark.parametrize("reason", FAULTS)
def test_advice_follows_the_commonest_reason(tmp_path, monkeypatch, reason):
    message, flags, advice = FAULTS[reason]
    prompts = write_prompts(tmp_path, 3)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "schema.json").write_text('{"type": "object"}')
    (tmp_path / "broken.py").write_text("def check(answer, row):\n    return row['no such column']\n")
    with serving(answer=lambda body: {"role": "assistant", **message}) as teacher:
        done = respond(prompts, teacher.base_url, *flags)
    assert done.code == 3 and done.json["result"]["rejected_by_reason"] == {reason: 3}, done.stdout
    assert advice in done.json["errors"][0]["fix"]
    assert ("verifier-fails" in done.codes) == (reason == "verifier-failed")


def test_an_answer_of_megabytes_is_refused_at_once(tmp_path):
    prompts = write_prompts(tmp_path, 1)
    text = " ".join(f"word{n}" for n in range(500_000))
    with serving(answer=lambda body: {"role": "assistant", "content": text}) as teacher:
        done = respond(prompts, teacher.base_url)
    assert done.json["result"]["rejected_by_reason"] == {"too-long": 1} and done.json["result"]["seconds"] < 5


def test_a_large_count_costs_what_is_asked_and_no_more(tmp_path):
    seeds = write_prompts(tmp_path, 4)
    given = ["synthesize", "--seeds", seeds, "--teacher", "m", "--out", tmp_path / "o.jsonl", "--json"]
    started = time.monotonic()
    with serving() as teacher:
        done = distill(
            *given, "--base-url", teacher.base_url, "--count", 10**7, "--max-requests", 5, "--concurrency", 4096
        )
    assert done.code == 6 and teacher.counts["requests"] == 5 and time.monotonic() - started < 8


def test_no_more_work_is_begun_than_there_is(tmp_path):
    prompts = write_prompts(tmp_path, 2)
    begun = []

    async def count(self, first, source):
        begun.append(first)

    with mock.patch.object(Loop, "_worker", count), serving() as teacher:
        respond(prompts, teacher.base_url, "--concurrency", 4096)
    assert len(begun) == 2


# The script, with a pause before its files are put in order.
SLOW = """
import sys, time
sys.path.insert(0, {assets!r})
from gemma_trainer.distill import session
settled = session.write_settled
def slow(*words):
    print("settling", file=sys.stderr, flush=True)
    time.sleep({pause})
    return settled(*words)
session.write_settled = slow
import distill_dataset
from gemma_trainer import cli
sys.exit(cli.main("distill_dataset.py", "", distill_dataset.add_arguments, distill_dataset.run))
"""


def signalled(tmp_path, url: str, number: int, when: str, pause: float):
    """The result of a run that gets three signals once it has said `when`."""
    code = [sys.executable, "-c", SLOW.format(assets=str(ASSETS), pause=pause)]
    command = [*code, *map(str, words(write_prompts(tmp_path, 30), url))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
        for line in job.stderr:
            if when in line:
                break
        for _ in range(3):
            job.send_signal(number)
            time.sleep(0.1)
        told = job.communicate(timeout=60)[0]
    return job.returncode, json.loads(told)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_files_are_put_in_order_ends_with_a_result(tmp_path, number):
    with serving() as teacher:
        code, told = signalled(tmp_path, teacher.base_url, number, "settling", 5)
        assert code == 6 and told["errors"][0]["code"] == "interrupted" and "respond" in told["next"][0]
        done = respond(tmp_path / "prompts.jsonl", teacher.base_url)
        assert done.code == 0 and done.json["result"]["rows"] == 30 and teacher.counts["requests"] == 30


def test_signals_within_a_second_are_one(tmp_path):
    with serving(fault_rate=1.0, faults=("429",), retry_after=60) as teacher:
        code, told = signalled(tmp_path, teacher.base_url, signal.SIGTERM, "asks to wait", 0)
    assert code == 6 and told["errors"][0]["code"] == "interrupted" and told["result"]["rows"] == 0


def test_a_run_that_waits_gives_signs_of_life(tmp_path, monkeypatch):
    monkeypatch.setattr("gemma_trainer.distill.run.TOLD", 0.2)
    prompts = write_prompts(tmp_path, 1)
    with serving(fault_rate=1.0, faults=("429",), retry_after=0.8) as teacher:
        done = respond(prompts, teacher.base_url, "--retries", 1)
    assert done.code == 7 and "0 of about 1 requests" in done.stderr and "too many requests" in done.stderr


def test_the_fix_for_refused_prompts_mends_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    prompts = write_prompts(tmp_path, 3)
    with prompts.open("a") as file:
        file.write('{"prompt": 3}\n')
    with serving() as teacher:
        refused = respond(prompts, teacher.base_url)
        assert refused.code == 3
        python, *fix = shlex.split(refused.json["errors"][0]["fix"])
        mended = subprocess.run([sys.executable, *fix, "--json"], capture_output=True, text=True)
        assert python == "python" and json.loads(mended.stdout)["ok"], mended.stdout + mended.stderr
        done = respond(tmp_path / "clean.jsonl", teacher.base_url)
        assert done.code == 0 and done.json["result"]["rows"] == 3, done.stdout


def test_reasons_that_quote_the_request_are_one_reason(tmp_path):
    prompts = write_prompts(tmp_path, 5)
    told = "the context length of this model is exceeded by the request: "
    with serving(answer=lambda body: (400, {"error": {"message": f"{told} {body['messages']}"}})) as teacher:
        done = respond(prompts, teacher.base_url)
    assert "5 requests failed for good, all: the server answers 400: the context" in done.json["errors"][0]["message"]
