"""Write the tuned adapter or model so that PEFT, transformers and converters load it as it is."""

from __future__ import annotations

import shutil
from pathlib import Path

from gemma_trainer.models.load import set_stop_tokens


def save_result(model, tokenizer, directory: Path, stop_ids: list[int] | None, weights=None) -> None:
    """Adapter or full weights, tokenizer with its chat template, and a generation config that knows the stop tokens.
    `stop_ids` is None for a model that does not write, `weights` are given of a model that is split among processes.

    Everything is written beside the run directory's files first and moved in one by one, so a kill leaves whole files.
    """
    work = directory / ".saving"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    if stop_ids is not None:
        set_stop_tokens(model, stop_ids, tokenizer.pad_token_id)
    if hasattr(model, "peft_config"):
        # Embeddings are never adapted; looking whether they were would ask the hub for the base config.
        model.save_pretrained(work, state_dict=weights, save_embedding_layers=False)
        if stop_ids is not None:
            model.generation_config.save_pretrained(work)
    else:
        model.save_pretrained(work, state_dict=weights)
    tokenizer.save_pretrained(work)
    (work / "README.md").unlink(missing_ok=True)  # PEFT's; the run directory gets its own
    for file in sorted(work.iterdir()):
        file.replace(directory / file.name)
    work.rmdir()
