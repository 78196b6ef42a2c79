"""Memory and time of one supervised step with 262,144 words: logits of all tokens, TRL's head, and the head of the pack.

Each in a process of its own. `python benchmarks/head.py --help`.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "assets"))

from memory import make_shape  # noqa: E402

GIB = 2**30
HEADS = {"full": "logits of all tokens", "trl": "TRL's head", "ours": "head of the pack"}


def step(kind: str, folder: Path, tokens: int, share: float, mode: str, dtype: str) -> dict:
    """One forward and backward pass of a batch of `tokens`, of which `share` are trained; the faster of two for time."""
    import torch
    from peft import LoraConfig, get_peft_model
    from torch.nn.functional import cross_entropy

    from gemma_trainer.models.load import load_model, lora_targets
    from gemma_trainer.train.head import IGNORED, add_head

    model = load_model(str(folder), dtype=dtype, device="cpu")
    if kind == "ours":
        add_head(model)
    elif kind == "trl":
        from trl.trainer.utils import add_fused_lm_head

        add_fused_lm_head(model, outputs=("log_probs", "entropy", "is_top1"))  # as in its SFTTrainer
    if mode == "lora":
        model = get_peft_model(model, LoraConfig(r=16, target_modules=lora_targets(model), task_type="CAUSAL_LM"))
    ids = torch.randint(300, (1, tokens), generator=torch.Generator().manual_seed(0))
    labels = ids.where(torch.arange(tokens) >= (1 - share) * tokens, IGNORED)
    before, seconds, cpu = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, [], []
    for _ in range(2):
        started, used = time.monotonic(), time.process_time()
        if kind == "ours":
            loss = -model(input_ids=ids, labels=labels, scored=True).logps.mean()
        elif kind == "trl":
            loss = model(input_ids=ids, labels=labels, fused_lm_head=True).loss
        else:
            logits = model(input_ids=ids, use_cache=False).logits.float()
            loss = cross_entropy(logits[0, :-1], labels[0, 1:], ignore_index=IGNORED)
            del logits
        loss.backward()
        seconds.append(time.monotonic() - started)
        cpu.append(time.process_time() - used)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "loss": loss.item(),
        "peak": peak * 1024,
        "more": (peak - before) * 1024,
        "seconds": min(seconds),
        "cpu": min(cpu),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="gemma3-mid", help="of benchmarks/memory.py")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--shares", type=float, nargs="+", default=[1.0, 0.4], help="of the tokens that are trained")
    parser.add_argument("--modes", nargs="+", default=["lora"], choices=["lora", "full"])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--only", nargs="+", default=list(HEADS), choices=HEADS)
    parser.add_argument("--step", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.step:
        print(json.dumps(step(args.step, args.folder, args.tokens, args.shares[0], args.modes[0], args.dtype)))
        return
    print("| mode | trained | head | loss | peak GiB | of full logits | step adds GiB | wall s | CPU s |", flush=True)
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
    with tempfile.TemporaryDirectory() as place:
        folder = make_shape(args.shape, Path(place))
        for mode in args.modes:
            for share in args.shares:
                full = None
                for kind in args.only:
                    words = [sys.executable, __file__, "--step", kind, "--folder", folder, "--tokens", args.tokens]
                    words += ["--shares", share, "--modes", mode, "--dtype", args.dtype]
                    done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=True)
                    found = json.loads(done.stdout)
                    full = full or found["peak"]
                    print(
                        f"| {mode} | {share:.0%} | {HEADS[kind]} | {found['loss']:.5f} | {found['peak'] / GIB:.2f} | "
                        f"{found['peak'] / full:.2f} | {found['more'] / GIB:.2f} | {found['seconds']:.1f} | {found['cpu']:.1f} |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
