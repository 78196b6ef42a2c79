"""From a teacher in this process to a better student, with every script on the way, offline."""

import json

import pytest

from gemma_trainer.families.catalogue import get_family
from gemma_trainer.models.tiny import make_model, make_tokenizer, save_tiny
from scripts import ASSETS, run

EXAMPLE = ASSETS / "examples" / "text_to_sql"
SIZES = {
    "hidden_size": 96,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_key_value_heads": 4,
    "head_dim": 24,
    "sliding_window": 512,
    "initializer_range": 0.1,
}
GREEDY = ("--temperature", 0, "--max-new-tokens", 64, "--batch-size", 64)

pytestmark = pytest.mark.slow


def ok(place, script, *words):
    """The result of a script that ends well."""
    done = run(script, *words, "--json", cwd=place)
    assert done.code == 0, done.stdout + done.stderr[-2000:]
    return done.json["result"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The demo's tuned model as `teacher`, and a smaller `base` of random weights with prompts for it."""
    place = tmp_path_factory.mktemp("journey")
    rows = [json.loads(line) for line in (EXAMPLE / "train.jsonl").read_text("utf-8").splitlines()]
    texts = [message["content"] for row in rows for message in row["messages"]]
    tokenizer = make_tokenizer(texts, "gemma3", 2000, get_family("gemma3").plain_template)
    save_tiny(make_model("gemma3", tokenizer, 1, **SIZES), tokenizer, place / "base")
    prompts = [json.dumps({"prompt": row["messages"][:1]}) for row in rows]
    for name, part in (("first", prompts[:1200]), ("more", prompts[1200:1800]), ("last", prompts[1800:1850])):
        (place / f"{name}.jsonl").write_text("\n".join(part) + "\n", "utf-8")
    ok(place, "sft_train.py", "--demo", "--max-steps", 400, "--output-dir", "teacher")
    return place


@pytest.fixture(scope="module")
def student(place):
    """The folder of a student that the teacher's answers have trained."""
    taught = ok(place, "distill_dataset.py", "respond", "first.jsonl", "--model", "teacher", "--student", "base",
                "--out", "taught.jsonl", *GREEDY)  # fmt: skip
    assert taught["rows"] + taught["rejected"] == taught["items"] > 1000 and taught["rows"] > 0.8 * taught["items"]
    assert ok(place, "dataset_prep.py", "validate", "taught.jsonl", "--model", "base")["valid"] == taught["rows"]
    ok(place, "sft_train.py", "--model", "base", "--data", "taught.jsonl", "--mode", "full", "--learning-rate", 5e-3,
       "--epochs", 4, "--output-dir", "student")  # fmt: skip
    return place / "student"


@pytest.fixture(scope="module")
def pairs(place, student):
    """Pairs of the teacher's answers and the student's, where they differ."""
    made = ok(place, "distill_dataset.py", "compare", "more.jsonl", "--by", "student", "--student-model", student,
              "--model", "teacher", "--student", "base", "--out", "pairs.jsonl", *GREEDY)  # fmt: skip
    assert made["rows"] > 60
    assert ok(place, "dataset_prep.py", "validate", "pairs.jsonl", "--model", "base")["valid"] == made["rows"]
    return place / "pairs.jsonl"


def test_the_student_learns_from_the_teacher(place, student):
    words = ("--data", EXAMPLE / "eval.jsonl", "--max-rows", 100)
    before = ok(place, "evaluate.py", "--model", "base", *words)["tuned"]
    after = ok(place, "evaluate.py", "--model", student, *words)["tuned"]
    assert before["exact_match"] == 0.0 and after["exact_match"] > 0.1
    assert after["similarity"] > 0.8 and after["loss"] < before["loss"] / 5


def test_dpo_moves_the_student_towards_the_teacher(place, student, pairs):
    done = ok(place, "dpo_train.py", "--model", student, "--data", pairs, "--mode", "full", "--learning-rate", 1e-4,
              "--epochs", 2, "--eval-fraction", 0.2, "--output-dir", "dpo")  # fmt: skip
    before, after = done["metrics"]["before"], done["metrics"]["after"]
    assert before["reward_accuracy"] == 0.5 and after["reward_accuracy"] > 0.7
    assert after["reward_margin"] > 0 and after["loss"] < before["loss"]


def test_a_reward_model_of_the_pairs_ranks_new_answers(place, student, pairs):
    done = ok(place, "rm_train.py", "--model", student, "--data", pairs, "--mode", "full", "--learning-rate", 1e-3,
              "--epochs", 4, "--eval-fraction", 0.2, "--output-dir", "reward")  # fmt: skip
    assert done["metrics"]["after"]["reward_accuracy"] > 0.6
    best = ok(place, "distill_dataset.py", "respond", "last.jsonl", "--model", "teacher", "--samples", 3, "--best-of",
              "reward", "--reward-model", "reward", "--temperature", 1.0, "--max-new-tokens", 64, "--near-duplicates", 0,
              "--out", "best.jsonl")  # fmt: skip
    assert 40 < best["rows"] <= 50 and best["rejected_by_reason"]["not-best"] >= 50
    assert ok(place, "dataset_prep.py", "validate", "best.jsonl", "--model", "base")["valid"] == best["rows"]
