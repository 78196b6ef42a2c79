"""Trains a tiny model with the pack's LoRA, checkpointing and sliced head, and saves it: alone, or split by torch's own FSDP 2
under torchrun, as accelerate's preset splits it on GPUs. Prints one JSON object. Arguments: model folder, kind of weights that are
trained (lora, full), folder to save in."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from trl.trainer.utils import add_fused_lm_head

from gemma_trainer.data.encode import RowTokenizer
from gemma_trainer.data.render import Renderer
from gemma_trainer.evaluate.preferences import measure_preferences
from gemma_trainer.families.catalogue import get_family
from gemma_trainer.models.load import load_model, load_tokenizer_files
from gemma_trainer.train.engine_trl import prepare_model
from gemma_trainer.train.save import save_result
from gemma_trainer.train.sharded import gathered_weights, outer_whole, verify_weights
from gemma_trainer.train.trainer_dpo import PairCollator, as_dataset
from training import Tiny, make_plan, pair_rows, question_rows

STEPS, BATCH = 5, 4
RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def split(model) -> None:
    """Blocks, then the two ends of the model, which share their weight, then the rest."""
    from torch.distributed.fsdp import fully_shard

    base = model.get_base_model() if hasattr(model, "peft_config") else model
    text = getattr(base.model, "language_model", base.model)
    for layer in text.layers:
        fully_shard(layer)
    fully_shard([text.norm, base.get_input_embeddings(), base.get_output_embeddings()], reshard_after_forward=False)
    fully_shard(model)


def main(folder: Path, mode: str, output: Path) -> dict:
    torch.set_num_threads(1)
    family = (
        "gemma4" if json.loads((folder / "config.json").read_text())["model_type"].startswith("gemma4") else "gemma3"
    )
    tiny = Tiny(folder, Renderer(get_family(family)), RowTokenizer.from_dir(folder))
    plan = make_plan(folder, mode=mode, gradient_checkpointing=True)
    model = load_model(str(folder), dtype="float32", device="cpu")
    model = prepare_model(model, plan)
    base = model.get_base_model() if hasattr(model, "peft_config") else model
    base.gradient_checkpointing_enable({"use_reentrant": False})
    add_fused_lm_head(base)
    if WORLD > 1:
        dist.init_process_group("gloo")
        split(model)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=5e-3, eps=1e-4, weight_decay=0)  # gradients of rounding make no full step
    losses = train(model, optimizer, tiny.encode(question_rows(STEPS * BATCH)))
    result = {"losses": losses, "measured": measure(model, tiny)}
    result["after"] = train(model, optimizer, tiny.encode(question_rows(BATCH)))  # measuring leaves it trainable
    weights = gathered_weights(model)
    if RANK == 0:
        output.mkdir()
        save_result(model, load_tokenizer_files(str(folder), None), output, tiny.stop_ids, weights)
        result["verified"] = verify_weights(model, weights, output)
    return result


def train(model, optimizer, rows) -> list[float]:
    """Losses of steps of BATCH rows, of which each process takes its part."""
    model.train()
    losses, share = [], BATCH // WORLD
    for start in range(0, len(rows), BATCH):
        step = rows[start : start + BATCH]
        total, longest = sum(sum(row.mask[1:]) for row in step), max(len(row.ids) for row in step)
        mine = step[RANK * share : (RANK + 1) * share]
        ids = torch.tensor([[*row.ids, *[0] * (longest - len(row.ids))] for row in mine])
        mask = torch.tensor([[*row.mask, *[0] * (longest - len(row.ids))] for row in mine])
        attended = torch.tensor([[1] * len(row.ids) + [0] * (longest - len(row.ids)) for row in mine])
        labels = ids.masked_fill(mask == 0, -100)
        out = model(input_ids=ids, attention_mask=attended, labels=labels, fused_lm_head=True)
        loss = -out.log_probs.sum() / total
        (loss * WORLD).backward()
        optimizer.step()
        optimizer.zero_grad()
        value = loss.detach().clone()
        if WORLD > 1:
            dist.all_reduce(value)
        losses.append(float(value))
    return losses


def measure(model, tiny: Tiny) -> dict:
    """What DPO measures, with every process on all pairs; the reference is the adapter switched off, or the model itself."""
    from contextlib import contextmanager

    @contextmanager
    def reference():
        if hasattr(model, "peft_config"):
            with model.disable_adapter():
                yield model
        else:
            yield model

    model.eval()
    rows = as_dataset(tiny.encode_pairs(pair_rows(6)))
    batches = [PairCollator(0)(rows.select(range(at, at + 3)).to_list()) for at in (0, 3)]
    with outer_whole(model):
        return measure_preferences(model, reference, batches).summary(0.1)


if __name__ == "__main__":
    found = main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
    if RANK == 0:
        print(json.dumps(found))
    if WORLD > 1:
        dist.barrier()
        dist.destroy_process_group()
