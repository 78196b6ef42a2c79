"""--demo: a tiny Gemma learns SQL from the packaged example, through the same steps as a real run.

The model has Gemma 3's architecture with few and narrow layers, random weights, and a small tokenizer with Gemma's
control tokens. It is made at run time, so nothing is downloaded.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from gemma_trainer.cli import Outcome, log
from gemma_trainer.evaluate.compare import load_held_out, measure_model, table
from gemma_trainer.evaluate.metrics import METRICS
from gemma_trainer.models.load import load_model, quiet_libraries
from gemma_trainer.plan.hardware import share_cores
from gemma_trainer.rows.problems import USAGE, Failure
from gemma_trainer.train.card import loading_code, write_card
from gemma_trainer.train.claim import check_writable, writing
from gemma_trainer.train.method import ASSETS
from gemma_trainer.train.run import require_training_packages, run_training
from gemma_trainer.train.run_dir import RunDirectory
from gemma_trainer.train.setup import machine
from gemma_trainer.train.sft import SupervisedTuning
from gemma_trainer.train.write_json import write_json

EXAMPLE = ASSETS / "examples" / "text_to_sql"
SEEN, UNSEEN = EXAMPLE / "eval.jsonl", EXAMPLE / "eval_unseen.jsonl"
BATCH = 100  # questions answered at a time
MARK = "demo.txt"  # stands in a model that a demo made

MODEL = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "sliding_window": 512,
    "initializer_range": 0.1,
    "layer_types": ["sliding_attention", "full_attention"],
}
VOCABULARY = 2000
SETTINGS = {"mode": "full", "learning_rate": 5e-3, "effective_batch_size": 16, "micro_batch_size": 16, "epochs": 3.0}


def run_demo(args: Namespace, argv: list[str]) -> Outcome:
    """Make the model, measure it, train it, measure it again. Raises Failure as run_training does.

    `result.before` and `result.after` hold exact_match, similarity, sql_match and loss on questions about tables seen in
    training; `result.unseen_tables` the same on tables that were not.
    """
    require_training_packages("full")
    machine(args)
    share_cores()
    quiet_libraries()
    output = run_directory(args, "demo")
    base = beside(output, "base")
    make_base(base, args.seed, _texts())
    training = _training_arguments(args, base, output)
    if args.plan:
        return run_training(SupervisedTuning(), training, argv)
    held_out = {name: load_held_out([file], str(base), "auto", 1024, None) for name, file in _questions().items()}
    log(f"asking it {sum(len(side.rows) for side in held_out.values())} questions before training")
    before = _measure(base, held_out)
    outcome = run_training(SupervisedTuning(), training, argv)
    log("asking the same questions again")
    after = _measure(output, held_out)
    _record(output, before, after)
    outcome.result |= {"before": before["seen"], "after": after["seen"]}
    outcome.result["unseen_tables"] = {"before": before["unseen"], "after": after["unseen"]}
    outcome.summary = _summary(output, held_out, before, after)
    return outcome


def _questions() -> dict[str, Path]:
    return {"seen": SEEN, "unseen": UNSEEN}


def _texts() -> list[str]:
    with (EXAMPLE / "train.jsonl").open(encoding="utf-8") as file:
        return [message["content"] for line in file for message in json.loads(line)["messages"]]


def free_name(name: str) -> Path:
    """runs/NAME, also to resume it; a finished demo is kept and the next one gets a number."""
    path, number = Path("runs") / name, 1
    while is_done(path):
        number += 1
        path = Path("runs") / f"{name}-{number}"
    return path


def is_done(path: Path) -> bool:
    return (RunDirectory(path).read() or {}).get("status") == "done"


def run_directory(args: Namespace, name: str) -> Path:
    return Path(args.output_dir).expanduser() if args.output_dir else free_name(name)


def beside(output: Path, what: str) -> Path:
    """NAME-WHAT next to the run directory NAME. Raises Failure (exit 2) for one that has no name: /"""
    named = output if output.name not in ("", "..") else output.resolve()
    if not named.name:
        raise Failure(
            USAGE, "usage", f"--output-dir {output}: the demo writes beside it too", fix="Choose a folder in it."
        )
    return named.with_name(f"{named.name}-{what}")


def not_ours(folder: Path) -> Failure:
    """What is said of a folder, or a run, that stands where the demo wants to write."""
    text = f"{folder} is where the demo puts what it starts from, and no demo made what is there; it stays as it is"
    return Failure(USAGE, "output-exists", text, fix="Choose another --output-dir.")


def make_base(folder: Path, seed: int, texts: Iterable[str]) -> None:
    """The untrained model, with a tokenizer that knows the words of `texts`; the same seed gives the same weights, so a demo
    that was killed finds them again. Raises Failure (exit 2) where something else stands."""
    check_writable(folder)
    if (folder / MARK).is_file():
        return
    if folder.exists() and any(folder.iterdir()):
        raise not_ours(folder)
    from gemma_trainer.families.catalogue import get_family
    from gemma_trainer.models.tiny import make_model, make_tokenizer, save_tiny

    log(f"making a tiny Gemma with random weights in {folder}")
    tokenizer = make_tokenizer(texts, "gemma3", VOCABULARY, get_family("gemma3").plain_template)
    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as place:
            part = Path(place) / folder.name
            save_tiny(make_model("gemma3", tokenizer, seed, **MODEL), tokenizer, part)
            (part / MARK).write_text("A tiny model with random weights, made by --demo.\n", "utf-8")
            part.rename(folder)


def _training_arguments(args: Namespace, base: Path, output: Path) -> Namespace:
    own = {
        "model": str(base),
        "data": [str(EXAMPLE / "train.jsonl")],
        "eval_data": [str(SEEN)],
        "output_dir": str(output),
    }
    return Namespace(**{**vars(args), **SETTINGS, **own})


def _measure(folder: Path, held_out: dict) -> dict:
    model = load_model(str(folder), dtype="float32", device="cpu")
    return {name: measure_model(model, side, METRICS, None, BATCH)[0] for name, side in held_out.items()}


def _record(output: Path, before: dict, after: dict) -> None:
    """Put the answers' scores into run.json and the model card."""
    run = RunDirectory(output)
    record = run.read()
    record["metrics"] |= {"before": before["seen"], "after": after["seen"]}
    record["metrics"]["unseen_tables"] = {"before": before["unseen"], "after": after["unseen"]}
    write_card(output / "README.md", record, loading_code(full=True), SupervisedTuning.labels)
    write_json(run.run_file, record)


def _summary(output: Path, held_out: dict, before: dict, after: dict) -> str:
    lines = []
    for name, title in (("seen", "tables seen in training, new questions"), ("unseen", "tables never seen")):
        lines += [title, table(before[name], after[name], len(held_out[name].rows)), ""]
    return "\n".join([*lines, f"run directory {output}, loss curve {output / 'loss.png'}"])
