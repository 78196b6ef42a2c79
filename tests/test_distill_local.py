"""A teacher in this process: the same answers in any batch, and rows as from a server."""

import json
from collections import Counter
from dataclasses import replace

import pytest
import torch

from distilling import distill, read_lines, write_prompts
from gemma_trainer.distill.request import Request, Sampling
from gemma_trainer.distill.sampling import Draw, Generator
from gemma_trainer.models.load import load_model
from gemma_trainer.rows.problems import UNSUPPORTED, Failure
from mock_teacher import serving
from training import make_tiny, question_rows

ASKED = Request("m", [{"role": "user", "content": "x"}], Sampling(temperature=1.0, top_p=1.0, max_tokens=12))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("teacher"))


@pytest.fixture(scope="module")
def generator(tiny):
    model = load_model(str(tiny.path), dtype="float32", device="cpu")
    return Generator(model.eval(), tiny.tokenizer, tiny.renderer.family.stop_tokens)


def prompts(tiny, count: int) -> list[list[int]]:
    texts = [tiny.renderer.prompt(row["messages"][:1]) for row in question_rows(count)]
    return [tiny.tokenizer.backend.encode(text, add_special_tokens=False).ids for text in texts]


def test_an_answer_does_not_depend_on_its_batch(tiny, generator):
    asked = prompts(tiny, 6)
    requests = [replace(ASKED, sample=n, sampling=replace(ASKED.sampling, max_tokens=6 + n)) for n in range(6)]
    together = generator.write(asked, requests)
    alone = [generator.write([prompt], [request])[0] for prompt, request in zip(asked, requests, strict=True)]
    assert together == alone
    assert len({str(ids) for ids, _ in together}) == 6
    again = generator.write(asked[:1], [replace(requests[0], sample=9)])
    assert again[0] != together[0]


def test_temperature_0_is_greedy_and_sampling_follows_the_probabilities():
    scores = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]]))
    greedy = [replace(ASKED, sample=n, sampling=replace(ASKED.sampling, temperature=0)) for n in range(5)]
    assert all(Draw([request], "cpu")(None, scores).argmax() == 0 for request in greedy)
    drawn = Draw([replace(ASKED, sample=n) for n in range(4000)], "cpu")(None, scores.expand(4000, -1)).argmax(-1)
    shares = torch.bincount(drawn, minlength=4) / 4000
    assert torch.allclose(shares, scores.exp()[0], atol=0.03)
    nucleus = replace(ASKED.sampling, top_p=0.75)
    kept = Draw([replace(ASKED, sample=n, sampling=nucleus) for n in range(500)], "cpu")(None, scores.expand(500, -1))
    assert Counter(kept.argmax(-1).tolist()).keys() == {0, 1}


def test_batches_that_do_not_fit_are_halved(tiny, generator, monkeypatch):
    whole, sizes = generator._write, []

    def narrow(asked, requests):
        sizes.append(len(asked))
        if len(asked) > 3:
            raise torch.OutOfMemoryError("no room")
        return whole(asked, requests)

    requests = [replace(ASKED, sample=n) for n in range(6)]
    expected = generator.write(prompts(tiny, 6), requests)
    monkeypatch.setattr(generator, "_write", narrow)
    assert generator.write(prompts(tiny, 6), requests) == expected and sizes == [6, 3, 3]
    monkeypatch.setattr(generator, "most", None)
    monkeypatch.setattr(generator, "_write", raise_no_room)
    with pytest.raises(Failure) as caught:
        generator.write(prompts(tiny, 6), requests)
    assert caught.value.exit_code == UNSUPPORTED


def raise_no_room(asked, requests):
    raise torch.OutOfMemoryError("no room")


def test_respond_with_a_model_of_this_process(tiny, tmp_path):
    file, out = tmp_path / "prompts.jsonl", tmp_path / "train.jsonl"
    file.write_text("".join(json.dumps({"prompt": row["messages"][0]["content"]}) + "\n" for row in question_rows(20)))
    words = ["respond", file, "--model", tiny.path, "--out", out, "--max-new-tokens", 8, "--batch-size", 4, "--json"]
    words += ["--thinking", "on"]
    done = distill(*words)
    assert "does not think" in done.json["warnings"][0]["message"]
    assert done.code in (0, 3), done.stdout + done.stderr  # a model of random weights says little that is kept
    replies = read_lines(tmp_path / "train.replies.jsonl")
    assert len(replies) == 20 and {line["reply"]["finish_reason"] for line in replies} <= {"stop", "length"}
    assert all(line["reply"]["usage"]["prompt_tokens"] > 3 for line in replies)
    assert done.json["result"]["rows"] + done.json["result"]["rejected"] == 20
    again = distill(*words)
    assert again.json["result"]["requests"] == 0 and "loading" not in again.stderr


def test_a_student_beside_the_teacher_costs_no_budget(tiny, tmp_path):
    prompts, out = write_prompts(tmp_path, 8), tmp_path / "pairs.jsonl"
    words = ["compare", prompts, "--student-model", tiny.path, "--out", out, "--max-new-tokens", 400, "--json"]
    with serving() as server:
        words += ["--base-url", server.base_url, "--teacher", "m", "--max-requests", 8, "--batch-size", 8]
        done = distill(*words, "--temperature", 1.3)
        assert server.counts["requests"] == 8
    assert done.code in (0, 3) and done.json["result"]["requests"] == 16, done.stdout
    for row in read_lines(out):
        assert row["meta"]["chosen"]["teacher"] == "m" and row["chosen"] != row["rejected"]
    asked = Counter(line["request"]["model"] for line in read_lines(tmp_path / "pairs.replies.jsonl"))
    assert sorted(asked.values()) == [8, 8]
    assert "--task dpo" in str(done.json["next"]) or not done.json["result"]["rows"]


def test_other_weights_in_the_same_folder_are_another_teacher(tmp_path):
    """Answers of a model that was trained further, or replaced, never pass for those of the new one."""
    folder = make_tiny(tmp_path / "teacher").path
    words = ("respond", write_prompts(tmp_path, 2), "--model", folder, "--max-new-tokens", 4, "--json", "--out")
    assert distill(*words, tmp_path / "train.jsonl").json["result"]["requests"] == 2
    assert distill(*words, tmp_path / "train.jsonl").json["result"]["requests"] == 0
    make_tiny(folder, initializer_range=0.5)
    refused = distill(*words, tmp_path / "train.jsonl")
    assert refused.code == 2 and refused.codes == {"resume-mismatch"} and "--teacher" in refused.stdout
    assert distill(*words, tmp_path / "train.jsonl", "--overwrite").json["result"]["requests"] == 2


def test_a_prompt_that_the_template_refuses_fails_alone(tiny, tmp_path):
    file = tmp_path / "prompts.jsonl"
    refused = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    file.write_text(json.dumps({"prompt": "List the id of all users"}) + "\n" + json.dumps({"prompt": refused}) + "\n")
    words = ("respond", file, "--model", tiny.path, "--out", tmp_path / "train.jsonl", "--max-new-tokens", 4, "--json")
    done = distill(*words)
    assert done.code in (0, 3, 7) and done.json["result"]["failed_requests"] == 1, done.stdout
    assert "must take turns" in read_lines(tmp_path / "train.failed.jsonl")[0]["reason"]


def test_teachers_are_named_whole_or_not_at_all(tmp_path, tiny):
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "Why?"}\n')
    for words in (
        [],
        ["--model", tiny.path, "--base-url", "http://localhost/v1"],
        ["--base-url", "http://localhost/v1"],
        ["--base-url", "localhost", "--teacher", "m"],
        ["--model", tmp_path / "none"],
    ):
        done = distill("respond", file, "--out", tmp_path / "train.jsonl", "--json", *words)
        assert done.code == 2 and len(done.json["errors"]) == 1, done.stdout
