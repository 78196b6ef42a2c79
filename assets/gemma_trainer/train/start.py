"""What a run starts from: a model, a finished run directory, or an adapter on its base model."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import NamedTuple

from gemma_trainer.models.load import adapter_base
from gemma_trainer.models.resolve import HUB_ID, is_local, read_run
from gemma_trainer.models.reward import is_reward_model
from gemma_trainer.plan.adapter import CONFIG, WEIGHTS, adapter_hash, is_adapter, weights_of
from gemma_trainer.rows.problems import USAGE, Failure


class Start(NamedTuple):
    """`model` is the base where there is an `adapter`: {"path", "hash", "rank", "alpha"}. `files` holds tokenizer and
    template: the adapter's where it has them, for it was trained on these."""

    model: str
    adapter: dict | None
    files: str

    @property
    def tuned(self) -> bool:
        """Whether a finished run of these scripts, or an adapter, came before."""
        return self.adapter is not None or read_run(Path(self.model)) is not None


def find_start(model: str | None, adapter: str | None) -> Start:
    """From --model and --adapter; each may name a run directory. Raises Failure (exit 2)."""
    try:
        return _find_start(model, adapter)
    except OSError as error:
        code = "adapter-unreadable" if adapter else "model-unreadable"
        raise Failure(USAGE, code, f"{error.filename}: {error.strerror}") from None


def _find_start(model: str | None, adapter: str | None) -> Start:
    given = adapter or model
    folder = Path(given).expanduser()
    _check_finished(folder)
    for name in filter(None, (adapter, model)):
        if is_reward_model(Path(name).expanduser()):
            raise reward_model_given(name)
    if not is_adapter(folder):
        if adapter and (folder / "config.json").is_file() and not model:
            return _model(str(folder))  # the run directory of a full fine-tuning
        if adapter:
            raise Failure(USAGE, "adapter-unreadable", f"--adapter {adapter} holds no {CONFIG}")
        return _model(model)
    if adapter and model and is_adapter(model):
        raise Failure(
            USAGE, "usage", f"--model {model} holds an adapter itself; give one of the two, or its base model"
        )
    base = _absolute(model if adapter and model else _base_of(folder))
    folder = folder.resolve()
    files = str(folder) if (folder / "tokenizer.json").is_file() else base
    return Start(base, _describe(folder), files)


def _base_of(folder: Path) -> str:
    """Raises Failure (exit 2) when the model that the adapter was trained on has moved."""
    base = adapter_base(folder)
    if not (is_local(base) or HUB_ID.fullmatch(base)):
        text = f"{folder} was trained on {base}, which is not there"
        raise Failure(USAGE, "model-not-found", text, fix="Say where its base model is: --model DIR --adapter DIR.")
    return base


def _model(reference: str) -> Start:
    model = _absolute(reference)
    return Start(model, None, model)


def _absolute(reference: str) -> str:
    return str(Path(reference).expanduser().resolve()) if is_local(reference) else reference


def _describe(folder: Path) -> dict:
    """Raises Failure when the adapter cannot be trained further."""
    if weights_of(folder) is None:
        raise Failure(USAGE, "adapter-unreadable", f"{folder} holds no {WEIGHTS[0]}")
    try:
        config = {"r": None, "lora_alpha": None, **json.loads((folder / CONFIG).read_text("utf-8"))}
    except (OSError, ValueError, TypeError):
        raise Failure(USAGE, "adapter-unreadable", f"{folder} holds no readable {CONFIG}") from None
    if config.get("peft_type") != "LORA":
        text = f"{folder} is {config.get('peft_type')}, and training goes on from LoRA"
        raise Failure(USAGE, "adapter-unreadable", text, fix="Merge it into its model, and give that as --model.")
    rank, alpha = config["r"], config["lora_alpha"]
    if not (type(rank) is int and rank > 0 and type(alpha) in (int, float) and 0 < alpha < math.inf):
        text = f"the {CONFIG} of {folder} says r {rank!r} and lora_alpha {alpha!r}"
        raise Failure(USAGE, "adapter-unreadable", text)
    return {"path": str(folder), "hash": adapter_hash(folder), "rank": rank, "alpha": alpha}


def reward_model_given(name: str) -> Failure:
    return Failure(USAGE, "reward-model-given", f"{name} is a reward model")


def _check_finished(folder: Path) -> None:
    """A run that is not done holds no result yet, or an old one. Raises Failure (exit 2)."""
    run = read_run(folder)
    if run is not None and run.get("status") != "done":
        raise Failure(
            USAGE,
            "run-unfinished",
            f"{folder} is a run that is {run.get('status')}, not done",
            fix=f"Finish it, or give one of its checkpoints: {folder / 'checkpoints'}{os.sep}checkpoint-N.",
        )
