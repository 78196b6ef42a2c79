"""A Gemma with a scalar head: one number for a conversation, the higher the better."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gemma_trainer.models.load import adapter_base, load_adapter, load_checkpoint
from gemma_trainer.models.resolve import read_run, resolve_model
from gemma_trainer.rows.problems import USAGE, Failure

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

HEAD = "score"  # name of the linear layer in every sequence-classification class of transformers
NEW = frozenset({f"{HEAD}.weight"})  # what a causal checkpoint has no weights for


@dataclass
class RewardModel:
    """A trained reward model with the tokenizer and the chat template that it was trained with."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase

    def score(self, conversations: Sequence[list[dict] | dict], batch_size: int = 16) -> list[float]:
        """The reward of each conversation: a list of messages, or a row {"messages", "tools", ...}."""
        rows = [row if isinstance(row, dict) else {"messages": row} for row in conversations]
        ids = [
            self.tokenizer.apply_chat_template(
                row["messages"],
                tools=row.get("tools") or None,
                return_dict=False,
                **(row.get("chat_template_kwargs") or {}),
            )
            for row in rows
        ]
        return score_ids(self.model, ids, batch_size)


def load_reward_model(
    run: str | Path,
    *,
    base: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    quantize: bool | None = None,
    trust_remote_code: bool = False,
) -> RewardModel:
    """The reward model of a run directory of rm_train.py.

    `base` is what an adapter names, `dtype` and `quantize` are those of the training unless they are given. Raises
    Failure (exit 2) when the folder holds no reward model, and as `load_checkpoint` does.
    """
    from transformers import AutoTokenizer

    if not is_reward_model(run):
        raise Failure(USAGE, "reward-model-expected", f"{run} holds no reward model")
    plan = _plan(run)
    options = {
        "dtype": dtype or plan.get("dtype", "float32"),
        "device": device or _best_device(),
        "trust_remote_code": trust_remote_code,
    }
    if (Path(run) / "adapter_config.json").is_file():
        quantize = plan.get("mode") == "qlora" if quantize is None else quantize
        model = load_base(resolve_model(base or adapter_base(run)), quantize=quantize, **options)
        keep_float(model)
        model = load_adapter(model, str(run))
    else:
        model = load_checkpoint(str(run), reward_class, quantize=False, num_labels=1, **options)
    tokenizer = AutoTokenizer.from_pretrained(str(run), trust_remote_code=trust_remote_code)
    model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
    return RewardModel(model.eval(), tokenizer)


def is_reward_model(folder: str | Path) -> bool:
    """Whether a local folder holds a reward model, as an adapter or in full."""
    adapter, config = (_read(Path(folder) / name) for name in ("adapter_config.json", "config.json"))
    return adapter.get("task_type") == "SEQ_CLS" if adapter else scores(config)


def scores(config: dict) -> bool:
    """Whether the model of a config.json has a head of scores in place of its vocabulary."""
    return any(name.endswith("ForSequenceClassification") for name in config.get("architectures") or [])


def load_base(reference: str, **loading) -> PreTrainedModel:
    """A causal checkpoint with a new head of zeros: every score begins at 0 and the loss at ln 2. `loading` as `load_model`
    takes it.

    A random head would give scores of any size, as large as the hidden states of the model are. Every other weight comes
    from the checkpoint, or Failure (exit 5) is raised.
    """
    with _without_reports():  # that the head is new is meant
        model = load_checkpoint(reference, reward_class, new=NEW, num_labels=1, **loading)
    model.get_submodule(HEAD).weight.data.zero_()
    return model


@contextmanager
def _without_reports() -> Iterator[None]:
    """Without what transformers says of weights that it finds or misses; `load_checkpoint` looks at them itself."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def keep_float(model: PreTrainedModel) -> None:
    """Compute the head, and what PEFT copies of it, in float32 behind layers of any dtype.

    In bfloat16 most steps of a usual learning rate would be lost, and scores would come in steps of 1/128 of their size.
    """
    model.get_submodule(HEAD).float().register_forward_pre_hook(lambda module, inputs: inputs[0].float())


def reward_class(config: PretrainedConfig) -> type[PreTrainedModel]:
    """The library's sequence-classification class for a config, else one made of the library's public parts.

    transformers has none for Gemma 3n and Gemma 4. Since it is looked for, its own class is used from the day it exists;
    both name their parts alike, so adapters fit either.
    """
    from transformers import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING as OWN
    from transformers.modeling_layers import GenericForSequenceClassification

    kind = type(config)
    if kind in OWN:
        return OWN[kind]
    parents = (GenericForSequenceClassification, pretrained_class(kind))
    name = kind.__name__.removesuffix("Config") + "ForSequenceClassification"
    return type(name, parents, {"config_class": kind})


def pretrained_class(kind: type[PretrainedConfig]) -> type[PreTrainedModel]:
    """What all models of a config class inherit, such as Gemma4PreTrainedModel."""
    from transformers import MODEL_MAPPING, PreTrainedModel

    return next(parent for parent in MODEL_MAPPING[kind].__mro__ if PreTrainedModel in parent.__bases__)


def score_ids(model, rows: Sequence[Sequence[int]], batch_size: int) -> list[float]:
    """The reward of each row of token ids, in their order."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    pad = model.config.get_text_config().pad_token_id
    scores = [0.0] * len(rows)
    order = sorted(range(len(rows)), key=lambda i: -len(rows[i]))  # batches of about equal length
    model.eval()
    with torch.inference_mode():
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            ids = pad_sequence([torch.tensor(rows[i]) for i in batch], batch_first=True, padding_value=pad)
            mask = pad_sequence([torch.ones(len(rows[i]), dtype=torch.long) for i in batch], batch_first=True)
            logits = model(input_ids=ids.to(model.device), attention_mask=mask.to(model.device), use_cache=False).logits
            for index, score in zip(batch, logits[:, 0].tolist(), strict=True):
                scores[index] = score
    return scores


def _plan(run: str | Path) -> dict:
    return (read_run(run) or {}).get("plan", {})


def _read(path: Path) -> dict:
    """A JSON object, empty when there is none."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _best_device() -> str:
    import torch

    found = torch.accelerator.current_accelerator(check_available=True)
    return found.type if found else "cpu"
