"""Where a model lies: a local folder, a .gguf file or a hub id, told apart without touching the network."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from pathlib import Path

from gemma_trainer.rows.problems import USAGE, Failure

HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")  # ./folder and ../folder are paths


def resolve_model(reference: str) -> str:
    """A folder or hub id that `from_pretrained` accepts.

    A local path wins over a hub id of the same name. A .gguf file is unpacked once into a cache folder
    (bfloat16 weights; `GEMMA_TRAINER_CACHE` moves it), because quantised GGUF tensors cannot be trained.
    Raises Failure (exit 2) when the reference is neither.
    """
    path = Path(reference).expanduser()
    if path.is_file() and path.suffix == ".gguf":
        return str(unpack_gguf(path))
    if path.is_dir():
        return str(path)
    if HUB_ID.fullmatch(reference) and path.suffix != ".gguf":
        return reference
    raise Failure(
        USAGE,
        "model-not-found",
        f"--model {reference} is no local folder, no .gguf file and no hub id of the form org/name",
    )


def is_local(reference: str) -> bool:
    return Path(reference).expanduser().exists()


def read_run(folder: str | Path) -> dict | None:
    """run.json of a run directory, None where there is no readable one."""
    try:
        record = json.loads((Path(folder) / "run.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def cache_root() -> Path:
    """A variable that is set to nothing counts as not set."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "gemma-trainer"
    return Path(os.environ.get("GEMMA_TRAINER_CACHE") or default).expanduser()


def unpack_gguf(path: Path) -> Path:
    """Write the model in a GGUF file as a normal model folder and return it; done once per file content.

    Weights are dequantised to bfloat16: `from_pretrained(gguf_file=...)` alone gives a model that is
    tagged as quantised and can neither be trained nor saved.
    """
    target = cache_root() / "gguf" / _sha256(path)[:32]
    if target.is_dir():
        return target
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    work = target.with_name(f"{target.name}.{os.getpid()}.part")
    work.mkdir(parents=True, exist_ok=True)
    try:
        source = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
        AutoTokenizer.from_pretrained(**source).save_pretrained(work)
        model = AutoModelForCausalLM.from_pretrained(
            **source, dtype="bfloat16", quantization_config=GgufConfig(dequantize=True)
        )
        model.save_pretrained(work)
        del model
        work.rename(target)
    except (OSError, ValueError, KeyError) as error:
        if not target.is_dir():  # another process may have finished first
            reason = str(error).splitlines()[0][:200]
            raise Failure(USAGE, "model-unreadable", f"{path} cannot be read as a GGUF model: {reason}") from None
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()
