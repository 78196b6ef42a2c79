"""Which packages are installed, in which version, and which combinations are known to fail."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import NamedTuple

from gemma_trainer.rows.problems import Problem

# What each kind of work imports. The order is that of a journey.
NEEDS = {
    "validate data": ("pyyaml",),
    "count tokens": ("tokenizers", "jinja2"),
    "read Parquet": ("pyarrow",),
    "distill": ("aiohttp", "jinja2", "jsonschema", "json-repair", "orjson", "rensa", "tokenizers"),
    "train": ("torch", "transformers", "trl", "peft", "accelerate", "datasets", "matplotlib"),
    "train in 4 bits": ("bitsandbytes",),
    "read GGUF": ("gguf", "transformers"),
}
RECORDED = ("torch", "transformers", "trl", "peft", "accelerate", "datasets", "bitsandbytes", "tokenizers", "unsloth")  # fmt: skip

SKILL = Path(__file__).parents[3]


class Clash(NamedTuple):
    """Versions that fail together. `hits` maps package -> (lowest, first good) version as tuples."""

    package: str
    low: tuple[int, ...]
    high: tuple[int, ...]
    message: str
    fix: str
    refused: bool = False  # by training, which would fail late or go wrong in silence


# Seen by running them, see references/versions.md.
CLASHES = (
    Clash("trl", (1, 15), (1, 16), "trl 1.15 trains SFT and DPO only with Triton, so not on a CPU or Apple GPU", "trl==1.16.0"),
    Clash("trl", (0,), (1, 14), "trl before 1.14.2 lacks what the training scripts use", "trl==1.16.0", True),
    Clash("transformers", (0,), (5, 6), "transformers before 5.6 trains Gemma 3n and 4 on wrong logits, or asks for token types", "transformers==5.24.0", True),
    Clash("transformers", (5, 6), (5, 17), "transformers before 5.17 is not tested here", "transformers==5.24.0"),
    Clash("transformers", (6,), (99,), "transformers 6 is not tested here", "transformers==5.24.0"),
    Clash("bitsandbytes", (0,), (0, 49), "bitsandbytes before 0.49 has no 4-bit training on a CPU", "bitsandbytes==0.50.2"),
)  # fmt: skip


def installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def versions() -> dict[str, str]:
    """Versions that a run records, of the packages that are here."""
    found = {name: installed(name) for name in RECORDED}
    python = ".".join(map(str, sys.version_info[:3]))
    return {"python": python, **{name: text for name, text in found.items() if text}}


def install_command(packages: list[str]) -> str:
    return "python -m pip install " + " ".join(packages)


def install_missing(packages: list[str], cpu_only: bool) -> str | None:
    """The command that installs them, None for none; without a GPU it names the CPU build of torch."""
    wanted = ["torch==2.13.0" if name == "torch" and cpu_only else name for name in packages]
    return install_command(wanted) if wanted else None


def missing_packages(work: str) -> list[str]:
    return [name for name in NEEDS[work] if installed(name) is None]


def unsloth_install() -> str:
    """The command that installs Unsloth with versions that it was run with. It takes older ones than the newest set."""
    skill = os.path.relpath(SKILL)
    pins = os.path.join(skill, "constraints", "unsloth.txt")  # noqa: PTH118 - a Path drops the dot in front
    return install_command(["-c", shlex.quote(pins), shlex.quote(f"{skill}[unsloth]")])


def unsloth_lack() -> str | None:
    """Why `import unsloth` would fail or train wrongly, None where it is ready: it, or what its own pins ask for."""
    for package in ("unsloth", "unsloth_zoo"):
        found = installed(package)
        if found is None:
            return f"{package} is not installed"
        for name, here, wanted in broken_pins(package):
            return f"{package} {found} wants {name} {wanted}, and {here or 'none'} is installed"
    return None


def broken_pins(package: str) -> list[tuple[str, str | None, str]]:
    """(name, installed version, wanted) of what training uses and an installed package wants in another version."""
    from packaging.requirements import Requirement

    wanted = [Requirement(line) for line in requires(package) or []]
    wanted = [
        each for each in wanted if each.name in RECORDED and (not each.marker or each.marker.evaluate({"extra": ""}))
    ]
    met = ((each, installed(each.name)) for each in wanted)
    return [
        (each.name, here, str(each.specifier))
        for each, here in met
        if not (here and each.specifier.contains(here, True))
    ]


def check_packages(cpu_only: bool) -> tuple[dict, list[Problem]]:
    """({work: {"ready", "missing", "install"}}, warnings). On a machine without a GPU the CPU build of torch is named."""
    table, problems = {}, []
    for work in NEEDS:
        lacking = missing_packages(work)
        table[work] = {
            "ready": not lacking,
            "missing": lacking,
            "install": install_missing(lacking, cpu_only),
        }
    for clash in CLASHES:
        found = installed(clash.package)
        if found and clash.low <= _numbers(found) < clash.high:
            fix = install_command([clash.fix])
            problems.append(Problem("version-clash", f"{clash.message} (installed: {found})", fix=fix))
    if installed("unsloth") and (lack := unsloth_lack()):
        problems.append(Problem("version-clash", lack, fix=unsloth_install()))
    torch, vision = installed("torch") or "", installed("torchvision") or "+cpu"
    if torch.endswith("+cpu") and not vision.endswith("+cpu"):
        text = (
            f"torchvision {vision} was not built for the CPU build of torch, and transformers fails to import beside it"
        )
        problems.append(Problem("torch-build", text, fix="python -m pip uninstall -y torchvision"))
    if installed("torch") and not shutil.which("nvidia-smi") and "+cu" in (installed("torch") or ""):
        problems.append(Problem("torch-build", "a CUDA build of torch on a machine without an NVIDIA driver"))
    return table, problems


def refused_versions() -> list[str]:
    """What to install in place of versions that training refuses."""
    here = ((clash, installed(clash.package)) for clash in CLASHES if clash.refused)
    return [clash.fix for clash, found in here if found and clash.low <= _numbers(found) < clash.high]


def _numbers(text: str) -> tuple[int, ...]:
    numbers = []
    for part in text.split("+")[0].split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)
