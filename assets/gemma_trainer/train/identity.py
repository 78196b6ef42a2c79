"""What makes a run the one that was begun: its settings, data, model and packages."""

from __future__ import annotations

import json
from hashlib import blake2b

# A resumed run must be the run that was begun: these parts of run.json may not differ, nor may the model's files. A flag
# sets those that have one.
IDENTITY = {
    "command": None,
    "plan.adapter.hash": None,
    "plan.backend": "--backend",
    "plan.mode": "--mode",
    "plan.dtype": "--dtype",
    "plan.autocast": None,
    "plan.parallel": "--parallel",
    "plan.template_hash": None,
    "plan.data.data_hash": None,
    "plan.data.train_rows": None,
    "plan.data.eval_rows": None,
    "plan.steps": None,
}
FREE = {
    "model",  # what these name and choose is compared, not how
    "adapter",
    "data",
    "eval_data",
    "backend",
    "mode",
    "dtype",
    "resume",
    "output_dir",
    "report_to",
    "json",
    "debug",
    "config",
    "overwrite",
    "save_steps",
    "demo",
    "plan",
    "emulate",
    "processes",
    "parallel",
    "micro_batch_size",  # how a batch is cut does not change it
    "auto_recover",
}
# Other versions of these may compute other numbers, or not read a checkpoint.
COMPUTING = ("torch", "transformers", "trl", "peft", "accelerate", "bitsandbytes", "unsloth")


def differences(before: dict, now: dict) -> list[str]:
    """What keeps the run of one record from going on as that of another, in words."""
    changed = [f"{key} was {_at(before, key)!r}, is {_at(now, key)!r}" for key in _changed_parts(before, now)]
    old, new = before.get("arguments", {}), now.get("arguments", {})
    names = sorted((old.keys() | new.keys()) - FREE)
    changed += [
        f"--{name.replace('_', '-')} was {old.get(name)!r}, is {new.get(name)!r}"
        for name in names
        if old.get(name) != new.get(name)
    ]
    old, new = _model(before), _model(now)
    if isinstance(old, dict) and isinstance(new, dict):
        names = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
        changed += [f"{name} of the model has changed" for name in names]
    elif old != new:
        changed.append(f"the model was {_at(before, 'plan.model')}, is {_at(now, 'plan.model')}")
    installed = [(name, *(_release(each, name) for each in (before, now))) for name in COMPUTING]
    return changed + [f"{name} was {old}, is {new}" for name, old, new in installed if old and new and old != new]


def _changed_parts(before: dict, now: dict) -> list[str]:
    return [key for key in IDENTITY if _at(before, key) != _at(now, key)]


def kept_by(before: dict, now: dict) -> str:
    """The flags by which a machine that can goes on as the run was begun; "" for none."""
    changed = [key for key in _changed_parts(before, now) if IDENTITY[key]]
    return " ".join(f"{IDENTITY[key]} {_at(before, key)}" for key in changed)


def _model(record: dict) -> dict | str | None:
    """What it is: the hashes of its files, wherever they lie, or its name."""
    return record.get("base") or _at(record, "plan.model")


def identity(record: dict) -> str:
    """Of what a run is: equal for records that `differences` finds equal, versions left out."""
    arguments = {name: value for name, value in record.get("arguments", {}).items() if name not in FREE}
    facts = [{key: _at(record, key) for key in IDENTITY}, arguments, _model(record)]
    return blake2b(json.dumps(facts, sort_keys=True, default=str).encode(), digest_size=16).hexdigest()


def _release(record: dict, package: str) -> str | None:
    """Its version without the build, such as +cpu; None where it was not recorded."""
    text = record.get("versions", {}).get(package)
    return text and text.partition("+")[0]


def _at(record: dict, dotted: str):
    for key in dotted.split("."):
        record = record.get(key) if isinstance(record, dict) else None
    return record
