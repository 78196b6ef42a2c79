"""What doctor.py answers: which models fit, in which mode, and by which command."""

from __future__ import annotations

import math
import os
import shlex
from pathlib import Path

from gemma_trainer.families.checkpoints import CHECKPOINTS
from gemma_trainer.plan import plan as planning
from gemma_trainer.plan.adapter import is_adapter
from gemma_trainer.plan.choices import Wishes, budget_of, longest, settings_for
from gemma_trainer.plan.fit import Fit
from gemma_trainer.plan.hardware import Hardware
from gemma_trainer.plan.memory import GIB, Settings, estimate
from gemma_trainer.plan.size import ModelSize, released
from gemma_trainer.rows.commands import changed
from gemma_trainer.rows.problems import Problem

TABLE_MODES = {
    "cuda": ("qlora", "lora", "full"),
    "mps": ("lora", "full"),
    "cpu": ("qlora", "lora", "full"),
    "tpu": ("lora", "full"),
}
EXAMPLES = {"sft": "text_to_sql", "dpo": "preferences", "rm": "preferences"}


def describe(model: ModelSize) -> dict:
    """The model as the catalogue has it, or as far as its files tell."""
    shape = model.shape
    if model.checkpoint:
        return {"id": model.name, **model.checkpoint.as_dict()}
    parameters = {**shape.parts(), "encoders": model.encoders}
    return {"id": model.name, "layers": len(shape.layers), "hidden": shape.hidden, "vocabulary": shape.vocabulary,
            "context": shape.context, "parameters": parameters}  # fmt: skip


def modes_table(model: ModelSize, hardware: Hardware, wishes: Wishes) -> list[dict]:
    """One line for each mode and way to use the devices, one row a pass: GiB by part, whether it fits, how long a text may be."""
    budget, lines = budget_of(hardware), []
    for mode in TABLE_MODES[hardware.kind]:
        one = _preferred(model, hardware, wishes, mode)
        for settings in [one, *one.on(hardware.devices)]:
            memory = estimate(model, settings)
            lines.append({
                "mode": mode,
                "dtype": settings.dtype,
                "devices": settings.ranks,
                "parallel": settings.parallel if settings.ranks > 1 else None,
                "memory_gib": memory.as_dict(),
                "fits": memory.total <= budget,
                "longest": longest(model, settings, budget),
            })  # fmt: skip
    return lines


def _preferred(model: ModelSize, hardware: Hardware, wishes: Wishes, mode: str) -> Settings:
    """In the number format that is chosen: on a CPU the smaller one where the other does not fit."""
    one = settings_for(model, hardware, wishes, mode)
    if hardware.kind != "cpu" or mode == "full" or estimate(model, one).total <= budget_of(hardware):
        return one
    return settings_for(model, hardware, wishes, mode, "bfloat16")


def largest(hardware: Hardware, wishes: Wishes) -> dict[str, dict | None]:
    """{mode: the released model with most parameters that fits on one device}, None for none."""
    budget, found = budget_of(hardware), {}
    for mode in TABLE_MODES[hardware.kind]:
        sizes = [(released(each), estimate(released(each), settings_for(released(each), hardware, wishes, mode)).total)
                 for each in sorted(CHECKPOINTS, key=lambda each: -each.shape.parameters)]  # fmt: skip
        best = next(((model, total) for model, total in sizes if total <= budget), None)
        found[mode] = best and {"model": best[0].name, "gib": round(best[1] / GIB, 1)}
    return found


def wishes_for(hardware: Hardware, method: str, length: int) -> Wishes:
    """What is asked about, in the engine that would be chosen."""
    nothing_trains = hardware.kind == "tpu"
    backend = "trl" if nothing_trains else planning.choose_backend("auto", hardware, method)[0]
    batch = Wishes.effective
    if batch % hardware.nodes:  # they could not share it
        batch = math.ceil(batch / hardware.devices) * hardware.devices
    return Wishes(method=method, backend=backend, length=length, effective=batch)


def route(found: Fit | None, hardware: Hardware, method: str) -> dict:
    """Engine, mode and number format, each with its reason; for any model where none is asked about."""
    backend, why_backend = planning.choose_backend("auto", hardware, method)
    if found:
        why = {"backend": why_backend, **found.why}
        return {"backend": backend, "mode": found.settings.mode, "dtype": found.settings.dtype, "why": why}
    mode, why_mode = planning.choose_mode(None, hardware)
    dtype, why_dtype = planning.choose_dtype(None, mode, hardware)
    why = {"backend": why_backend, "mode": why_mode, "dtype": why_dtype}
    return {"backend": backend, "mode": mode, "dtype": dtype, "why": why}


def arguments(found: Fit, hardware: Hardware, assets: Path, asked: str) -> list[object]:
    """The flags of the training script that make it do what was planned, on the packaged example's rows. `asked` is what
    the user named, an adapter perhaps: preferences are learned from there, all else from its base."""
    settings = found.settings
    goes_on = settings.method == "dpo" and is_adapter(asked)
    rows = os.path.relpath(assets / "examples" / EXAMPLES[settings.method] / "train.jsonl")
    start = ("--adapter", asked) if goes_on else ("--model", found.model.name)
    words = [*start, "--data", rows, "--mode", settings.mode]
    if settings.dtype != planning.choose_dtype(None, settings.mode, hardware)[0]:
        words += ["--dtype", settings.dtype]
    if found.effective != Wishes.effective:
        words += ["--effective-batch-size", found.effective]
    return [*words, "--max-length", settings.length, "--micro-batch-size", settings.micro]


def plans(found: Fit, launch: str, emulated: str | None) -> list[str]:
    """Commands that plan the run of `launch` in each of the ways to fit that are flags."""
    again = ["--plan", *(["--emulate", emulated] if emulated else [])]
    changes = [way.change.split() for way in found.ways if way.change.startswith("--")]
    return [shlex.join([*changed(launch, change), *again]) for change in changes]


def doubts(model: ModelSize, length: int) -> list[Problem]:
    problems = []
    if model.encoders is None:
        text = f"how large the encoders of {model.name} are is not known; they are left out"
        problems.append(Problem("size-partly-known", text))
    if length > model.shape.context:
        text = f"texts of {length} tokens are longer than the model's context of {model.shape.context}"
        problems.append(Problem("length-over-context", text))
    return problems


def memory_text(found: Fit) -> str:
    """What the run takes, and of how many tokens."""
    rows = f"{found.settings.micro} x {found.settings.length} tokens a pass"
    return f"{planning.memory_line(found.memory())}; {rows}"


def table_text(lines: list[dict]) -> str:
    rows = [("mode", "dtype", "devices", "GiB each", "fits", "longest text")]
    for line in lines:
        devices = f"{line['devices']} ({line['parallel']})" if line["parallel"] else "1"
        fits = "yes" if line["fits"] else "no"
        rows.append(
            (
                line["mode"],
                line["dtype"],
                devices,
                f"{line['memory_gib']['total']:.1f}",
                fits,
                str(line["longest"] or "-"),
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def model_text(facts: dict) -> str:
    count = sum(value or 0 for value in facts["parameters"].values()) / 1e9
    more = [", ".join(facts["modalities"]), facts["licence"]] if "licence" in facts else []
    if facts.get("gated"):
        more.append("gated: accept its licence on the hub and log in")
    return "; ".join([f"{facts['id']}: {count:.2f} billion parameters", f"context {facts['context']} tokens", *more])
