"""The journal remembers what was answered, whatever ended the run that wrote it."""

import multiprocessing
from dataclasses import replace

import pytest

from gemma_trainer.distill.journal import Journal
from gemma_trainer.distill.request import Reply, Request, Sampling, Usage
from gemma_trainer.rows.problems import USAGE, Failure

ASKED = Request("m", [{"role": "user", "content": "Wo liegt Köln? 🙂"}], Sampling())


def reply_to(request: Request, content: str = "Am Rhein. 🙂") -> Reply:
    calls = [{"type": "function", "function": {"name": "f", "arguments": {"n": 2**70}}}]
    return Reply(request.id, content, "Fluss?", calls, "stop", Usage(5, 7, 3), "m-1", 0.25)


@pytest.fixture
def files(tmp_path):
    return tmp_path / "replies.jsonl", tmp_path / "failed.jsonl"


def test_what_is_added_is_found_again_by_the_next_run(files):
    journal = Journal(*files)
    others = [replace(ASKED, sample=n) for n in range(1, 50)]
    assert journal.get(ASKED.id) is None
    for request in (ASKED, *others):
        journal.add(request, reply_to(request, f"answer {request.sample}" * 2000))
        assert journal.get(request.id).content.startswith(f"answer {request.sample}")
    journal.close()
    found = []
    again = Journal(*files, each=lambda model, reply: found.append(reply.id))
    assert again.get(ASKED.id) == reply_to(ASKED, "answer 0" * 2000)
    assert len(again) == 50 and again.get(others[7].id).content == "answer 8" * 2000
    assert found == [ASKED.id, *(request.id for request in others)] and len(again.unused) == 48
    again.close()
    assert not files[1].exists()


@pytest.mark.parametrize("kept", range(1, 30, 7))
def test_a_cut_last_line_is_dropped_and_written_anew(files, kept):
    journal = Journal(*files)
    later = replace(ASKED, sample=1)
    journal.add(ASKED, reply_to(ASKED))
    whole = files[0].stat().st_size
    journal.add(later, reply_to(later))
    journal.close()
    with files[0].open("r+b") as file:
        file.truncate(whole + kept)
    again = Journal(*files)
    assert again.get(ASKED.id) == reply_to(ASKED) and again.get(later.id) is None
    again.add(later, reply_to(later))
    again.close()
    assert len(files[0].read_bytes().splitlines()) == 2


def test_failures_are_remembered_until_they_are_retried(files):
    journal = Journal(*files)
    journal.add_failure(ASKED, "too bad")
    journal.close()
    again = Journal(*files)
    assert again.failures == {ASKED.id: "too bad"}
    again.close()
    retried = Journal(*files, retry_failed=True)
    assert retried.failures == {}
    retried.add(ASKED, reply_to(ASKED))
    retried.close()
    assert not files[1].exists()


def test_one_run_at_a_time(files):
    journal = Journal(*files)
    with multiprocessing.get_context("spawn").Pool(1) as other:
        assert other.apply(_open, files) == (USAGE, "run-in-progress")
    journal.close()


def test_a_file_that_another_run_removes_meanwhile_is_not_written(files, monkeypatch):
    """Opened before the other run removed it, locked after that: its lines would be lost."""
    import fcntl

    lock = fcntl.flock

    def late(file, how):
        files[0].unlink()
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    assert _open(*files) == (USAGE, "run-in-progress")


def _open(*files) -> tuple[int, str]:
    try:
        Journal(*files)
    except Failure as failure:
        return failure.exit_code, failure.problem.code
    return 0, ""


def test_ids_tell_all_that_shapes_an_answer_apart():
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    others = [
        replace(ASKED, model="n"),
        replace(ASKED, messages=[*ASKED.messages, *ASKED.messages]),
        replace(ASKED, sample=1),
        replace(ASKED, tools=[tool]),
        replace(ASKED, schema={"type": "object"}),
        *(replace(ASKED, sampling=Sampling(**change)) for change in ({"seed": 1}, {"thinking": True}, {"top_p": 0.5})),
    ]
    assert len({ASKED.id, *(request.id for request in others)}) == 1 + len(others)
    assert replace(ASKED).id == ASKED.id and ASKED.seed != others[2].seed
